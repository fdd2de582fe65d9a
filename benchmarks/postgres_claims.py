"""Claims on PostgreSQL from a large table, or while a held snapshot prevents vacuum."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Stopwatch, Work, alternate
from benchmarks.postgres_bare_sql import BareQueue, bare_queue
from benchmarks.postgres_databases import PostgresDatabases
from benchmarks.postgres_scenery import add_finished, add_waiting
from benchmarks.reporting import Finding, Target, durations
from benchmarks.scenarios_claims import ProductLine, claims_by_type, line_of
from benchmarks.workload import QUEUE, RESULT, WORKER
from longshore.backends.base import Outcome
from longshore.backends.postgres.backend import PostgresBackend

_LIMIT = 100
_PASSED_AT_ONCE = 1_000
_PAUSE = 0.02


class BareLine:
    """Claims by bare SQL; untimed, claimed jobs are completed and replaced."""

    def __init__(self, queue: BareQueue) -> None:
        self._queue = queue

    def claim(self) -> Sample:
        """Time one claim of 100."""
        with Stopwatch(_LIMIT) as watch:
            claimed = self._queue.claim(WORKER, _LIMIT)
        if len(claimed.rows) != _LIMIT:
            raise RuntimeError(f"claimed {len(claimed.rows)} jobs where {_LIMIT} were in line")
        self._queue.complete(claimed, RESULT)
        self._queue.enqueue(*self._queue.prepared(1, _LIMIT))
        return watch.sample


@contextmanager
def lines_of(url: str) -> Iterator[tuple[ProductLine, BareLine]]:
    """The product and bare SQL on the same database."""
    with line_of(PostgresBackend(url)) as line, bare_queue(url) as queue:
        yield line, BareLine(queue)


@contextmanager
def quiet_line(postgres: PostgresDatabases) -> Iterator[ProductLine]:
    """A database with a thousand waiting jobs and nothing else."""
    with postgres.new() as url:
        add_waiting(url, postgres.scale.few)
        with line_of(PostgresBackend(url)) as line:
            yield line


def postgres_waiting(databases: Databases) -> list[Finding]:
    """A claim among a million waiting jobs, compared with a thousand."""
    scale, postgres = databases.scale, databases.postgres
    with postgres.new() as url:
        add_waiting(url, scale.many)
        return [_beside_quiet(postgres, url, f"{scale.many:,} waiting")]


def postgres_types(databases: Databases) -> list[Finding]:
    """A claim by type with 10,000 jobs of another type at the head, compared with a plain claim."""
    with quiet_line(databases.postgres) as few, quiet_line(databases.postgres) as behind:
        return [claims_by_type(databases, few, behind)]


def postgres_finished(databases: Databases) -> list[Finding]:
    """A claim from a table with a million finished jobs."""
    scale, postgres = databases.scale, databases.postgres
    with postgres.new() as url:
        add_finished(url, scale.many)
        add_waiting(url, scale.few)
        return [_beside_quiet(postgres, url, f"{scale.many:,} finished")]


def postgres_snapshot(databases: Databases) -> list[Finding]:
    """A claim after 300,000 jobs passed while an idle session held a snapshot."""
    scale, postgres = databases.scale, databases.postgres
    with postgres.new() as url, held_snapshot(url):
        add_waiting(url, scale.passed)
        asyncio.run(_pass(url, scale.passed))
        add_waiting(url, scale.few)
        return [_beside_quiet(postgres, url, f"{scale.passed:,} passed under a held snapshot")]


def _beside_quiet(postgres: PostgresDatabases, url: str, circumstances: str) -> Finding:
    with ExitStack() as stack:
        quiet = stack.enter_context(quiet_line(postgres))
        line, bare = stack.enter_context(lines_of(url))
        # write everything to disk now, not while we measure
        postgres.observer.execute("CHECKPOINT")
        # bare SQL runs separately: it is slow here and would keep the product from claiming at a worker's pace
        product, reference = alternate(postgres.scale.claims, _after_a_pause(line.claim), _after_a_pause(quiet.claim))
        (baseline,) = alternate(postgres.scale.claims // 4, bare.claim)
    return durations(
        f"`dequeue_jobs(limit=100)`, {circumstances}",
        product,
        baseline,
        reference=reference,
        compared_with="1,000 waiting",
        target=Target("≤", 2),
    )


def _after_a_pause(claim: Callable[[], Sample]) -> Work:
    """Wait for the product's NOTIFY, which follows its answer, so that it does not slow down the next side."""

    def run() -> Sample:
        threading.Event().wait(_PAUSE)
        return claim()

    return run


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """A session with an open transaction that has read once."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM longshore.jobs")
        yield


async def _pass(url: str, count: int) -> None:
    async with PostgresBackend(url) as backend:
        for _ in range(0, count, _PASSED_AT_ONCE):
            jobs = await backend.dequeue_jobs(WORKER, limit=_PASSED_AT_ONCE, queues=(QUEUE,))
            await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in jobs])
