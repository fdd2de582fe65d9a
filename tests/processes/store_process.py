"""A process that uses a store until its input closes, and prints every answer that it got.

Run as `python -m tests.processes.store_process ROLE URL NAME [MORE]`. Every line is one unbuffered write, so that a
kill never leaves half a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from time import monotonic, process_time
from typing import Any, TypeVar

import apsw
import psycopg

from longshore.backends.base import Backend, Outcome, WorkerInfo
from longshore.backends.connect import connect
from longshore.backends.postgres import schema
from longshore.backends.postgres.connection import Server
from longshore.backends.sql.statements import Migration
from longshore.backends.sqlite import connection as sqlite_connection
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable, LongshoreError
from longshore.core.job import Job, Lease

Answer = TypeVar("Answer")

SHORT_LEASE, LONG_LEASE = 3.0, 60.0
"""Leases in seconds: after the short one the jobs of a killed process are reclaimed; the long one never expires."""


def emit(what: str, *values: Any) -> None:
    """Write one line, unbuffered."""
    os.write(1, (json.dumps([what, *values]) + "\n").encode())


class Stop:
    """Set when the input ends."""

    def __init__(self) -> None:
        self._over = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        sys.stdin.read()
        self._over.set()

    def __bool__(self) -> bool:
        return self._over.is_set()

    async def within(self, seconds: float) -> bool:
        """Wait for it up to this many seconds, and return whether it was set."""
        return await asyncio.to_thread(self._over.wait, seconds)


async def enqueue(backend: Backend, name: str, stop: Stop, most: int | None) -> None:
    """Enqueue jobs alone and in batches, as fast as the store allows."""
    for number in count() if most is None else range(most):
        if stop:
            return
        batch = 1 if number % 3 else 4
        ids = [f"{name}-{number}-{place}" for place in range(batch)]
        emit("trying", ids)
        emit("enqueued", await backend.enqueue_jobs([Job(id=job_id, type="t", queue="q") for job_id in ids]))


async def work(backend: Backend, name: str, stop: Stop, lease: float) -> None:
    """Claim jobs and settle most of them; sweep, because other processes may have been killed."""
    for number in count():
        if stop:
            return
        if number % 20 == 0:
            await backend.reclaim_expired_leases()
        jobs = await backend.dequeue_jobs(name, limit=3, lease=lease)
        if not jobs:
            await backend.wait_for_change(0.05)
            continue
        emit("claimed", [[job.id, job.epoch] for job in jobs])
        verbs = ("complete", "complete", "fail") if number % 7 == 0 else ("complete",) * 3
        outcomes = [
            Outcome(job.id, job.lease, verb, error="now and then" if verb == "fail" else "")  # type: ignore[arg-type]  # one of the verbs
            for job, verb in zip(jobs, verbs, strict=False)
        ]
        report = await backend.settle_jobs(outcomes)
        epochs = {job.id: job.epoch for job in jobs}
        emit("settled", [[job_id, epochs[job_id], status] for job_id, status in report.settled.items()])
        for job_id, error in report.refused.items():
            emit("refused", job_id, epochs[job_id], type(error).__name__)


async def both(url: str, name: str, stop: Stop) -> None:
    """Run three writers and two workers in one process."""
    async with connect(url) as backend, asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(enqueue(backend, f"{name}e{number}", stop, None))
        for number in range(2):
            group.create_task(work(backend, f"{name}w{number}", stop, SHORT_LEASE))


async def writer(url: str, name: str, stop: Stop, most: int) -> None:
    async with connect(url) as backend:
        await enqueue(backend, name, stop, most)


async def claimer(url: str, name: str, stop: Stop) -> None:
    async with connect(url) as backend:
        await work(backend, name, stop, LONG_LEASE)


# -- roles that continue after any error of the store, as a worker must


async def insist(stop: Stop, verb: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """Call until there is an answer, with a short pause after each refusal; None if the input ended first."""
    while not stop:
        try:
            return await verb()
        except BackendUnavailable as error:
            emit("unavailable", str(error), process_time(), monotonic())
            await stop.within(0.1)
    return None


async def add_steadily(backend: Backend, name: str, stop: Stop) -> None:
    """Add one job after another; without an answer, again under another id and the same idempotency key."""
    for number in count():
        tries = count()

        async def add(number: int = number, tries: Iterator[int] = tries) -> str:
            job = Job(id=f"{name}-{number}-{next(tries)}", type="t", queue="q", idempotency_key=f"{name}-{number}")
            emit("trying", [job.id])
            return await backend.enqueue_job(job)

        added = await insist(stop, add)
        if added is None:
            return
        emit("enqueued", [added])
        await stop.within(0.01)


class Worker:
    """Claims, renews, settles and sweeps, each in its own task. It claims only after a notification, never by polling.

    Sometimes it holds what it claimed for longer than a lease lasts.
    """

    def __init__(self, backend: Backend, name: str, stop: Stop, lease: float, sweep: float) -> None:
        self._backend = backend
        self._name = name
        self._stop = stop
        self._lease = lease
        self._sweep = sweep
        self._held: dict[str, Lease] = {}

    async def work(self) -> None:
        """Run until the input ends."""
        async with asyncio.TaskGroup() as group:
            for part in (self._claim, self._renew, self._reclaim):
                group.create_task(part())

    async def _claim(self) -> None:
        stopping = asyncio.create_task(self._stop.within(LONG_LEASE))
        for number in count():
            if self._stop:
                break
            jobs = await insist(self._stop, lambda: self._backend.dequeue_jobs(self._name, limit=3, lease=self._lease))
            if jobs:
                await self._do(jobs, 1.5 * self._lease if number % 25 == 24 else 0.02)
            elif jobs is not None:
                emit("waiting")
                waiting = asyncio.create_task(insist(self._stop, lambda: self._backend.wait_for_change(LONG_LEASE)))
                await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        stopping.cancel()

    async def _do(self, jobs: list[Job], seconds: float) -> None:
        emit("claimed", [[job.id, job.epoch] for job in jobs])
        self._held = {job.id: job.lease for job in jobs if job.lease}
        await self._stop.within(seconds)
        outcomes = [Outcome(job.id, job.lease) for job in jobs if job.id in self._held]
        report = await insist(self._stop, lambda: self._backend.settle_jobs(outcomes)) if outcomes else None
        self._held = {}
        epochs = {job.id: job.epoch for job in jobs}
        if report is not None:
            emit("settled", [[job_id, epochs[job_id], status] for job_id, status in report.settled.items()])
            for job_id, error in report.refused.items():
                emit("refused", job_id, epochs[job_id], type(error).__name__)

    async def _renew(self) -> None:
        while not await self._stop.within(self._lease / 4):
            asked = self._held
            await insist(self._stop, lambda: self._backend.heartbeat_worker(WorkerInfo(id=self._name)))
            renewed = await insist(self._stop, lambda asked=asked: self._backend.extend_leases(asked, self._lease))  # type: ignore[misc]  # a lambda's default has no type
            if renewed is not None and self._held is asked:
                for job_id in asked.keys() - renewed.keys():
                    del asked[job_id]
                emit("renewed", sorted(renewed))

    async def _reclaim(self) -> None:
        while not await self._stop.within(self._sweep):
            swept = await insist(self._stop, self._backend.reclaim_expired_leases)
            if swept is not None:
                emit("swept", [job.id for job in swept])


async def steady_writer(url: str, name: str, stop: Stop) -> None:
    async with connect(url) as backend:
        await add_steadily(backend, name, stop)


async def steady_worker(url: str, name: str, stop: Stop, lease: float, sweep: float) -> None:
    async with connect(url, poll_seconds=LONG_LEASE) as backend:
        await backend.wait_for_change(0)  # it starts to listen here, however much there is to do
        await Worker(backend, name, stop, lease, sweep).work()


# -- roles that do one thing


def file_of(url: str) -> SQLiteBackend:
    """Return the backend of a file, for operations on files only."""
    backend = connect(url)
    assert isinstance(backend, SQLiteBackend)
    return backend


def holder(url: str) -> None:
    """Block all other writers until the input ends."""
    connection = file_of(url).new_connection()
    connection.execute("BEGIN EXCLUSIVE")
    emit("held")
    sys.stdin.read()
    connection.execute("COMMIT")
    connection.close()
    emit("let go")


async def waiter(url: str) -> None:
    """Wait for one change."""
    async with connect(url) as backend:
        waiting = asyncio.create_task(backend.wait_for_change(20))
        await backend.count_jobs()  # by now the wait has started
        emit("waiting")
        emit("changed", await waiting)


SQLITE_MIGRATIONS = (
    *sqlite_connection.MIGRATIONS,
    Migration(
        len(sqlite_connection.MIGRATIONS) + 1,
        "for_tests.sql",
        "ALTER TABLE jobs ADD COLUMN note TEXT; UPDATE jobs SET note = id; CREATE INDEX jobs_by_note ON jobs (note);",
    ),
)
"""All migrations and one for tests, so that a process can be killed between two migrations."""


def migrator(url: str, dies_at: int) -> None:
    """Create the file, and be killed before one statement; 0 counts the statements instead."""
    statements = 0

    def before_each(_cursor: object, _statement: str, _values: object) -> bool:
        nonlocal statements
        statements += 1
        if statements == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.set_exec_trace(before_each)

    apsw.connection_hooks.append(watch)
    sqlite_connection.MIGRATIONS = SQLITE_MIGRATIONS
    file_of(url).new_connection().close()
    emit("statements", statements)


POSTGRES_MIGRATIONS = (
    *schema.MIGRATIONS,
    Migration(
        len(schema.MIGRATIONS) + 1,
        "for_tests.sql",
        "ALTER TABLE {schema}.jobs ADD COLUMN note text;\n"
        "UPDATE {schema}.jobs SET note = id;\n"
        "CREATE INDEX jobs_by_note ON {schema}.jobs (note);\n",
    ),
)
"""The same for PostgreSQL."""


def postgres_migrator(url: str, dies_at: int) -> None:
    """Do the same for a PostgreSQL schema, whose migrations are split into their statements."""
    statements = 0
    execute = psycopg.Connection.execute

    def one_by_one(connection: psycopg.Connection[Any], text: str, *values: Any) -> psycopg.Cursor[Any]:
        nonlocal statements
        for part in filter(None, map(str.strip, re.split(r";\s*\n", text))):
            statements += 1
            if statements == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            cursor = execute(connection, part, *values)
        return cursor

    psycopg.Connection.execute = one_by_one  # type: ignore[method-assign,assignment]  # the injected fault
    schema.MIGRATIONS = POSTGRES_MIGRATIONS
    schema.prepare(Server(url), "longshore")
    emit("statements", statements)


def forker(url: str, jobs: int) -> None:
    """Fork with open connections; the child tries the old backend, then its own, and exits normally."""

    async def use(backend: Backend, who: str, calls: int) -> None:
        async def add(number: int) -> None:
            await backend.enqueue_job(Job(id=f"{who}{number}", type="t"))

        await asyncio.gather(*map(add, range(calls)))
        await backend.wait_for_change(0)

    backend = connect(url)
    asyncio.run(use(backend, "before", 20))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(use(backend, "child", 1))
        except BackendUnavailable as error:
            emit("refused", str(error))
        asyncio.run(backend.close())
        own = connect(url)
        asyncio.run(use(own, "child", 20))
        asyncio.run(own.close())
        emit("child is done")
        sys.exit()  # with all exit handlers
    _, status = os.waitpid(child, 0)
    emit("child ended", os.waitstatus_to_exitcode(status))
    asyncio.run(use(backend, "after", jobs))
    asyncio.run(backend.close())
    emit("parent is done")


def main() -> None:
    role, url, name, *more = sys.argv[1:]
    try:
        if role == "holder":
            holder(url)
        elif role == "both":
            asyncio.run(both(url, name, Stop()))
        elif role == "writer":
            asyncio.run(writer(url, name, Stop(), int(more[0])))
        elif role == "claimer":
            asyncio.run(claimer(url, name, Stop()))
        elif role == "waiter":
            asyncio.run(waiter(url))
        elif role == "steady writer":
            asyncio.run(steady_writer(url, name, Stop()))
        elif role == "steady worker":
            asyncio.run(steady_worker(url, name, Stop(), float(more[0]), float(more[1])))
        elif role == "postgres migrator":
            postgres_migrator(url, int(more[0]))
        elif role == "forker":
            forker(url, int(more[0]))
        elif role == "migrator":
            migrator(url, int(more[0]))
    except* LongshoreError as errors:
        for error in errors.exceptions:
            emit("error", type(error).__name__, str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
