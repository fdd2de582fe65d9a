"""Ten processes that claim concurrently on PostgreSQL, compared with one."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import NamedTuple

from benchmarks.databases import Databases
from benchmarks.measuring import Sample, alternate
from benchmarks.postgres_scenery import add_waiting
from benchmarks.reporting import Finding, Target, rates
from benchmarks.workload import QUEUE, RESULT
from longshore.backends.base import Outcome
from longshore.backends.postgres.backend import PostgresBackend

_CLAIMERS = 10
_PER_BATCH = 100


class Share(NamedTuple):
    """The claims of one process."""

    job_ids: list[str]
    cpu_seconds: float


class Claimer:
    """A process that, on each request, claims and completes all waiting jobs."""

    def __init__(self, url: str, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_claimer, args=(url, name, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self) -> None:
        """Let it drain the queue once."""
        self._line.send(True)

    def share(self) -> Share:
        """Its claims, once it has found the queue empty."""
        share = self._line.recv()
        assert isinstance(share, Share)
        return share

    def close(self) -> None:
        """End the process."""
        self._line.send(False)
        self._process.join()


def _claimer(url: str, name: str, orders: Connection) -> None:
    with asyncio.Runner() as runner:
        backend = PostgresBackend(url, pool_size=2)
        while orders.recv():
            orders.send(runner.run(_empty_the_line(backend, name)))
        runner.run(backend.close())


async def _empty_the_line(backend: PostgresBackend, name: str) -> Share:
    began = process_time()
    job_ids: list[str] = []
    while claimed := await backend.dequeue_jobs(name, limit=_PER_BATCH, queues=(QUEUE,)):
        report = await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in claimed])
        job_ids += report.settled
    return Share(job_ids, process_time() - began)


@contextmanager
def claimers(url: str, count: int) -> Iterator[list[Claimer]]:
    """Start `count` claimers, each with an open connection."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            started.append(Claimer(url, f"worker-{number}"))
            stack.callback(started[-1].close)
        _over_the_line(started)
        yield started


def _over_the_line(those: list[Claimer]) -> list[Share]:
    for claimer in those:
        claimer.begin()
    return [claimer.share() for claimer in those]


def drained(url: str, those: list[Claimer], jobs: int) -> Sample:
    """Time the claimers, and check that no job was claimed twice."""
    add_waiting(url, jobs)
    began = perf_counter()
    shares = _over_the_line(those)
    seconds = perf_counter() - began
    got = [job_id for share in shares for job_id in share.job_ids]
    if len(got) != jobs or len(set(got)) != jobs:
        raise RuntimeError(f"{jobs} jobs were in line; {len(got)} claims were settled, of {len(set(got))} jobs")
    return Sample(seconds, sum(share.cpu_seconds for share in shares), 0, jobs)


def postgres_claimers(databases: Databases) -> list[Finding]:
    """Claim 100 and settle 100 by ten processes, and by one."""
    scale = databases.scale
    with databases.postgres.new() as url, claimers(url, _CLAIMERS) as those:
        ten, one = alternate(
            scale.rounds // 2,
            lambda: drained(url, those, scale.claimer_jobs),
            lambda: drained(url, those[:1], scale.claimer_jobs),
        )
    return [
        rates(
            "claim 100 and settle 100, ten processes at once",
            ten,
            reference=one,
            compared_with="one process",
            target=Target("≥", 1),
        )
    ]
