"""Opens a queue's file as the next process would, and looks whether all is well with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.clock import HeldClock
from longshore.core.filtering import JobFilter
from longshore.core.job import Job, JobEvent
from tests.backends.upkeep import integrity_faults, internal_faults
from tests.checker import History


async def all_jobs(backend: SQLiteBackend) -> list[Job]:
    """Every job stored."""
    jobs: list[Job] = []
    cursor = None
    while True:
        page = await backend.list_jobs(JobFilter(), limit=500, cursor=cursor)
        jobs += page.items
        cursor = page.next_cursor
        if cursor is None:
            return jobs


async def all_events(backend: SQLiteBackend) -> list[JobEvent]:
    """The whole log."""
    found: list[JobEvent] = []
    while events := await backend.read_events(found[-1].cursor if found else None):
        found += events
    return found


async def audit(backend: SQLiteBackend, clock: HeldClock | None = None) -> tuple[list[Job], History]:
    """All jobs and their history, after SQLite, our bookkeeping and the history were found in order."""
    connection = backend.new_connection()
    try:
        faults = integrity_faults(connection) + internal_faults(connection)
        assert not faults, "\n".join(faults)
    finally:
        connection.close()
    jobs = await all_jobs(backend)
    history = History()
    history.feed(await all_events(backend))
    if clock is not None:
        history.at_rest(jobs, clock.now(), await backend.count_jobs())
    history.verify()
    return jobs, history


def jobs_after_a_restart(path: Path, clock: HeldClock) -> dict[str, Job]:
    """What is stored, by id, once everything about the file was found in order."""

    async def look() -> dict[str, Job]:
        async with SQLiteBackend(path, clock=clock) as backend:
            jobs, _ = await audit(backend, clock)
            # and it goes on working
            await backend.enqueue_job(Job(id="after the restart", type="t"))
            return {job.id: job for job in jobs}

    return asyncio.run(look())
