"""Fills a file with finished and future-dated jobs: one of each by the product, copied by SQL."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import apsw

from benchmarks.workload import QUEUE, RESULT, WORKER, new_job
from longshore.backends.base import Outcome
from longshore.backends.sqlite.backend import SQLiteBackend

_COPIES = "WITH RECURSIVE copies(copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < :copies)"
_ID = "format('%08x-%04x-7000-8000-%012x', {uid} >> 16, {uid} & 65535, {uid})"


async def add_finished_and_future(path: Path, count: int, *, finished: bool = True) -> None:
    """Create a file with `count` finished jobs (or none) and as many that are due tomorrow."""
    async with SQLiteBackend(path) as backend:
        if finished:
            await backend.enqueue_job(new_job(0))
            (job,) = await backend.dequeue_jobs(WORKER, queues=(QUEUE,))
            await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT)])
        await backend.enqueue_job(new_job(1).replace(run_at=timedelta(days=1)))
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "OFF")  # an incomplete file is discarded
    connection.pragma("synchronous", "OFF")
    connection.pragma("cache_size", -400_000)
    connection.execute("BEGIN")
    for uid in _column(connection, "SELECT uid FROM jobs ORDER BY uid"):
        _copy_job(connection, uid, count - 1)
    connection.execute("UPDATE queue_counts SET jobs = jobs * ?", (count,))
    connection.execute(
        "UPDATE meta SET next_uid = (SELECT max(uid) + 1 FROM jobs), next_event = (SELECT max(n) + 1 FROM job_events)"
    )
    connection.execute("COMMIT")
    connection.close()


def _copy_job(connection: apsw.Connection, uid: int, copies: int) -> None:
    (last,) = _column(connection, "SELECT max(uid) FROM jobs")
    new_uid = f"({last} + copy)"
    new_id = _ID.format(uid=new_uid)
    changed = {"uid": new_uid, "id": new_id, "sort_key": "sort_key + copy", "eligible_at": "eligible_at + copy"}
    _copy_row(connection, "jobs", f"uid = {uid}", changed, copies)
    for number in _column(connection, f"SELECT n FROM job_events WHERE job_uid = {uid}"):
        (last,) = _column(connection, "SELECT max(n) FROM job_events")
        changed = {"n": f"{last} + copy", "job_uid": new_uid, "job_id": new_id}
        _copy_row(connection, "job_events", f"n = {number}", changed, copies)


def _copy_row(connection: apsw.Connection, table: str, which: str, changed: dict[str, str], copies: int) -> None:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    values = ", ".join(changed.get(name, name) for name in names)
    statement = f"{_COPIES} INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table}, copies WHERE {which}"
    connection.execute(statement, {"copies": copies})


def _column(connection: apsw.Connection, statement: str) -> list[int]:
    return [value for (value,) in connection.execute(statement)]
