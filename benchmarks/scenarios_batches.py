"""Batches: `enqueue_jobs`, and enqueue to settlement, compared with bare SQL that writes the same rows."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks import bare_sql
from benchmarks.bare_sql import BareQueue
from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Stopwatch, alternate
from benchmarks.reporting import Finding, Target, rates
from benchmarks.workload import EVERY, HALF, QUEUE, RESULT, WORKER, batches_of, new_job, new_jobs
from longshore.backends.base import Outcome
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job

_PER_CALL = 1_000
_PER_LIFE = 100


def enqueue(databases: Databases) -> list[Finding]:
    """`enqueue_jobs`, 1,000 per call, plain and with two tags."""
    scale = databases.scale
    plain, bare_plain = alternate(
        scale.rounds,
        lambda: product_enqueues(databases, scale.enqueue_calls),
        lambda: bare_enqueues(databases, scale.enqueue_calls),
    )
    tagged, bare_tagged = alternate(
        scale.rounds,
        lambda: product_enqueues(databases, scale.enqueue_calls, (EVERY, HALF)),
        lambda: bare_enqueues(databases, scale.enqueue_calls, (EVERY, HALF)),
    )
    return [
        rates("`enqueue_jobs`, 1,000 per call", plain, bare_plain, target=Target("≥", 0.6)),
        rates("the same with two tags on each job", tagged, bare_tagged),
    ]


def product_enqueues(databases: Databases, calls: int, tags: tuple[str, ...] = ()) -> Sample:
    """Enqueue into a new file, opened before the clock starts."""
    batches = batches_of([new_job(number, tags=tags) for number in range(calls * _PER_CALL)], _PER_CALL)

    async def run(path: Path) -> Sample:
        async with SQLiteBackend(path) as backend:
            await backend.enqueue_jobs(new_jobs(1))
            with Stopwatch(calls * _PER_CALL) as watch:
                for batch in batches:
                    await backend.enqueue_jobs(batch)
        return watch.sample

    with databases.scratch() as path:
        return asyncio.run(run(path))


def bare_enqueues(databases: Databases, calls: int, tags: tuple[str, ...] = ()) -> Sample:
    """The same rows from tuples."""
    with databases.scratch() as path, bare_sql.new_file(path) as connection:
        queue = BareQueue(connection)
        queue.enqueue(queue.prepared(1, 1)[0])
        batches = queue.prepared(calls, _PER_CALL, tags=tags)
        with Stopwatch(calls * _PER_CALL) as watch:
            for batch in batches:
                queue.enqueue(batch)
    return watch.sample


def life(databases: Databases) -> list[Finding]:
    """Enqueue, dequeue and settle in batches of 100."""
    scale = databases.scale
    product, bare = alternate(
        scale.rounds,
        lambda: product_lives(databases, scale.life_batches),
        lambda: bare_lives(databases, scale.life_batches),
    )
    return [rates("enqueue, claim and settle in batches of 100", product, bare, target=Target("≥", 0.5))]


def product_lives(databases: Databases, count: int) -> Sample:
    """Enqueue, claim and complete each batch before the next."""
    batches = batches_of(new_jobs(count * _PER_LIFE), _PER_LIFE)

    async def run(path: Path) -> Sample:
        async with SQLiteBackend(path) as backend:
            await _product_life(backend, new_jobs(1))
            with Stopwatch(count * _PER_LIFE) as watch:
                for batch in batches:
                    await _product_life(backend, batch)
        return watch.sample

    with databases.scratch() as path:
        return asyncio.run(run(path))


async def _product_life(backend: SQLiteBackend, batch: list[Job]) -> None:
    await backend.enqueue_jobs(batch)
    claimed = await backend.dequeue_jobs(WORKER, limit=len(batch), queues=(QUEUE,))
    report = await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in claimed])
    if len(report.settled) != len(batch):
        raise RuntimeError("a claim did not return the batch that was just enqueued")


def bare_lives(databases: Databases, count: int) -> Sample:
    """The same with bare SQL: insert; select and update; fenced update, each with events and counts."""
    with databases.scratch() as path, bare_sql.new_file(path) as connection:
        queue = BareQueue(connection)
        queue.enqueue(queue.prepared(1, 1)[0])
        queue.complete(WORKER, queue.claim(WORKER, 1), RESULT)
        batches = queue.prepared(count, _PER_LIFE, events_per_job=3)
        with Stopwatch(count * _PER_LIFE) as watch:
            for batch in batches:
                queue.enqueue(batch)
                queue.complete(WORKER, queue.claim(WORKER, _PER_LIFE), RESULT)
    return watch.sample
