"""Batches on PostgreSQL: enqueue, claim and settlement, and all three, compared with bare SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.databases import Databases
from benchmarks.measuring import Spread, alternate
from benchmarks.postgres_bare_sql import BareQueue, bare_queue
from benchmarks.postgres_costs import ServerSample, ServerWatch
from benchmarks.postgres_databases import PostgresDatabases
from benchmarks.reporting import Finding, Target, rates
from benchmarks.workload import QUEUE, RESULT, WORKER, batches_of, new_jobs
from longshore.backends.base import Outcome
from longshore.backends.postgres.backend import PostgresBackend
from longshore.core.job import Job

_PER_CALL = 1_000
_IN_BULK = 10_000
_PER_BATCH = 100


class Product:
    """The product on one database, after a warm-up."""

    def __init__(self, databases: PostgresDatabases, backend: PostgresBackend, runner: asyncio.Runner) -> None:
        self._databases = databases
        self._backend = backend
        self._runner = runner

    def enqueues(self, calls: int, size: int) -> ServerSample:
        """Time `calls` enqueues of `size` jobs."""
        return self._runner.run(self._enqueues(batches_of(new_jobs(calls * size), size)))

    async def _enqueues(self, batches: list[list[Job]]) -> ServerSample:
        with ServerWatch(self._databases, sum(map(len, batches))) as watch:
            for batch in batches:
                await self._backend.enqueue_jobs(batch)
        return watch.sample

    def claims_and_settlements(self, count: int) -> ServerSample:
        """Claim and complete jobs that were enqueued before, 100 at a time."""
        return self._runner.run(self._claims_and_settlements(count))

    async def _claims_and_settlements(self, count: int) -> ServerSample:
        await self._backend.enqueue_jobs(new_jobs(count * _PER_BATCH))
        with ServerWatch(self._databases, count * _PER_BATCH) as watch:
            for _ in range(count):
                await self._claim_and_settle()
        return watch.sample

    async def _claim_and_settle(self) -> None:
        claimed = await self._backend.dequeue_jobs(WORKER, limit=_PER_BATCH, queues=(QUEUE,))
        report = await self._backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in claimed])
        if len(report.settled) != _PER_BATCH:
            raise RuntimeError("a claim did not return the enqueued jobs")

    def lives(self, count: int) -> ServerSample:
        """Enqueue, claim and complete each batch before the next."""
        return self._runner.run(self._lives(batches_of(new_jobs(count * _PER_BATCH), _PER_BATCH)))

    async def _lives(self, batches: list[list[Job]]) -> ServerSample:
        with ServerWatch(self._databases, sum(map(len, batches))) as watch:
            for batch in batches:
                await self._backend.enqueue_jobs(batch)
                await self._claim_and_settle()
        return watch.sample


class Bare:
    """The same with bare SQL."""

    def __init__(self, databases: PostgresDatabases, queue: BareQueue) -> None:
        self._databases = databases
        self._queue = queue

    def enqueues(self, calls: int, size: int) -> ServerSample:
        """Time `calls` enqueues of `size` jobs."""
        batches = self._queue.prepared(calls, size)
        with ServerWatch(self._databases, calls * size) as watch:
            for batch in batches:
                self._queue.enqueue(batch)
        return watch.sample

    def claims_and_settlements(self, count: int) -> ServerSample:
        """Claim and complete jobs that were enqueued before, 100 at a time."""
        self._queue.enqueue(*self._queue.prepared(1, count * _PER_BATCH))
        with ServerWatch(self._databases, count * _PER_BATCH) as watch:
            for _ in range(count):
                self._claim_and_settle()
        return watch.sample

    def _claim_and_settle(self) -> None:
        claimed = self._queue.claim(WORKER, _PER_BATCH)
        if len(claimed.rows) != _PER_BATCH:
            raise RuntimeError("a claim did not return the enqueued jobs")
        self._queue.complete(claimed, RESULT)

    def lives(self, count: int) -> ServerSample:
        """Enqueue, claim and complete each batch before the next."""
        batches = self._queue.prepared(count, _PER_BATCH)
        with ServerWatch(self._databases, count * _PER_BATCH) as watch:
            for batch in batches:
                self._queue.enqueue(batch)
                self._claim_and_settle()
        return watch.sample


@contextmanager
def sides(databases: PostgresDatabases) -> Iterator[tuple[Product, Bare]]:
    """Both sides, each on its own empty database."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        backend = PostgresBackend(stack.enter_context(databases.new()))
        stack.callback(lambda: runner.run(backend.close()))
        queue = stack.enter_context(bare_queue(stack.enter_context(databases.new())))
        yield Product(databases, backend, runner), Bare(databases, queue)


def postgres_enqueue(databases: Databases) -> list[Finding]:
    """`enqueue_jobs` compared with COPY of the same rows, 1,000 and 10,000 per call."""
    scale, postgres = databases.scale, databases.postgres
    findings = []
    for calls, size in ((scale.enqueue_calls, _PER_CALL), (1, _IN_BULK)):
        with sides(postgres) as (product, bare):
            mine, other = alternate(
                scale.rounds, partial(product.enqueues, calls, size), partial(bare.enqueues, calls, size)
            )
        findings.append(rates(f"`enqueue_jobs`, {size:,} per call", mine, other, target=Target("≥", 0.6)))
    return findings


def postgres_work(databases: Databases) -> list[Finding]:
    """Claim 100 and settle 100 waiting jobs."""
    scale = databases.scale
    with sides(databases.postgres) as (product, bare):
        mine, other = alternate(
            scale.rounds,
            lambda: product.claims_and_settlements(scale.life_batches),
            lambda: bare.claims_and_settlements(scale.life_batches),
        )
    return [
        rates("claim 100 and settle 100", mine, other, target=Target("≥", 0.5)),
        _of_the_server("the same, CPU time of the server", "µs/job", mine, other, _server_cpu),
    ]


def postgres_life(databases: Databases) -> list[Finding]:
    """Enqueue, claim and settle in batches of 100, with the bytes of write-ahead log."""
    scale = databases.scale
    with sides(databases.postgres) as (product, bare):
        mine, other = alternate(
            scale.rounds, lambda: product.lives(scale.life_batches), lambda: bare.lives(scale.life_batches)
        )
    return [
        rates("enqueue, claim and settle in batches of 100", mine, other),
        _of_the_server("the same, CPU time of the server", "µs/job", mine, other, _server_cpu),
        _of_the_server("the same, write-ahead log", "bytes/job", mine, other, _wal),
    ]


def _server_cpu(sample: ServerSample) -> float:
    return sample.server_cpu_micros


def _wal(sample: ServerSample) -> float:
    return sample.wal_bytes_per_job


def _of_the_server(
    name: str,
    unit: str,
    product: Sequence[ServerSample],
    bare: Sequence[ServerSample],
    figure: Callable[[ServerSample], float],
) -> Finding:
    mine, other = Spread.of(map(figure, product)), Spread.of(map(figure, bare))
    pairs = zip(product, bare, strict=True)
    # 0 where the system does not report it
    ratio = Spread.of(figure(one) / figure(two) for one, two in pairs) if other.least else None
    return Finding(name, unit, mine, other, "bare SQL", other, ratio)
