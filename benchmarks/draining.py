"""Times one drain: a worker process empties a queue of waiting jobs.

The clock starts when the connected worker gets its start signal. It stops when the store shows every job as done: after
the worker reports that the last job has started, we poll every few milliseconds. Both sides are timed this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from random import Random
from threading import Event
from time import perf_counter

import psycopg

from benchmarks import bare_sql, pgqueuer_peer
from benchmarks.databases import Databases
from benchmarks.postgres_costs import ServerSample
from benchmarks.postgres_databases import PostgresDatabases
from benchmarks.processes import Companion, cpu_by_process
from benchmarks.workload import QUEUE, small_jobs
from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.limits import Rate

_PER_CALL = 1_000
_BETWEEN_LOOKS = 0.005
_PATIENCE = 120

PRODUCT = ("benchmarks.workers", "drain")
_PEER = ("benchmarks.pgqueuer_peer",)

DONE_ON_SQLITE = "SELECT sum(jobs) FROM queue_counts WHERE status = 'COMPLETED'"
_FINISHED_ON_POSTGRES = "SELECT count(*) FROM longshore.jobs WHERE status = 'COMPLETED'"


@dataclass(frozen=True, slots=True)
class Terms:
    """The concurrency keys of the jobs, and the limits of the queue."""

    keys: int = 0
    """The number of random keys of the jobs; 0 for none."""
    running: int | None = None
    per_key: int | None = None
    rate_per_key: Rate | None = None

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return (self.running, self.per_key, self.rate_per_key) != (None, None, None)


FREE = Terms()


@dataclass(frozen=True, slots=True)
class Line:
    """Waiting jobs, a worker process for them, and a check that they are done."""

    worker: tuple[str, ...]
    """The module and arguments of the worker process."""
    jobs: int
    done: Callable[[], int]
    server_cpu: Callable[[], dict[int, float]]


@contextmanager
def on_sqlite(databases: Databases, jobs: int, terms: Terms = FREE) -> Iterator[Line]:
    """The product on a SQLite file."""
    with databases.scratch() as path:
        url = f"sqlite:///{path}"
        asyncio.run(fill(connect(url), jobs, terms))
        with bare_sql.open_file(path) as observer:

            def done() -> int:
                return sum(count or 0 for (count,) in observer.execute(DONE_ON_SQLITE))

            yield Line((*PRODUCT, url), jobs, done, dict)


@contextmanager
def on_postgres(postgres: PostgresDatabases, jobs: int, terms: Terms = FREE) -> Iterator[Line]:
    """The product on the PostgreSQL server."""
    with postgres.new() as url:
        asyncio.run(fill(connect(url), jobs, terms))
        with _observed(postgres, url, PRODUCT, jobs, _FINISHED_ON_POSTGRES) as line:
            yield line


@contextmanager
def on_pgqueuer(postgres: PostgresDatabases, jobs: int) -> Iterator[Line]:
    """PgQueuer on the same server."""
    with postgres.new(template=None) as url:
        asyncio.run(pgqueuer_peer.install(url))
        asyncio.run(pgqueuer_peer.fill(url, jobs))
        with _observed(postgres, url, _PEER, jobs, pgqueuer_peer.DONE) as line:
            yield line


async def fill(backend: Backend, count: int, terms: Terms = FREE) -> None:
    """Enqueue `count` jobs through the product; their keys are the same in every run."""
    chance = Random(1)
    async with backend:
        if terms.limited:
            await backend.set_limits(
                QUEUE, running=terms.running, per_key=terms.per_key, rate_per_key=terms.rate_per_key
            )
        for start in range(0, count, _PER_CALL):
            jobs = small_jobs(start, min(start + _PER_CALL, count))
            if terms.keys:
                jobs = [job.replace(concurrency_key=f"tenant-{chance.randrange(terms.keys)}") for job in jobs]
            await backend.enqueue_jobs(jobs)


@contextmanager
def _observed(
    postgres: PostgresDatabases, url: str, program: tuple[str, ...], jobs: int, statement: str
) -> Iterator[Line]:
    with closing(psycopg.connect(url, autocommit=True)) as observer:
        # as in a queue that is some minutes old: on both sides the planner has statistics
        observer.execute("VACUUM (ANALYZE)")

        def done() -> int:
            (count,) = observer.execute(statement).fetchone() or (0,)
            return int(count)

        def server_cpu() -> dict[int, float]:
            spent = cpu_by_process(postgres.server.pid)
            spent.pop(observer.info.backend_pid, None)
            return spent

        yield Line((*program, url), jobs, done, server_cpu)


def drained(line: Line, at_once: int) -> ServerSample:
    """Time one drain and its CPU time. Raise if a job ran twice or is not done."""
    with Companion(*line.worker, line.jobs, at_once) as worker:
        worker.hear()
        before = line.server_cpu()
        began = perf_counter()
        worker.tell("go")
        worker.hear()
        while line.done() < line.jobs:
            if perf_counter() - began > _PATIENCE:
                raise RuntimeError(f"{line.done()} of {line.jobs} jobs are done after {_PATIENCE} seconds")
            Event().wait(_BETWEEN_LOOKS)
        seconds = perf_counter() - began
        after = line.server_cpu()
        worker.tell("stop")
        said = worker.hear()
    if (said["begun"], line.done()) != (line.jobs, line.jobs):
        raise RuntimeError(f"of {line.jobs} jobs {said['begun']} were started and {line.done()} are done")
    server = sum(spent - before.get(process, 0) for process, spent in after.items())
    return ServerSample(seconds, said["cpu_seconds"], 0, line.jobs, 1, server)
