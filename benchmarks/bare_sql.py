"""The baseline: the same rows in the same tables with the same durability, written with apsw alone.

This is the minimum that any queue on this schema must do: no checks, no threads, no event loop, and one transaction per
batch. Known values are prepared as tuples, and constant columns are literals in the statement. `agreement.py` checks
that it leaves the same rows as the product.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from benchmarks.workload import QUEUE, TYPE, new_ids, payload_of

Row = tuple[Any, ...]
Payload = Callable[[int], bytes]

LEASE = 30_000_000

_INSERT_JOB = """
INSERT INTO jobs (
    uid, id, queue, type, payload, tags, options, priority, lifo, delay, expires_at, timeout, max_attempts,
    max_crashes, idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total,
    created_at, deps_left, status, run_at, eligible_at, sort_key, blocked, executions, retry_count, crashes, epoch,
    job_seq, updated_at, started_at, finalized_at, last_retry_at, assigned_at, assignee_id, lease_owner, lease_token,
    lease_expires_at, result, error_message, progress, checkpoint
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, '{}', 0, 0, NULL, NULL, NULL, 0,
    NULL, NULL, NULL, NULL, 'wait', NULL, 0,
    ?7, 0, 'INITIAL_PENDING', NULL, ?7, ?7, 0, 0, 0, 0, 0,
    1, ?7, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, '', NULL, NULL
)"""

_INSERT_TAG = "INSERT INTO job_tags VALUES (?, ?, ?, 0, ?, 1, 'INITIAL_PENDING', 0)"

_INSERT_ADDED = """
INSERT INTO job_events VALUES (?, ?, ?, 1, ?, ?, 'job.added', NULL, 'INITIAL_PENDING', 0, 0, NULL, '', ?, NULL)"""

_FOR_A_WORKER = """
SELECT uid, id, type, payload, tags, options, timeout, max_attempts, executions, retry_count, crashes, epoch, job_seq,
    status, created_at
FROM jobs"""

_CLAIMABLE = f"""{_FOR_A_WORKER} INDEXED BY jobs_claimable
WHERE queue = ? AND priority = 0 AND sort_key <= ?
AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0
ORDER BY sort_key, uid LIMIT ?"""

_TAGGED_CLAIMABLE = f"""{_FOR_A_WORKER} WHERE uid IN (
    SELECT uid FROM job_tags INDEXED BY job_tags_claimable
    WHERE tag = ? AND queue = ? AND priority = 0 AND sort_key <= ? AND claimable = 1 ORDER BY sort_key, uid LIMIT ?
) ORDER BY sort_key, uid"""

_CLAIM = """
UPDATE jobs SET status = 'RUNNING', executions = executions + 1, epoch = epoch + 1, job_seq = job_seq + 1,
    updated_at = ?1, started_at = coalesce(started_at, ?1), assigned_at = ?1, assignee_id = ?2, lease_owner = ?2,
    lease_token = ?3, lease_expires_at = ?4
WHERE uid IN (SELECT value FROM json_each(?5))"""

_INSERT_ACTIVE = """
INSERT INTO job_events VALUES (?, ?, ?, ?, ?, ?, 'job.active', ?, 'RUNNING', ?, ?, ?, '', ?, NULL)"""

_COMPLETE = """
UPDATE jobs SET status = 'COMPLETED', result = ?1, error_message = '', job_seq = job_seq + 1, updated_at = ?2,
    finalized_at = ?2, lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
WHERE uid = ?3 AND epoch = ?4 AND lease_token = ?5 AND status IN ('RUNNING', 'CANCELLING') AND lease_expires_at > ?2"""

_INSERT_COMPLETED = """
INSERT INTO job_events VALUES (?, ?, ?, ?, ?, ?, 'job.completed', 'RUNNING', 'COMPLETED', ?, ?, ?, '', ?, NULL)"""

_SAVE_TAG = "UPDATE job_tags SET claimable = 0, status = ? WHERE tag = ? AND uid = ?"

_COUNT = """
INSERT INTO queue_counts VALUES (?, ?, ?, 0)
ON CONFLICT (queue, status) DO UPDATE SET jobs = jobs + excluded.jobs"""


class Batch(NamedTuple):
    """New jobs as rows with the same time."""

    jobs: list[Row]
    tags: list[Row]
    events: list[Row]


class Claimed(NamedTuple):
    """A claimed job: what a worker needs to run and settle it."""

    uid: int
    id: str
    payload: bytes
    tags: tuple[str, ...]
    epoch: int
    job_seq: int
    execution: int
    token: str


def micros_now() -> int:
    """The current time in microseconds, as stored in the schema."""
    return time.time_ns() // 1000  # noqa: TID251  # bare SQL reads the machine's clock


@contextmanager
def new_file(path: Path) -> Iterator[apsw.Connection]:
    """Create a database with the project's schema."""
    folder = files("longshore.backends.sqlite.migrations")
    steps = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("journal_mode", "WAL")
        for name in steps:
            connection.execute(folder.joinpath(name).read_text(encoding="utf-8"))
    with open_file(path) as connection:
        yield connection


@contextmanager
def open_file(path: Path) -> Iterator[apsw.Connection]:
    """Open an existing database with the durability and cache settings of the product."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.pragma("synchronous", "FULL")
        connection.pragma("cache_size", -16_000)
        connection.pragma("temp_store", "MEMORY")
        yield connection


def new_batch(
    first_uid: int, first_event: int, tags_of_jobs: Sequence[tuple[str, ...]], payload: Payload = payload_of
) -> Batch:
    """Rows for new jobs, one per element, numbered from the file's next uid."""
    now = micros_now()
    batch = Batch([], [], [])
    for offset, (job_id, tags) in enumerate(zip(new_ids(len(tags_of_jobs)), tags_of_jobs, strict=True)):
        uid = first_uid + offset
        tags_text = json.dumps(tags) if tags else ""
        batch.jobs.append((uid, job_id, QUEUE, TYPE, payload(offset), tags_text, now))
        batch.tags.extend((tag, uid, QUEUE, now) for tag in tags)
        batch.events.append((first_event + offset, uid, job_id, QUEUE, TYPE, now))
    return batch


class BareQueue:
    """Enqueue, claim and complete, each in one minimal transaction."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        meta: Any = connection.execute("SELECT next_uid, next_event FROM meta").fetchone()
        self.next_uid, self.next_event = meta

    def prepared(
        self,
        batches: int,
        size: int,
        *,
        tags: tuple[str, ...] = (),
        events_per_job: int = 1,
        payload: Payload = payload_of,
    ) -> list[Batch]:
        """Rows for later batches, if each job writes `events_per_job` events before the next batch is enqueued."""
        firsts = range(0, batches * size, size)
        return [
            new_batch(self.next_uid + first, self.next_event + first * events_per_job, [tags] * size, payload)
            for first in firsts
        ]

    def replacement(self, claimed: Sequence[Claimed]) -> Batch:
        """New jobs that replace claimed ones, with the same tags."""
        return new_batch(self.next_uid, self.next_event, [job.tags for job in claimed])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            yield
            execute("UPDATE meta SET next_uid = ?, next_event = ?", (self.next_uid, self.next_event))
            execute("COMMIT")
        except BaseException:
            execute("ROLLBACK")
            raise

    def enqueue(self, batch: Batch) -> None:
        """Store one batch."""
        many = self.connection.executemany
        with self._transaction():
            many(_INSERT_JOB, batch.jobs)
            if batch.tags:
                many(_INSERT_TAG, batch.tags)
            many(_INSERT_ADDED, batch.events)
            self.connection.execute(_COUNT, (QUEUE, "INITIAL_PENDING", len(batch.jobs)))
            self.next_uid += len(batch.jobs)
            self.next_event += len(batch.events)

    def claim(self, worker: str, limit: int, tag: str | None = None) -> list[Claimed]:
        """Claim the first jobs, each with a lease."""
        many = self.connection.executemany
        with self._transaction():
            now, token = micros_now(), secrets.token_hex(16)
            rows = self._first_in_line(now, limit, tag)
            claimed: list[Claimed] = []
            events: list[Row] = []
            left: dict[str, int] = {}
            for number, row in enumerate(rows, start=self.next_event):
                uid, job_id, type_, payload, tags, _, _, _, executions, _, _, epoch, job_seq, status, _ = row
                events.append(
                    (number, uid, job_id, job_seq + 1, QUEUE, type_, status, epoch + 1, executions + 1, worker, now)
                )
                names = tuple(json.loads(tags)) if tags else ()
                claimed.append(Claimed(uid, job_id, payload, names, epoch + 1, job_seq + 1, executions + 1, token))
                left[status] = left.get(status, 0) - 1
            uids = json.dumps([job.uid for job in claimed])
            self.connection.execute(_CLAIM, (now, worker, token, now + LEASE, uids))
            many(_SAVE_TAG, [("RUNNING", tag, job.uid) for job in claimed for tag in job.tags])
            many(_INSERT_ACTIVE, events)
            left["RUNNING"] = len(claimed)
            many(_COUNT, [(QUEUE, status, jobs) for status, jobs in left.items()])
            self.next_event += len(events)
        return claimed

    def _first_in_line(self, now: int, limit: int, tag: str | None) -> list[Any]:
        if tag is None:
            return self.connection.execute(_CLAIMABLE, (QUEUE, now, limit)).fetchall()
        return self.connection.execute(_TAGGED_CLAIMABLE, (tag, QUEUE, now, limit)).fetchall()

    def complete(self, worker: str, claimed: Sequence[Claimed], result: bytes) -> None:
        """Complete claimed jobs, each write fenced by its lease."""
        many = self.connection.executemany
        with self._transaction():
            now = micros_now()
            before = self.connection.total_changes()
            many(_COMPLETE, [(result, now, job.uid, job.epoch, job.token) for job in claimed])
            if self.connection.total_changes() - before != len(claimed):
                raise RuntimeError("a lease was lost")
            many(_SAVE_TAG, [("COMPLETED", tag, job.uid) for job in claimed for tag in job.tags])
            many(
                _INSERT_COMPLETED,
                [
                    (number, job.uid, job.id, job.job_seq + 1, QUEUE, TYPE, job.epoch, job.execution, worker, now)
                    for number, job in enumerate(claimed, start=self.next_event)
                ],
            )
            many(_COUNT, [(QUEUE, "RUNNING", -len(claimed)), (QUEUE, "COMPLETED", len(claimed))])
            self.next_event += len(claimed)
