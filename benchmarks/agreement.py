"""Checks that the product and bare SQL leave the same rows in every table after the same steps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw

from benchmarks import bare_sql
from benchmarks.bare_sql import BareQueue
from benchmarks.databases import Databases
from benchmarks.workload import EVERY, HALF, QUEUE, RESULT, WORKER, new_job
from longshore.backends.base import Outcome
from longshore.backends.sqlite.backend import SQLiteBackend

_BATCH = 6
_TAGS = (EVERY, HALF)
_A_MOMENT = 10**15
"""Only times in microseconds are as large as this."""
_OF_THE_MACHINE = ("boot_id", "clock_wall", "clock_since_boot", "mark")
"""Only the product writes these: the machine's clocks, and the mark of an open file."""


def check_agreement(databases: Databases) -> None:
    """Raise if the tables differ in anything except ids, tokens, times and payloads."""
    with databases.scratch() as ours, databases.scratch() as bare:
        asyncio.run(_by_the_product(ours))
        _by_bare_sql(bare)
        with bare_sql.open_file(ours) as first, bare_sql.open_file(bare) as second:
            for table in _tables(first):
                mine, other = _rows(first, table), _rows(second, table)
                if mine != other:
                    raise RuntimeError(f"bare SQL and the product differ in {table}: {other} and {mine}")


async def _by_the_product(path: Path) -> None:
    async with SQLiteBackend(path) as backend:
        for tags in ((), _TAGS):
            await backend.enqueue_jobs([new_job(number, tags=tags) for number in range(_BATCH)])
        claimed = await backend.dequeue_jobs(WORKER, limit=_BATCH + 2, queues=(QUEUE,))
        await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in claimed[1:]])
        await backend.dequeue_jobs(WORKER, [HALF], 2, queues=(QUEUE,))


def _by_bare_sql(path: Path) -> None:
    with bare_sql.new_file(path) as connection:
        queue = BareQueue(connection)
        for tags in ((), _TAGS):
            queue.enqueue(queue.prepared(1, _BATCH, tags=tags)[0])
        claimed = queue.claim(WORKER, _BATCH + 2)
        queue.complete(WORKER, claimed[1:], RESULT)
        queue.claim(WORKER, 2, HALF)


def _tables(connection: apsw.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]


def _rows(connection: apsw.Connection, table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    return [{name: comparable(name, value) for name, value in zip(names, row, strict=True)} for row in cursor]


def comparable(name: str, value: object) -> object:
    """The value of a column, or a placeholder if it differs in every run."""
    if name in _OF_THE_MACHINE:
        return "…"
    if name in ("id", "job_id", "lease_token", "log", "payload") and value is not None:
        return "…"
    return "a moment" if isinstance(value, int) and value > _A_MOMENT else value
