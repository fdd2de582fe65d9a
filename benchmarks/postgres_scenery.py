"""Fills a database with many jobs: one by the product, with its first event, copied by SQL on the server."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg

from benchmarks.postgres_databases import SCHEMA, Connection
from benchmarks.workload import QUEUE, RESULT, WORKER, new_job
from longshore.backends.base import Outcome
from longshore.backends.postgres.backend import PostgresBackend

# copies are ordered before the original, a microsecond apart; their ids contain their time, as ours do
_COPIES = """
CREATE TEMPORARY TABLE copies ON COMMIT DROP AS
SELECT copy, uid, %(sort_key)s - %(count)s + copy AS at, format(
    '%%s-%%s-7%%s-8000-%%s', substr(stamp, 1, 8), substr(stamp, 9), lpad(to_hex(copy %% 4096), 3, '0'),
    lpad(to_hex(uid), 12, '0')
) AS id
FROM (
    SELECT copy, nextval('longshore.job_uids') AS uid,
        lpad(to_hex((%(sort_key)s - %(count)s + copy) / 1000), 12, '0') AS stamp
    FROM generate_series(1, %(count)s) AS copy
) AS numbered"""
_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s AND column_name NOT IN ('xid', 'n') ORDER BY ordinal_position"""


def add_waiting(url: str, count: int) -> None:
    """Add `count` waiting jobs."""
    _multiply(url, asyncio.run(_a_job(url, finished=False)), count - 1)


def add_future(url: str, count: int) -> None:
    """Add `count` jobs that are due tomorrow."""
    _multiply(url, asyncio.run(_a_job(url, finished=False, run_at=timedelta(days=1))), count - 1)


def add_finished(url: str, count: int) -> None:
    """Add `count` completed jobs."""
    _multiply(url, asyncio.run(_a_job(url, finished=True)), count - 1)


async def _a_job(url: str, *, finished: bool, run_at: timedelta | None = None) -> str:
    async with PostgresBackend(url, pool_size=1) as backend:
        job_id = await backend.enqueue_job(new_job(0).replace(run_at=run_at))
        if finished:
            (job,) = await backend.dequeue_jobs(WORKER, queues=(QUEUE,))
            await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT)])
        return job_id


def _multiply(url: str, job_id: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            sort_key, status = connection.execute(
                "SELECT sort_key, status FROM longshore.jobs WHERE id = %s", (job_id,)
            ).fetchone() or (0, "")
            connection.execute(_COPIES, {"sort_key": sort_key, "count": count})
            moved = {"uid": "copies.uid", "id": "copies.id", "sort_key": "copies.at", "eligible_at": "copies.at"}
            _copy_rows(connection, "jobs", "id = %s", job_id, moved)
            moved = {"job_uid": "copies.uid", "job_id": "copies.id"}
            _copy_rows(connection, "job_events", "job_id = %s AND job_seq = 1", job_id, moved)
            connection.execute(
                "INSERT INTO longshore.queue_counts (queue, status, jobs, retries) VALUES (%s, %s, %s, 0)",
                (QUEUE, status, count),
            )
        # no VACUUM: right after a bulk enqueue it has not run yet, and plans depend on it
        connection.execute("ANALYZE longshore.jobs, longshore.job_events, longshore.queue_counts")


def _copy_rows(connection: Connection, table: str, which: str, job_id: str, changed: dict[str, str]) -> None:
    names = [name for (name,) in connection.execute(_COLUMNS, (SCHEMA, table))]
    values = ", ".join(changed.get(name, f"original.{name}") for name in names)
    connection.execute(
        f"INSERT INTO longshore.{table} ({', '.join(names)}) SELECT {values} "
        f"FROM (SELECT * FROM longshore.{table} WHERE {which}) AS original CROSS JOIN copies ORDER BY copies.uid",
        (job_id,),
    )
