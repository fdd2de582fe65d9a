"""The time from an enqueue in one process to the start in an idle worker in another."""

from __future__ import annotations

import asyncio
import random
from threading import Event
from time import monotonic
from typing import NamedTuple

from benchmarks.databases import Databases
from benchmarks.measuring import Spread
from benchmarks.processes import Companion, cpu_by_process
from benchmarks.reporting import Finding, Target
from benchmarks.workload import small_jobs
from longshore.backends.connect import connect

_GAPS = (0.02, 0.08)
"""Random seconds between two jobs: the worker is idle again each time."""
_LONG_GAPS = (1.5, 3.5)
"""Long enough for an idle worker to have reached its longest poll interval."""
_AT_ONCE = 10


class Moments(NamedTuple):
    """Times of one job, in seconds on the clock that all processes of a machine share."""

    called: float
    enqueued: float
    began: float


def start_latency(databases: Databases) -> list[Finding]:
    """On SQLite, with the CPU time of an idle worker."""
    scale = databases.scale
    with databases.scratch() as path, _idle_worker(f"sqlite:///{path}") as worker:
        jobs = _moments(f"sqlite:///{path}", worker, scale.starts, _GAPS)
        late = _moments(f"sqlite:///{path}", worker, scale.late_starts, _LONG_GAPS)
        idle = _idle_share(worker, scale.idle_seconds)
    return [
        *_delays(jobs, Target("≤", 3, "ms"), Target("≤", 10, "ms")),
        _after_long(late, Target("≤", 3, "ms")),
        _of_a_core("an idle worker", idle, 2),
    ]


def postgres_start_latency(databases: Databases) -> list[Finding]:
    """On PostgreSQL, with the server's CPU time for an idle worker."""
    postgres, scale = databases.postgres, databases.scale
    with postgres.new() as url, _idle_worker(url) as worker:
        jobs = _moments(url, worker, scale.starts, _GAPS)
        late = _moments(url, worker, scale.late_starts, _LONG_GAPS)
        before, began = cpu_by_process(postgres.server.pid), monotonic()
        idle = _idle_share(worker, scale.idle_seconds)
        after = cpu_by_process(postgres.server.pid)
        spent = sum(seconds - before.get(process, 0) for process, seconds in after.items()) / (monotonic() - began)
    return [
        *_delays(jobs),
        _after_long(late),
        _of_a_core("an idle worker", idle, 2),
        _of_a_core("the server", spent * 100),
    ]


def _idle_worker(url: str) -> Companion:
    worker = Companion("benchmarks.workers", "starts", url, _AT_ONCE)
    worker.hear()
    return worker


def _moments(url: str, worker: Companion, count: int, gaps: tuple[float, float]) -> list[Moments]:
    enqueued = asyncio.run(_enqueue(url, count, gaps))
    began = _hear(worker, count)
    return [Moments(called, stored, began[job_id]) for job_id, (called, stored) in enqueued.items()]


def _hear(worker: Companion, count: int) -> dict[str, float]:
    began: dict[str, float] = {}
    while len(began) < count:
        said = worker.hear()
        began[said["job"]] = said["began"]
    return began


async def _enqueue(url: str, count: int, gaps: tuple[float, float]) -> dict[str, tuple[float, float]]:
    chance = random.Random(7)
    moments: dict[str, tuple[float, float]] = {}
    async with connect(url) as backend:
        await backend.count_jobs()
        for job in small_jobs(0, count):
            await asyncio.sleep(chance.uniform(*gaps))
            called = monotonic()
            job_id = await backend.enqueue_job(job)
            moments[job_id] = called, monotonic()
    return moments


def _idle_share(worker: Companion, seconds: float) -> float:
    """The percentage of a core that an idle worker uses."""
    Event().wait(1)  # until the last job is settled and the queue is known to be empty
    before, began = _cpu_seconds(worker), monotonic()
    Event().wait(seconds)
    return (_cpu_seconds(worker) - before) / (monotonic() - began) * 100


def _cpu_seconds(worker: Companion) -> float:
    worker.tell("cpu?")
    return float(worker.hear()["cpu_seconds"])


def _delays(jobs: list[Moments], most: Target | None = None, most_of_99: Target | None = None) -> list[Finding]:
    """Delays from the call of `enqueue_job`, so that the time of the call is included."""
    from_call = sorted((job.began - job.called) * 1e3 for job in jobs)
    p99 = from_call[round(0.99 * (len(from_call) - 1))]
    committed = Spread.of((job.began - job.enqueued) * 1e3 for job in jobs)
    return [
        Finding(
            "from the call of `enqueue_job` to the start in an idle worker", "ms", Spread.of(from_call), target=most
        ),
        Finding("the same, 99th percentile", "ms", Spread.of([p99]), target=most_of_99),
        Finding("the same from the return of `enqueue_job`", "ms", committed),
    ]


def _after_long(jobs: list[Moments], most: Target | None = None) -> Finding:
    delays = Spread.of((job.began - job.called) * 1e3 for job in jobs)
    return Finding("the same after some idle seconds", "ms", delays, target=most)


def _of_a_core(name: str, percent: float, most: float | None = None) -> Finding:
    target = None if most is None else Target("<", most, "% of a core")
    return Finding(name, "% of a core", Spread.of([percent]), target=target)
