"""Runs a worker and waits for conditions, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from longshore.backends.base import Backend
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent
from longshore.core.status import JobStatus
from longshore.runtime.queue import Queue
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker import Processor, Worker
from longshore.runtime.worker_loop import WorkerLoop
from longshore.testing.conformance.scenarios import log_of

S = JobStatus
TIMEOUT = 25.0
"""Seconds that a condition may take on a busy machine."""
_BETWEEN_LOOKS = 0.02


@asynccontextmanager
async def working(queue: Queue, process: Processor, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker that is closed when the test ends, whatever it still runs."""
    worker = Worker(queue, process, **{"poll_interval": 0.05, "cancel_grace": 0.5, **options})
    try:
        yield worker
    finally:
        await worker.close(grace=0)


def worker_loop_of(worker: Worker) -> WorkerLoop:
    """Return the internals of a worker, for tests of single instants."""
    assert worker._loop is not None
    return worker._loop


async def until(met: Callable[[], bool | Awaitable[bool]], within: float = TIMEOUT) -> None:
    """Return as soon as the condition is met."""
    async with asyncio.timeout(within):
        while True:
            answer = met()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(_BETWEEN_LOOKS)


async def comes_to(backend: Backend, job_id: str, *statuses: JobStatus, within: float = TIMEOUT) -> Job:
    """Return the job once it has one of these statuses; any final one if none is given."""
    job = await backend.get_job(job_id)

    async def met() -> bool:
        nonlocal job
        job = await backend.get_job(job_id)
        return job.status in statuses if statuses else job.status.final

    try:
        await until(met, within)
    except TimeoutError:
        raise AssertionError(
            f"{job_id} is still {job.status} after {job.executions} executions: {job.error_message}"
        ) from None
    return job


async def all_come_to(backend: Backend, *statuses: JobStatus, count: int) -> None:
    """Return when this many jobs have these statuses."""

    async def met() -> bool:
        counts = await backend.count_jobs()
        return sum(counts[status] for status in statuses) >= count

    await until(met)


async def happens(backend: Backend, event: str, **filters: Any) -> JobEvent:
    """Return the first event of this name, once it has happened."""
    found: list[JobEvent] = []

    async def met() -> bool:
        found[:] = [one for one in await log_of(backend, **filters) if one.event == event]
        return bool(found)

    await until(met)
    return found[0]


async def running(backend: Backend, assignee_id: str | None = None) -> list[Job]:
    """Return the running jobs."""
    wanted = JobFilter(statuses=[S.RUNNING, S.CANCELLING], assignee_id=assignee_id)
    return (await backend.list_jobs(wanted, limit=500)).items


def most_at_once(events: list[JobEvent]) -> int:
    """Return the most jobs that ran at any instant, by the order of the log."""
    held: set[str] = set()
    most = 0
    for event in events:
        if event.job_id is None or event.to_status is None:
            continue
        if event.to_status.holds_capacity:
            held.add(event.job_id)
        else:
            held.discard(event.job_id)
        most = max(most, len(held))
    return most


def when(moment: object) -> datetime:
    """Return a time that must not be None."""
    assert isinstance(moment, datetime)
    return moment


class Gate:
    """A processor that starts, records that, and waits until it is released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.open = asyncio.Event()

    async def __call__(self, job: RunningJob) -> str:
        self.begun.append(job.id)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
        self.ended.append(job.id)
        return job.id

    async def has_begun(self, count: int = 1) -> None:
        """Return when this many have started."""
        await until(lambda: len(self.begun) >= count)
