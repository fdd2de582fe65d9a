"""Readers of PostgreSQL's event log, waiting callers and open transactions, for several tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import psycopg

from longshore.backends.base import Backend
from longshore.backends.engine import TransactionalBackend
from longshore.core.job import JobEvent

PATIENCE = 20
"""Seconds after which something that should happen at once has not happened."""
AT_ONCE = 5
"""Seconds that count as at once on a busy machine; a caller that waits for an open transaction waits forever."""


async def read_on(backend: Backend, after: str | None = None, limit: int = 1000) -> list[JobEvent]:
    """All events that a reader sees now, page by page."""
    found: list[JobEvent] = []
    while events := await backend.read_events(found[-1].cursor if found else after, limit):
        found += events
    return found


async def read_until(backend: Backend, count: int, after: str | None = None, limit: int = 1000) -> list[JobEvent]:
    """The same, until it has seen `count`: a hint that is being sent may hide the newest for a moment."""
    until = perf_counter() + PATIENCE
    found = await read_on(backend, after, limit)
    while len(found) < count:
        assert perf_counter() < until, f"sees {len(found)} of {count} events"
        found += await read_on(backend, found[-1].cursor if found else after, limit)
    return found


@contextmanager
def writing(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has written and stays open; rolled back at the end unless it was committed."""
    connection = psycopg.connect(url)
    try:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection
    finally:
        connection.rollback()
        connection.close()


async def waits_for_news(backend: Backend, after: str | None = None) -> asyncio.Task[bool]:
    """A caller that waits for a change and has read everything before; returns once it really waits."""
    assert isinstance(backend, TransactionalBackend)
    while await backend.wait_for_change(0.2, after):
        pass
    task = asyncio.create_task(backend.wait_for_change(PATIENCE, after))
    while not backend._signal.waiting:
        assert not task.done(), "did not wait"
        await asyncio.sleep(0)
    return task


async def somebody_waits_for_a_lock(url: str) -> None:
    """Return once a session of this database waits for another."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE), await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while await (await connection.execute(waiting)).fetchone() is None:
            pass
