"""The baseline on PostgreSQL: the same jobs and events in the same tables with the same indexes, by psycopg alone.

This is the minimum that any queue on this schema must do: prepared tuples for COPY, one statement for a claim and one
for a completion, each in a separate transaction, on one connection with psycopg's defaults. It keeps no counts.
`postgres_agreement.py` checks that it leaves the same jobs and events as the product.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from benchmarks.bare_sql import LEASE, Row, micros_now
from benchmarks.postgres_databases import Connection
from benchmarks.workload import QUEUE, TYPE, new_ids, payload_of

_NEW_UIDS = "SELECT nextval('longshore.job_uids') FROM generate_series(1, %s)"

_COPY_JOBS = """
COPY longshore.jobs (
    uid, id, queue, type, payload, options, priority, lifo, max_attempts, on_dependency_failure, deps_total, created_at,
    deps_left, status, eligible_at, sort_key, job_seq, updated_at, tags
) FROM STDIN"""

_COPY_EVENTS = """
COPY longshore.job_events (
    job_uid, job_id, job_seq, queue, type, event, to_status, epoch, execution, actor, occurred_at
) FROM STDIN"""

_TELL = """
INSERT INTO longshore.job_events (
    job_uid, job_id, job_seq, queue, type, event, from_status, to_status, epoch, execution, assignee_id, actor,
    occurred_at
)"""

_CLAIM = f"""
WITH chosen AS MATERIALIZED (
    SELECT uid FROM longshore.jobs
    WHERE queue = %(queue)s AND priority = 0 AND sort_key <= %(now)s
    AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND NOT blocked
    ORDER BY sort_key, uid LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE longshore.jobs SET status = 'RUNNING', executions = executions + 1, epoch = epoch + 1,
        job_seq = job_seq + 1, updated_at = %(now)s, started_at = coalesce(started_at, %(now)s), assigned_at = %(now)s,
        assignee_id = %(worker)s, lease_owner = %(worker)s, lease_token = %(token)s, lease_expires_at = %(until)s
    WHERE uid = ANY (ARRAY(SELECT uid FROM chosen))
    RETURNING uid, id, type, payload, tags, options, timeout, max_attempts, executions, retry_count, crashes, epoch,
        job_seq, created_at
),
told AS (
    {_TELL}
    SELECT uid, id, job_seq, %(queue)s, type, 'job.active', 'INITIAL_PENDING', 'RUNNING', epoch, executions,
        %(worker)s, '', %(now)s
    FROM claimed
)
SELECT * FROM claimed"""

# coalesce keeps the planner from the index of leased jobs, which its statistics take for empty
_COMPLETE = f"""
WITH completed AS (
    UPDATE longshore.jobs SET status = 'COMPLETED', result = %(result)s, error_message = '', job_seq = job_seq + 1,
        updated_at = %(now)s, finalized_at = %(now)s, lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
    WHERE uid = ANY (%(uids)s) AND coalesce(lease_token, '') = %(token)s AND lease_expires_at > %(now)s
    RETURNING uid, id, job_seq, type, epoch, executions, assignee_id
)
{_TELL}
SELECT uid, id, job_seq, %(queue)s, type, 'job.completed', 'RUNNING', 'COMPLETED', epoch, executions, assignee_id, '',
    %(now)s
FROM completed"""


class Batch(NamedTuple):
    """New jobs as rows with the same time."""

    jobs: list[Row]
    events: list[Row]


class Claimed(NamedTuple):
    """The rows of one claim, and their lease token."""

    rows: list[Row]
    token: str


class BareQueue:
    """Enqueue, claim and complete, each in one minimal transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def prepared(self, batches: int, size: int) -> list[Batch]:
        """Rows for later batches."""
        with self.connection.transaction():
            uids = [uid for (uid,) in self.connection.execute(_NEW_UIDS, (batches * size,))]
        return [_batch(uids[start : start + size]) for start in range(0, len(uids), size)]

    def enqueue(self, batch: Batch) -> None:
        """Store one batch."""
        with self.connection.transaction():
            self._copy(_COPY_JOBS, batch.jobs)
            self._copy(_COPY_EVENTS, batch.events)

    def _copy(self, statement: str, rows: list[Row]) -> None:
        with self.connection.cursor().copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def claim(self, worker: str, limit: int) -> Claimed:
        """Claim the first jobs, each with a lease."""
        now, token = micros_now(), secrets.token_hex(16)
        values = {"queue": QUEUE, "now": now, "limit": limit, "worker": worker, "token": token, "until": now + LEASE}
        with self.connection.transaction():
            return Claimed(self.connection.execute(_CLAIM, values).fetchall(), token)

    def complete(self, claimed: Claimed, result: bytes) -> None:
        """Complete claimed jobs, fenced by their lease."""
        uids = [row[0] for row in claimed.rows]
        values = {"queue": QUEUE, "now": micros_now(), "uids": uids, "token": claimed.token, "result": result}
        with self.connection.transaction():
            if self.connection.execute(_COMPLETE, values).rowcount != len(uids):
                raise RuntimeError("a lease was lost")


@contextmanager
def bare_queue(url: str) -> Iterator[BareQueue]:
    """Bare SQL on a separate connection."""
    with psycopg.connect(url) as connection:
        yield BareQueue(connection)


def _batch(uids: Sequence[int]) -> Batch:
    now = micros_now()
    batch = Batch([], [])
    for uid, job_id in zip(uids, new_ids(len(uids)), strict=True):
        payload = payload_of(uid)
        job: tuple[Any, ...] = (uid, job_id, QUEUE, TYPE, payload, "{}", 0, False, 0, "wait", 0, now)
        batch.jobs.append((*job, 0, "INITIAL_PENDING", now, now, 1, now, ""))
        batch.events.append((uid, job_id, 1, QUEUE, TYPE, "job.added", "INITIAL_PENDING", 0, 0, "", now))
    return batch
