"""Concurrent callers that enqueue single jobs: the effect of group commit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks import bare_sql
from benchmarks.bare_sql import BareQueue
from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Stopwatch, alternate
from benchmarks.reporting import Finding, Target, rates
from benchmarks.workload import new_jobs
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job

_CALLERS = 64


def callers(databases: Databases) -> list[Finding]:
    """64 callers of `enqueue_job` compared with one, and both with bare SQL that commits each job."""
    scale = databases.scale
    together, alone, bare = alternate(
        scale.rounds,
        lambda: product_callers(databases, _CALLERS, scale.concurrent_jobs),
        lambda: product_callers(databases, 1, scale.lone_jobs),
        lambda: bare_caller(databases, scale.lone_jobs),
    )
    return [
        rates(
            "`enqueue_job`, 64 callers at once",
            together,
            bare,
            reference=alone,
            compared_with="one caller",
            target=Target("≥", 3),
        ),
        rates("`enqueue_job`, one caller", alone, bare),
    ]


def product_callers(databases: Databases, count: int, jobs: int) -> Sample:
    """Run `count` tasks that each enqueue their share one job at a time."""
    shares = [new_jobs(jobs // count) for _ in range(count)]

    async def run(path: Path) -> Sample:
        async with SQLiteBackend(path) as backend:
            await backend.enqueue_jobs(new_jobs(1))
            with Stopwatch(sum(map(len, shares))) as watch:
                await asyncio.gather(*(_enqueue_each(backend, share) for share in shares))
        return watch.sample

    with databases.scratch() as path:
        return asyncio.run(run(path))


async def _enqueue_each(backend: SQLiteBackend, jobs: list[Job]) -> None:
    for job in jobs:
        await backend.enqueue_job(job)


def bare_caller(databases: Databases, jobs: int) -> Sample:
    """One transaction per job."""
    with databases.scratch() as path, bare_sql.new_file(path) as connection:
        queue = BareQueue(connection)
        queue.enqueue(queue.prepared(1, 1)[0])
        batches = queue.prepared(jobs, 1)
        with Stopwatch(jobs) as watch:
            for batch in batches:
                queue.enqueue(batch)
    return watch.sample
