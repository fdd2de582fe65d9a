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
from longshore.backends.sqlite.view import SQL, STATUS, Row, SQLiteView, record_of_row, tags_text
from longshore.backends.transaction import KEY_TTL, Edge, KeyState, QueueState
from longshore.core.change import Change, EventRow
from longshore.core.cron import Schedule
from longshore.core.errors import BackendUnavailable
from longshore.core.lifecycle import ELIGIBLE, JobStatus
from longshore.core.limits import Window
from longshore.core.moments import from_micros, to_micros
from longshore.core.record import Record

_ENOUGH_TO_TELL = (16, 128, 1024, 8192)
_BEFORE_ALL = -(2**63)

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


class SQLiteTransaction(SQLiteView):
    """Lives as long as its connection; `begin` and `finish` frame each transaction, `now` is set for each verb."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self.now = 0
        self._next_uid = 0
        self._next_event = 0
        self._first_of_both = (0, 0)

    def begin(self) -> None:
        """Reads where uids and events go on; other processes may have taken some since."""
        ((_, *numbers),) = self._rows(SQL.meta)
        self._next_uid, self._next_event = numbers
        self._first_of_both = (self._next_uid, self._next_event)

    def finish(self) -> None:
        """Writes back where they go on from here."""
        if self._first_of_both != (self._next_uid, self._next_event):
            self._connection.execute(SQL.save_counters, (self._next_uid, self._next_event))

    def _many(self, statement: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(statement, rows)

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
        self._many(SQL.insert_job, map(_inserted, records))
        self._many(SQL.insert_tag, (row for record in records if record.tags for row in _tag_rows(record)))
        self._events(events)
        counts = Counter((record.queue, record.status) for record in records)
        self._many(SQL.add_to_count, ((*key, jobs, 0) for key, jobs in counts.items()))

    def save(self, changes: Sequence[Change]) -> None:
        before = self._connection.total_changes()
        self._many(SQL.save_job, (_saved(change) for change in changes))
        self._saved_all(changes, before)

    def claim(self, changes: Sequence[Change]) -> None:
        before = self._connection.total_changes()
        first = changes[0].record
        uids = json.dumps([change.record.uid for change in changes])
        lease = (self.now, first.lease_owner, first.lease_token, first.lease_expires_at)
        self._connection.execute(SQL.claim_jobs, (*lease, uids))
        self._saved_all(changes, before)

    def _saved_all(self, changes: Sequence[Change], before: int) -> None:
        if self._connection.total_changes() - before != len(changes):
            raise BackendUnavailable("a job changed under a write transaction; the file is written by something else")
        self._many(SQL.save_tag, (row for change in changes for row in _changed_tag_rows(change.record)))
        self._record(changes)

    def remove(self, changes: Sequence[Change]) -> None:
        records = [change.record for change in changes]
        self._many(
            SQL.insert_tombstone,
            ((r.uid, r.id, r.queue, r.type, r.status, r.idempotency_key, self.now) for r in records),
        )
        self._many(SQL.delete_tag, ((tag, r.uid) for r in records for tag in r.tags))
        for statement in (SQL.delete_logs, SQL.delete_edges, SQL.delete_job):
            self._many(statement, ((record.uid,) for record in records))
        self._record(changes, removed=True)

    def _record(self, changes: Sequence[Change], *, removed: bool = False) -> None:
        """Events and exact counts, for jobs that changed or went."""
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
        self._events([event for change in changes for event in change.events])
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

    def ids_taken(self, job_ids: Sequence[str]) -> set[str]:
        return {job_id for (job_id,) in self._rows(SQL.ids_taken, json.dumps(job_ids))}

    def statuses(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        names = json.dumps(list(job_ids))
        known: dict[str, str] = dict(self._rows(SQL.removed_statuses, names, self.now - KEY_TTL))
        known.update(self._rows(SQL.statuses, names))
        return {job_id: STATUS[status] for job_id, status in known.items()}

    # -- dependencies

    def add_edges(self, edges: Sequence[Edge]) -> None:
        self._many(SQL.put_edge, edges)

    def set_edges(self, edges: Sequence[Edge]) -> None:
        self._many(SQL.put_edge, edges)

    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        if self._one(SQL.any_open_edge) == (0,):
            return []
        return [Edge(*row) for row in self._rows(SQL.open_edges, json.dumps(list(depends_on)))]

    def edges_from(self, job_id: str) -> list[Edge]:
        return [Edge(*row) for row in self._rows(SQL.edges_from, job_id)]

    # -- flow control

    def queues_ever_seen(self) -> list[str]:
        return [name for (name,) in self._rows(SQL.queues_ever_seen)]

    def put_queue(self, state: QueueState) -> None:
        rate, key_rate = state.rate, state.rate_per_key
        self._connection.execute(
            SQL.put_queue,
            (
                state.name,
                state.paused,
                state.running_limit,
                state.per_key,
                None if rate is None else rate.count,
                None if rate is None else rate.per_micros,
                None if key_rate is None else key_rate.count,
                None if key_rate is None else key_rate.per_micros,
                state.window.start,
                state.window.count,
                state.keep_finished,
                state.keep_dead,
                state.keep_events,
            ),
        )

    def candidates(self, queue: str, tags: Sequence[str]) -> Iterator[Record]:
        if tags:
            yield from self._tagged_candidates(queue, tags)
            return
        priority = _BEFORE_ALL
        while True:
            following = self._one(SQL.next_priority, queue, priority)
            if following is None:
                return
            priority = following[0]
            for row in self._rows(SQL.claimable, queue, priority, self.now, self.now):
                yield self._whole(record_of_row(row))

    def _tagged_candidates(self, queue: str, tags: Sequence[str]) -> Iterator[Record]:
        rarest, *others = self._rarest_first(tags) if len(tags) > 1 else tags
        also = json.dumps(others)
        priority = _BEFORE_ALL
        while True:
            following = self._one(SQL.next_tagged_priority, rarest, queue, priority)
            if following is None:
                return
            priority = following[0]
            for (uid,) in self._rows(SQL.tagged_claimable, rarest, queue, priority, self.now, also):
                row = self._one(SQL.claimable_by_uid, uid, self.now)
                if row is not None:
                    yield self._whole(record_of_row(row))

    def _rarest_first(self, tags: Sequence[str]) -> list[str]:
        """By how many wait with each, counted no further than it takes to tell the rarest."""
        waiting: dict[str, int] = {}
        for enough in _ENOUGH_TO_TELL:
            for tag in tags:
                ((waiting[tag],),) = self._rows(SQL.waiting_with_tag, tag, enough)
            if min(waiting.values()) < enough:
                break
        return sorted(tags, key=waiting.__getitem__)

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        states = {}
        for key in keys:
            row = self._one(SQL.key_state, queue, key)
            states[key] = KeyState(queue, key) if row is None else _key_of_row(row)
        return states

    def put_keys(self, queue: QueueState, states: Sequence[KeyState]) -> None:
        for state in states:
            idle = state.holding == 0 and state.parked == 0
            if idle and (queue.rate_per_key is None or state.window.at(queue.rate_per_key, self.now).count == 0):
                self._connection.execute(SQL.delete_key, (state.queue, state.key))
            else:
                window, wakes_at = state.window, state.wakes_at(queue, self.now)
                row = (state.queue, state.key, state.holding, window.start, window.count, state.parked, wakes_at)
                self._connection.execute(SQL.put_key, row)

    def park(self, records: Sequence[Record]) -> None:
        self._many(SQL.park, ((record.uid,) for record in records))
        self._many(SQL.save_tag_parked, ((0, tag, record.uid) for record in records for tag in record.tags))

    def unpark(self, queue: str, key: str, count: int) -> int:
        found: list[Row] = []
        tags: Row | None = ("",)
        while tags is not None:
            found += self._rows(SQL.first_parked, queue, key, tags[0], count)
            tags = self._one(SQL.next_parked_tags, queue, key, tags[0])
        return self._unpark(found)

    def _unpark(self, parked: Sequence[Row]) -> int:
        self._many(SQL.unpark, ((uid,) for uid, _ in parked))
        self._many(SQL.save_tag_parked, ((1, tag, uid) for uid, tags in parked if tags for tag in json.loads(tags)))
        return len(parked)

    def keys_waking(self, queue: str) -> list[KeyState]:
        return [_key_of_row(row) for row in self._rows(SQL.keys_waking, queue, self.now)]

    def recount_keys(self, queue: QueueState, *, new_rate: bool) -> None:
        self._unpark(self._connection.execute(SQL.all_parked, (queue.name,)).fetchall())
        states: dict[str, KeyState] = {}
        for key, start, count in [] if new_rate else list(self._rows(SQL.windows_of_keys, queue.name)):
            states[key] = KeyState(queue.name, key, window=Window(start, count))
        self._connection.execute(SQL.delete_keys, (queue.name,))
        if queue.limits_keys:
            for key, holding in list(self._rows(SQL.holding_by_key, queue.name)):
                states.setdefault(key, KeyState(queue.name, key)).holding = holding
            self.put_keys(queue, list(states.values()))

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
        due = None if schedule.next_run_at is None else to_micros(schedule.next_run_at)
        self._connection.execute(SQL.put_schedule, (schedule.id, schedule.paused, due, schedule_text(schedule)))

    def remove_schedule(self, schedule_id: str) -> bool:
        self._connection.execute(SQL.delete_schedule, (schedule_id,))
        return self._connection.changes() > 0

    def put_worker(self, worker: WorkerInfo) -> None:
        seen = _seen(worker, self.now)
        self._connection.execute(SQL.put_worker, (worker.id, self.now, worker_text(seen)))

    def forget_tombstones(self, limit: int) -> int:
        self._connection.execute(SQL.forget_tombstones, (self.now - KEY_TTL, limit))
        return self._connection.changes()

    def prune_events(self, queue: str, moment: int, limit: int) -> int:
        """Walks on from where it last stopped, to the first event that is too young: the log is in order of time."""
        marks = self._one(SQL.pruned, queue)
        deleted, seen = (0, 0) if marks is None else marks
        old: list[int] = []
        for number, of, occurred_at in self._rows(SQL.oldest_events, seen):
            if occurred_at > moment or len(old) == limit:
                break
            seen = number
            if of == queue:
                old.append(number)
        self._many(SQL.delete_event, ((number,) for number in old))
        if marks is None or seen != marks[1]:
            self._connection.execute(SQL.put_pruned, (queue, old[-1] if old else deleted, seen))
        return len(old)


def _inserted(record: Record) -> Row:
    return (*_new_columns(record), tags_text(record.tags))


def _saved(change: Change) -> Row:
    record = change.record
    return (*_saved_columns(record), record.job_seq - len(change.events))


def _claimable(record: Record) -> bool:
    return record.status in ELIGIBLE and not record.parked


def _tag_rows(record: Record) -> Iterator[Row]:
    claimable = _claimable(record)
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
    claimable = _claimable(record)
    for tag in record.tags:
        yield (record.place, claimable, record.status, record.retry_count, tag, record.uid)


def _key_of_row(row: Row) -> KeyState:
    queue, key, holding, start, count, parked = row
    return KeyState(queue, key, holding, Window(start, count), parked)


def _seen(worker: WorkerInfo, now: int) -> WorkerInfo:
    return dataclasses.replace(worker, seen_at=from_micros(now))
