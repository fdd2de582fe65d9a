"""Many schedules that fire at the same moment of every minute: their cost and their delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from benchmarks.databases import Databases
from benchmarks.measuring import Spread
from benchmarks.processes import Companion, cpu_by_process
from benchmarks.reporting import Finding, Target
from benchmarks.workload import QUEUE, new_job
from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.filters import JobFilter
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus

_MINUTE = 60
_STORED_PER_SECOND = 500
"""A rate that every machine reaches: all must be stored before they are due."""
_CALLERS = 64
_LEAD = 3.0

Cpu = Callable[[], float]
"""CPU seconds so far."""


class Fired(NamedTuple):
    """The cost of firing all of them once."""

    scheduler_seconds: float
    server_seconds: float
    late: list[float]
    """The delay of each job in milliseconds."""


def schedules(databases: Databases) -> list[Finding]:
    """On SQLite."""
    with databases.scratch() as path:
        return _findings(databases, asyncio.run(_fire(f"sqlite:///{path}", databases.scale.schedules, lambda: 0.0)))


def postgres_schedules(databases: Databases) -> list[Finding]:
    """On PostgreSQL, with the CPU time of the server."""
    postgres = databases.postgres

    def server() -> float:
        return sum(cpu_by_process(postgres.server.pid).values())

    with postgres.new() as url:
        return _findings(databases, asyncio.run(_fire(url, databases.scale.schedules, server)))


def _findings(databases: Databases, fired: Fired) -> list[Finding]:
    name = f"{databases.scale.schedules:,} schedules that fire at the same moment of each minute"
    late = sorted(fired.late)
    share, server = (100 * seconds / _MINUTE for seconds in (fired.scheduler_seconds, fired.server_seconds))
    found = [
        Finding(name, "% of a core", Spread.of([share]), target=Target("<", 20, "% of a core")),
        Finding("the same, delay of the last job", "ms", Spread.of([late[-1]]), target=Target("≤", 1_000, "ms")),
        Finding("the same, delay of each job", "ms", Spread.of(late)),
    ]
    if server:
        found.append(Finding("the same, the server", "% of a core", Spread.of([server])))
    return found


async def _fire(url: str, count: int, server: Cpu) -> Fired:
    """Store the schedules, wait for their first occurrence, and let a scheduler process create the jobs."""
    async with connect(url) as backend:
        first = await backend.now() + timedelta(seconds=count / _STORED_PER_SECOND + _LEAD)
        repeat = Repeat(every=_MINUTE, start=first)
        await _put(backend, count, repeat)
        with Companion("benchmarks.schedulers", url) as scheduler:
            await asyncio.to_thread(scheduler.hear)
            await asyncio.sleep(max(0, (first - await backend.now()).total_seconds() - 0.5))
            if await backend.now() >= first:
                raise RuntimeError("they became due before all were stored")
            before = await asyncio.to_thread(_spent, scheduler), server()
            while (await backend.count_jobs(QUEUE))[JobStatus.INITIAL_PENDING] < count:
                await backend.wait_for_change(0.25)
            after = await asyncio.to_thread(_spent, scheduler), server()
        late = []
        cursor = None
        while True:
            page = await backend.list_jobs(JobFilter(queues=(QUEUE,)), limit=500, cursor=cursor)
            late += [(job.created_at - first) / timedelta(milliseconds=1) for job in page.items if job.created_at]
            cursor = page.next_cursor
            if cursor is None:
                return Fired(after[0] - before[0], after[1] - before[1], late)


async def _put(backend: Backend, count: int, repeat: Repeat) -> None:
    async def some(first: int) -> None:
        for number in range(first, count, _CALLERS):
            await backend.put_schedule(Schedule(id=f"schedule-{number}", job=new_job(number), repeat=repeat))

    await asyncio.gather(*(some(first) for first in range(_CALLERS)))


def _spent(scheduler: Companion) -> float:
    scheduler.tell("cpu?")
    return float(scheduler.hear()["cpu_seconds"])
