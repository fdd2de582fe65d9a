"""Checks that the product and bare SQL leave the same jobs and events on PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from psycopg.rows import dict_row

from benchmarks.agreement import comparable
from benchmarks.postgres_bare_sql import bare_queue
from benchmarks.postgres_databases import PostgresDatabases
from benchmarks.workload import QUEUE, RESULT, WORKER, new_jobs
from longshore.backends.base import Outcome
from longshore.backends.postgres.backend import PostgresBackend

_BATCH = 60  # enough for the product to choose COPY
_SETTLED = 40
_ROWS = (
    "SELECT * FROM longshore.jobs ORDER BY uid",
    "SELECT * FROM longshore.job_events ORDER BY job_seq, job_uid",
)
_NUMBERS = {"xid": 0, "n": 0, "uid": 0, "job_uid": 0, "last_event_xid": 0}
"""Assigned by the server, with gaps on both sides."""


def check_postgres_agreement(databases: PostgresDatabases) -> None:
    """Raise if jobs or events differ in anything except ids, tokens, times, payloads and sequence numbers."""
    with databases.new() as ours, databases.new() as bare:
        asyncio.run(_by_the_product(ours))
        _by_bare_sql(bare)
        for statement in _ROWS:
            for mine, other in zip(_rows(ours, statement), _rows(bare, statement), strict=True):
                if mine != other:
                    raise RuntimeError(f"bare SQL and the product differ: {other} and {mine}")


async def _by_the_product(url: str) -> None:
    async with PostgresBackend(url) as backend:
        await backend.enqueue_jobs(new_jobs(_BATCH))
        claimed = await backend.dequeue_jobs(WORKER, limit=_SETTLED, queues=(QUEUE,))
        await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in claimed])
        await backend.dequeue_jobs(WORKER, limit=1, queues=(QUEUE,))


def _by_bare_sql(url: str) -> None:
    with bare_queue(url) as queue:
        queue.enqueue(*queue.prepared(1, _BATCH))
        queue.complete(queue.claim(WORKER, _SETTLED), RESULT)
        queue.claim(WORKER, 1)


def _rows(url: str, statement: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        found = connection.execute(statement).fetchall()
    return [{name: comparable(name, value) for name, value in (row | _numbers_of(row)).items()} for row in found]


def _numbers_of(row: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in _NUMBERS.items() if name in row}
