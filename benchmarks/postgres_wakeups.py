"""On PostgreSQL, the time from an enqueue in one process to the claim in another that waits."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import monotonic
from typing import NamedTuple

from benchmarks.databases import Databases
from benchmarks.measuring import Spread
from benchmarks.reporting import Finding, Target
from benchmarks.workload import QUEUE, WORKER, new_job
from longshore.backends.postgres.backend import PostgresBackend

_POLL_SECONDS = 0.5
_GAPS = (0.005, 0.045)
"""Random seconds between two jobs."""
_AT_ONCE = 100


class Moments(NamedTuple):
    """Times of one job, in seconds on the clock that all processes of a machine share."""

    called: float
    enqueued: float
    claimed: float


def postgres_wakeups(databases: Databases) -> list[Finding]:
    """With NOTIFY, and with polling alone."""
    scale = databases.scale
    told = _moments(databases, scale.wakeups, hints=True)
    polled = _moments(databases, scale.wakeups, hints=False)
    from_call = Spread.of((job.claimed - job.called) * 1e3 for job in told)
    interval = _POLL_SECONDS * 1e3
    return [
        *_delays("enqueued in one process, claimed in another that waits", told, 5, 25),
        Finding("the same from the call of `enqueue_job`", "ms", from_call),
        *_delays(f"the same without NOTIFY, polling every {interval:.0f} ms", polled, interval, interval),
    ]


def _delays(name: str, jobs: list[Moments], most: float, most_of_99: float) -> list[Finding]:
    delays = sorted((job.claimed - job.enqueued) * 1e3 for job in jobs)
    p99 = delays[round(0.99 * (len(delays) - 1))]
    return [
        Finding(name, "ms", Spread.of(delays), target=Target("≤", most, "ms")),
        Finding("the same, 99th percentile", "ms", Spread.of([p99]), target=Target("≤", most_of_99, "ms")),
    ]


def _moments(databases: Databases, count: int, *, hints: bool) -> list[Moments]:
    with databases.postgres.new() as url, _waiting_process(url, hints) as answers, ThreadPoolExecutor(1) as ear:
        hearing = ear.submit(
            _hear, answers, count
        )  # read concurrently, or the other process would block on a full pipe
        enqueued = asyncio.run(_enqueue(url, count, hints))
        claimed = hearing.result()
    return [Moments(called, stored, claimed[job_id]) for job_id, (called, stored) in enqueued.items()]


def _hear(answers: Connection, count: int) -> dict[str, float]:
    claimed: dict[str, float] = {}
    while len(claimed) < count:
        claimed |= answers.recv()
    return claimed


async def _enqueue(url: str, count: int, hints: bool) -> dict[str, tuple[float, float]]:
    chance = random.Random(7)
    moments: dict[str, tuple[float, float]] = {}
    async with _backend(url, hints) as backend:
        await backend.count_jobs()
        for number in range(count):
            await asyncio.sleep(chance.uniform(*_GAPS))
            called = monotonic()
            job_id = await backend.enqueue_job(new_job(number))
            moments[job_id] = called, monotonic()
    return moments


@contextmanager
def _waiting_process(url: str, hints: bool) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_claim_for_ever, args=(url, hints, theirs), daemon=True)
    process.start()
    ours.recv()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def _claim_for_ever(url: str, hints: bool, answers: Connection) -> None:
    asyncio.run(_claim(url, hints, answers))


async def _claim(url: str, hints: bool, answers: Connection) -> None:
    async with _backend(url, hints) as backend:
        await backend.wait_for_change(0)
        answers.send({})
        while True:
            waiting = asyncio.ensure_future(backend.wait_for_change(60))
            await asyncio.sleep(0)  # it waits from here on, so a change during the claim is not missed
            claimed = await backend.dequeue_jobs(WORKER, limit=_AT_ONCE, queues=(QUEUE,))
            if claimed:
                now = monotonic()
                answers.send({job.id: now for job in claimed})
                waiting.cancel()
            else:
                await waiting


def _backend(url: str, hints: bool) -> PostgresBackend:
    backend = PostgresBackend(url, poll_seconds=_POLL_SECONDS)
    if not hints:
        # without hints, only polling of the log is left
        backend._hints._send = _tell_nobody
    return backend


def _tell_nobody(_: list[str]) -> None:
    pass
