"""Opens a store as the next process would, and checks it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.postgres.backend import PostgresBackend
from longshore.backends.postgres.schema import quoted
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent
from tests.backends.upkeep import integrity_faults, internal_faults
from tests.checker import History


async def all_jobs(backend: Backend) -> list[Job]:
    """All stored jobs."""
    jobs: list[Job] = []
    cursor = None
    while True:
        page = await backend.list_jobs(JobFilter(), limit=500, cursor=cursor)
        jobs += page.items
        cursor = page.next_cursor
        if cursor is None:
            return jobs


async def all_events(backend: Backend) -> list[JobEvent]:
    """The whole event log."""
    found: list[JobEvent] = []
    while events := await backend.read_events(found[-1].cursor if found else None):
        found += events
    return found


def faults_inside(backend: Backend) -> list[str]:
    """What SQLite reports about its file, and errors in the store's counts and indexes."""
    if isinstance(backend, PostgresBackend):
        with backend._server.connect() as session:
            session.execute(f"SET search_path = {quoted(backend.schema)}")
            return internal_faults(session)
    assert isinstance(backend, SQLiteBackend)
    connection = backend.new_connection()
    try:
        return integrity_faults(connection) + internal_faults(connection)
    finally:
        connection.close()


async def audit(backend: Backend, clock: HeldClock | None = None) -> tuple[list[Job], History]:
    """All jobs and their history, after the store, its counts and the history were checked."""
    faults = faults_inside(backend)
    assert not faults, "\n".join(faults)
    jobs = await all_jobs(backend)
    history = History()
    history.feed(await all_events(backend))
    if clock is not None:
        history.at_rest(jobs, clock.now(), await backend.count_jobs())
    history.verify()
    return jobs, history


async def audit_at(url: str, clock: HeldClock | None = None) -> tuple[dict[str, Job], History]:
    """The same for the store at an address, with the jobs by id."""
    async with connect(url, clock=clock) as backend:
        jobs, history = await audit(backend, clock)
        return {job.id: job for job in jobs}, history


def jobs_after_a_restart(path: Path, clock: HeldClock) -> dict[str, Job]:
    """The stored jobs by id, after the file was checked."""

    async def look() -> dict[str, Job]:
        async with SQLiteBackend(path, clock=clock) as backend:
            jobs, _ = await audit(backend, clock)
            # and it still works
            await backend.enqueue_job(Job(id="after the restart", type="t"))
            return {job.id: job for job in jobs}

    return asyncio.run(look())
