"""The port on SQLite: one write transaction on the writer's connection, its rows sent in batches."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import apsw

from longshore.backends.contract import WorkerInfo
from longshore.backends.rows import schedule_of, schedule_text, worker_text
from longshore.backends.sqlite.line import SQLiteLine
from longshore.backends.sqlite.statements import SQL
from longshore.backends.sqlite.view import STATUS, Row, tags_text
from longshore.backends.transaction import KEEP_WORKERS, KEY_TTL, Edge
from longshore.core.change import Change, EventRow
from longshore.core.cron import Schedule
from longshore.core.errors import DuplicateJob
from longshore.core.lifecycle import ELIGIBLE, JobStatus
from longshore.core.moments import from_micros, to_micros
from longshore.core.record import Record

_new_columns = attrgetter(
    "uid", "id", "queue", "type", "payload", "options", "priority", "lifo", "delay", "expires_at", "timeout",
    "max_attempts", "max_crashes", "idempotency_key", "concurrency_key", "parent_id", "on_dependency_failure",
    "schedule_id", "deps_total", "created_at", "deps_left", "status", "run_at", "eligible_at", "place", "job_seq",
    "updated_at",
)  # fmt: skip
_saved_columns = attrgetter(
    "deps_left", "status", "run_at", "eligible_at", "place", "parked", "executions", "retry_count", "crashes", "epoch",
    "job_seq", "updated_at", "started_at", "finalized_at", "last_retry_at", "assigned_at", "assignee_id",
    "lease_owner", "lease_token", "lease_expires_at", "result", "error_message", "uid",
)  # fmt: skip


_WORTH_A_STATEMENT = 4
"""So many jobs that complete with the same result are written together; fewer are not worth the grouping."""
_WALKED_AT_ONCE = 10_000
"""Events one transaction walks over when it prunes: the other queues' have to be passed, too."""


class ChangedUnderneath(RuntimeError):
    """A row was not the version that was read, which inside a write transaction cannot be: all of it is taken back."""


class SQLiteTransaction(SQLiteLine):
    """Lives as long as its connection; `begin` and `finish` frame each transaction, `now` is set for each verb."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self.now = 0
        self._next_uid = 0
        self._next_event = 0
        self._first_of_both = (0, 0)
        self.news = False

    def begin(self) -> None:
        """Reads where uids and events go on; other processes may have taken some since."""
        self.news = False
        ((_, *numbers),) = self._rows(SQL.meta)
        self._next_uid, self._next_event = numbers
        self._first_of_both = (self._next_uid, self._next_event)

    def finish(self) -> None:
        """Writes back where they go on from here."""
        if self._first_of_both != (self._next_uid, self._next_event):
            self.news = True
            self._connection.execute(SQL.save_counters, (self._next_uid, self._next_event))

    # -- jobs

    def jobs_by_id(self, job_ids: Sequence[str]) -> dict[str, Record]:
        if len(job_ids) == 1:
            record = self.job(job_ids[0])
            return {} if record is None else {record.id: record}
        rows = self._connection.execute(SQL.jobs_by_ids, (json.dumps(job_ids),))
        return {record.id: record for record in self._records(rows)}

    def jobs_by_uid(self, uids: Sequence[int]) -> dict[int, Record]:
        return {record.uid: record for record in self._records(self._rows(SQL.jobs_by_uids, json.dumps(uids)))}

    def jobs_with_tags(self, tags: Sequence[str], queue: str | None) -> list[Record]:
        uids = [uid for (uid,) in self._rows(SQL.uids_with_tags, tags[0], queue, json.dumps(list(tags[1:])))]
        return list(self.jobs_by_uid(uids).values())

    def jobs_held(self, owner: str | None, queue: str | None) -> list[Record]:
        if owner is not None:
            held = self._records(self._rows(SQL.jobs_held_by, owner))
            return [record for record in held if queue is None or record.queue == queue]
        return self._records(self._rows(SQL.jobs_held, queue))

    def leases_ended(self, limit: int) -> list[Record]:
        found: list[Record] = []
        for owner in (None, *self._owners()):
            found += self._records(self._rows(SQL.leases_ended, owner, self.now, limit))
        found.sort(key=lambda record: (record.lease_expires_at or 0, record.uid))
        return found[:limit]

    def _owners(self) -> Iterator[str]:
        owner = self._one(SQL.next_owner, "")
        while owner is not None:
            yield owner[0]
            owner = self._one(SQL.next_owner, owner[0])

    def jobs_outlived(self, limit: int) -> list[Record]:
        return self._records(self._rows(SQL.jobs_outlived, self.now, limit))

    def jobs_ended_before(self, statuses: Iterable[JobStatus], moment: int, queue: str, limit: int) -> list[Record]:
        found: list[Record] = []
        for status in statuses:
            if status is JobStatus.CREATED:
                found += self._records(self._rows(SQL.jobs_created_before, queue, moment, limit))
            else:
                found += self._records(self._rows(SQL.jobs_ended_before, queue, status, moment, limit))
        found.sort(key=lambda record: (record.finalized_at or record.created_at, record.uid))
        return found[:limit]

    def new_uids(self, count: int) -> int:
        first = self._next_uid
        self._next_uid += count
        return first

    def insert(self, records: Sequence[Record], events: Sequence[EventRow]) -> None:
        if not records:
            return
        self._insert_rows(records)
        self._many(SQL.insert_tag, (row for record in records if record.tags for row in _tag_rows(record)))
        self._connection.execute(SQL.insert_added_events, (self._next_event, records[0].uid, self.now))
        self._next_event += len(records)
        self._events(events)
        counts = Counter((record.queue, record.status) for record in records)
        self._many(SQL.add_to_count, ((*key, jobs, 0) for key, jobs in counts.items()))

    def _insert_rows(self, records: Sequence[Record]) -> None:
        """Under a savepoint: if an id is taken, nothing of this batch stays, and what others wrote before it does."""
        self._connection.execute("SAVEPOINT batch")
        before = self._connection.total_changes()
        self._many(SQL.insert_job, map(_inserted, records))
        if self._connection.total_changes() - before == len(records):
            self._connection.execute("RELEASE batch")
            return
        names = json.dumps([record.id for record in records])
        taken = {job_id for (job_id,) in self._rows(SQL.ids_taken, names, records[0].uid)}
        self._connection.execute("ROLLBACK TO batch")
        self._connection.execute("RELEASE batch")
        self._next_uid = records[0].uid
        raise DuplicateJob([record.id for record in records if record.id in taken])

    def save(self, changes: Sequence[Change]) -> None:
        before = self._connection.total_changes()
        alike, others = _completed_alike(changes)
        for result, uids in alike.items():
            self._complete(result, uids)
        self._many(SQL.save_job, (_saved(change) for change in others))
        self._expect(len(changes) + sum(map(len, alike.values())), before)
        self._save_tags(changes)
        self._events([event for change in others for event in change.events])
        self._count(changes)

    def _complete(self, result: bytes | None, uids: Sequence[int]) -> None:
        """Jobs that completed with one result, their events first: two statements, however many they are."""
        names = json.dumps(uids)
        self._connection.execute(SQL.insert_completed_events, (self._next_event, self.now, names))
        self._next_event += len(uids)
        self._connection.execute(SQL.complete_jobs, (result, self.now, names))

    def claim(self, changes: Sequence[Change]) -> None:
        before = self._connection.total_changes()
        first = changes[0].record
        uids = json.dumps([change.record.uid for change in changes])
        self._connection.execute(SQL.insert_active_events, (self._next_event, first.lease_owner, self.now, uids))
        self._next_event += len(changes)
        lease = (self.now, first.lease_owner, first.lease_token, first.lease_expires_at)
        self._connection.execute(SQL.claim_jobs, (*lease, uids))
        self._expect(2 * len(changes), before)
        self._save_tags(changes)
        self._count(changes)

    def _expect(self, changed: int, before: int) -> None:
        if self._connection.total_changes() - before != changed:
            raise ChangedUnderneath("a job changed under a write transaction: the file is written by something else")

    def _save_tags(self, changes: Sequence[Change]) -> None:
        self._many(SQL.save_tag, (row for change in changes for row in _changed_tag_rows(change.record)))

    def remove(self, changes: Sequence[Change]) -> None:
        records = [change.record for change in changes]
        self._many(
            SQL.insert_tombstone,
            ((r.uid, r.id, r.queue, r.type, r.status, r.idempotency_key, self.now) for r in records),
        )
        self._many(SQL.delete_tag, ((tag, r.uid) for r in records for tag in r.tags))
        for statement in (SQL.delete_logs, SQL.delete_edges, SQL.delete_job):
            self._many(statement, ((record.uid,) for record in records))
        self._events([event for change in changes for event in change.events])
        self._count(changes, removed=True)

    def _count(self, changes: Sequence[Change], *, removed: bool = False) -> None:
        """Keeps the counts exact, for jobs that changed or went."""
        counts: dict[tuple[str, JobStatus], list[int]] = defaultdict(lambda: [0, 0])
        for change in changes:
            record = change.record
            was = counts[record.queue, change.was]
            was[0] -= 1
            was[1] -= change.was_retries
            if not removed:
                now = counts[record.queue, record.status]
                now[0] += 1
                now[1] += record.retry_count
        self._many(
            SQL.add_to_count, ((*key, jobs, retries) for key, (jobs, retries) in counts.items() if jobs or retries)
        )

    # -- identity

    def jobs_by_key(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        known = {}
        for pair in pairs:
            found = self._one(SQL.job_of_key, *pair) or self._one(SQL.removed_job_of_key, *pair, self.now - KEY_TTL)
            if found is not None:
                known[pair] = found[0]
        return known

    def statuses(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        names = json.dumps(list(job_ids))
        known: dict[str, str] = dict(self._rows(SQL.removed_statuses, names, self.now - KEY_TTL))
        known.update(self._rows(SQL.statuses, names))
        return {job_id: STATUS[status] for job_id, status in known.items()}

    # -- dependencies

    def put_edges(self, edges: Sequence[Edge]) -> None:
        self._many(SQL.put_edge, edges)

    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        if self._one(SQL.any_open_edge) == (0,):
            return []
        return [Edge(*row) for row in self._rows(SQL.open_edges, json.dumps(list(depends_on)))]

    def edges_from(self, job_id: str) -> list[Edge]:
        return [Edge(*row) for row in self._rows(SQL.edges_from, job_id)]

    # -- notes, events, schedules, workers

    def write_progress(self, change: Change) -> None:
        record = change.record
        self._connection.execute(SQL.save_progress, (record.progress, record.job_seq, record.updated_at, record.uid))
        self._events(change.events)

    def write_checkpoint(self, change: Change) -> None:
        record = change.record
        self._connection.execute(SQL.save_checkpoint, (record.checkpoint, record.updated_at, record.uid))

    def write_log(self, change: Change, level: str, message: str) -> None:
        record = change.record
        self._connection.execute(SQL.insert_log, (record.uid, self.now, level, message))
        self._connection.execute(SQL.save_log_mark, (record.job_seq, record.uid))
        self._events(change.events)

    def write_leases(self, records: Sequence[Record]) -> None:
        self._many(SQL.save_lease, ((record.lease_expires_at, record.uid, record.epoch) for record in records))

    def write_event(self, event: EventRow) -> None:
        self._events([event])

    def _events(self, events: Sequence[EventRow]) -> None:
        numbers = range(self._next_event, self._next_event + len(events))
        self._next_event = numbers.stop
        self._many(SQL.insert_event, [(number, *event) for number, event in zip(numbers, events, strict=True)])

    def schedules_due(self, limit: int) -> list[Schedule]:
        return [schedule_of(body) for (body,) in self._rows(SQL.schedules_due, self.now, limit)]

    def put_schedule(self, schedule: Schedule) -> None:
        self.news = True
        due = None if schedule.next_run_at is None else to_micros(schedule.next_run_at)
        self._connection.execute(SQL.put_schedule, (schedule.id, schedule.paused, due, schedule_text(schedule)))

    def remove_schedule(self, schedule_id: str) -> bool:
        self._connection.execute(SQL.delete_schedule, (schedule_id,))
        return self._connection.changes() > 0

    def put_worker(self, worker: WorkerInfo) -> None:
        seen = _seen(worker, self.now)
        self._connection.execute(SQL.put_worker, (worker.id, self.now, worker_text(seen)))

    def forget_workers(self, limit: int) -> int:
        self._connection.execute(SQL.forget_workers, (self.now - KEEP_WORKERS, limit))
        return self._connection.changes()

    def forget_tombstones(self, limit: int) -> int:
        self._connection.execute(SQL.forget_tombstones, (self.now - KEY_TTL, limit))
        return self._connection.changes()

    def prune_events(self, queue: str, moment: int, limit: int) -> int:
        """Walks on from where it last stopped, to the first event that is too young.

        The log is in order of time, unless the clock was set back: then some stay until it has caught up.
        """
        marks = self._one(SQL.pruned, queue)
        deleted, seen = (0, 0) if marks is None else marks
        old: list[int] = []
        walked = 0
        for number, of, occurred_at in self._rows(SQL.oldest_events, seen):
            if occurred_at > moment or len(old) == limit or walked == _WALKED_AT_ONCE:
                break
            seen = number
            walked += 1
            if of == queue:
                old.append(number)
        self._many(SQL.delete_event, ((number,) for number in old))
        if marks is None or seen != marks[1]:
            self._connection.execute(SQL.put_pruned, (queue, old[-1] if old else deleted, seen))
        return max(len(old), walked == _WALKED_AT_ONCE)


def _completed_alike(changes: Sequence[Change]) -> tuple[dict[bytes | None, list[int]], list[Change]]:
    """Uids of running jobs that completed, by result, where several have the same; and all the other changes."""
    plain = [
        change
        for change in changes
        if change.record.status is JobStatus.COMPLETED and change.was is JobStatus.RUNNING and len(change.events) == 1
    ]
    if len(plain) < _WORTH_A_STATEMENT:
        return {}, list(changes)
    by_result: dict[bytes | None, list[int]] = defaultdict(list)
    for change in plain:
        by_result[change.record.result].append(change.record.uid)
    alike = {result: uids for result, uids in by_result.items() if len(uids) >= _WORTH_A_STATEMENT}
    done = {uid for uids in alike.values() for uid in uids}
    return alike, [change for change in changes if change.record.uid not in done]


def _inserted(record: Record) -> Row:
    return (*_new_columns(record), tags_text(record.tags))


def _saved(change: Change) -> Row:
    record = change.record
    return (*_saved_columns(record), record.job_seq - len(change.events))


def _tag_rows(record: Record) -> Iterator[Row]:
    claimable = record.status in ELIGIBLE
    for tag in record.tags:
        yield (
            tag,
            record.uid,
            record.queue,
            record.priority,
            record.place,
            claimable,
            record.status,
            record.retry_count,
        )


def _changed_tag_rows(record: Record) -> Iterator[Row]:
    claimable = record.status in ELIGIBLE
    for tag in record.tags:
        yield (record.place, claimable, record.status, record.retry_count, tag, record.uid)


def _seen(worker: WorkerInfo, now: int) -> WorkerInfo:
    return dataclasses.replace(worker, seen_at=from_micros(now))
