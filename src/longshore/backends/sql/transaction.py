"""The port over named statements: the part of a write transaction that every dialect does in the same way."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from longshore.backends.contract import WorkerInfo
from longshore.backends.rows import schedule_of, schedule_text, worker_text
from longshore.backends.sql.columns import STATUS, Row, key_of_row, row_of_queue
from longshore.backends.sql.view import SQLView
from longshore.backends.transaction import KEEP_WORKERS, KEY_TTL, Edge, KeyState, QueueState
from longshore.core.change import Change, EventRow
from longshore.core.cron import Schedule
from longshore.core.lifecycle import JobStatus
from longshore.core.limits import Window
from longshore.core.moments import from_micros, to_micros
from longshore.core.record import Record

_WALKED_AT_ONCE = 10_000
"""Events one transaction walks over when it prunes: the other queues' have to be passed, too."""


class ChangedUnderneath(RuntimeError):
    """A row was not the version that was read, which inside a write transaction cannot be: all of it is taken back."""


class SQLTransaction(SQLView):
    """A write transaction; `now` is set for each verb."""

    now: int
    news: bool
    """Whether this transaction did anything that somebody who waits for a change would want to know of."""

    @abstractmethod
    def _run(self, statement: str, *values: Any) -> int:
        """Runs a statement that changes rows; returns how many."""

    @abstractmethod
    def _many(self, statement: str, rows: Iterable[Row]) -> None:
        """Runs a statement once for each row of values."""

    @abstractmethod
    def _append(self, events: Sequence[EventRow]) -> None:
        """Writes events, in their order, at the end of the log."""

    # -- jobs

    def jobs_by_id(self, job_ids: Sequence[str]) -> dict[str, Record]:
        rows = self._rows(self._sql.jobs_by_ids, self._listed(job_ids))
        return {record.id: record for record in self._records(rows)}

    def jobs_by_uid(self, uids: Sequence[int]) -> dict[int, Record]:
        rows = self._rows(self._sql.jobs_by_uids, self._listed(uids))
        return {record.uid: record for record in self._records(rows)}

    def jobs_with_tags(self, tags: Sequence[str], queue: str | None) -> list[Record]:
        rows = self._rows(self._sql.uids_with_tags, tags[0], queue, self._listed(tags[1:]))
        return list(self.jobs_by_uid([uid for (uid,) in rows]).values())

    def jobs_held(self, owner: str | None, queue: str | None) -> list[Record]:
        if owner is not None:
            held = self._records(self._rows(self._sql.jobs_held_by, owner))
            return [record for record in held if queue is None or record.queue == queue]
        return self._records(self._rows(self._sql.jobs_held, queue))

    def jobs_outlived(self, limit: int) -> list[Record]:
        return self._records(self._rows(self._sql.jobs_outlived, self.now, limit))

    def jobs_ended_before(self, statuses: Iterable[JobStatus], moment: int, queue: str, limit: int) -> list[Record]:
        found: list[Record] = []
        for status in statuses:
            if status is JobStatus.CREATED:
                found += self._records(self._rows(self._sql.jobs_created_before, queue, moment, limit))
            else:
                found += self._records(self._rows(self._sql.jobs_ended_before, queue, status, moment, limit))
        found.sort(key=lambda record: (record.finalized_at or record.created_at, record.uid))
        return found[:limit]

    # -- identity

    def statuses(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        names = self._listed(job_ids)
        known: dict[str, str] = dict(self._rows(self._sql.removed_statuses, names, self.now - KEY_TTL))
        known.update(self._rows(self._sql.statuses, names))
        return {job_id: STATUS[status] for job_id, status in known.items()}

    # -- dependencies

    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        return [Edge(*row) for row in self._rows(self._sql.open_edges, self._listed(depends_on))]

    def edges_from(self, job_id: str) -> list[Edge]:
        return [Edge(*row) for row in self._rows(self._sql.edges_from, job_id)]

    # -- flow control

    def queues_ever_seen(self) -> list[str]:
        return [name for (name,) in self._rows(self._sql.queues_ever_seen)]

    def put_queue(self, state: QueueState) -> None:
        self.news = True
        self._run(self._sql.put_queue, *row_of_queue(state))

    def put_keys(self, queue: QueueState, states: Sequence[KeyState]) -> None:
        for state in states:
            rate = queue.rate_per_key
            if state.holding == 0 and (rate is None or state.window.at(rate, self.now).count == 0):
                self._run(self._sql.delete_key, state.queue, state.key)
            else:
                window, wakes_at = state.window, state.wakes_at(queue, self.now)
                self._run(
                    self._sql.put_key, state.queue, state.key, state.holding, window.start, window.count, wakes_at
                )

    def park(self, records: Sequence[Record]) -> None:
        self._park([record.uid for record in records])

    def _park(self, uids: Sequence[int]) -> None:
        if uids:
            self._run(self._sql.park, self._listed(uids))

    def unpark(self, queue: str, key: str, count: int) -> int:
        return self._unpark(self._rows(self._sql.first_parked, queue, key, count))

    def _unpark(self, rows: Iterable[Row]) -> int:
        parked = [uid for (uid,) in rows]
        if parked:
            self.news = True
            self._run(self._sql.unpark, self._listed(parked))
        return len(parked)

    def keys_waking(self, queue: QueueState) -> list[KeyState]:
        window = 0 if queue.rate_per_key is None else queue.rate_per_key.per_micros
        rows = self._rows(self._sql.keys_waking, queue.name, self.now, self.now + window)
        return [key_of_row(row) for row in rows]

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        self._unpark(self._rows(self._sql.all_parked, queue.name))
        states: dict[str, KeyState] = {}
        for key, start, count in [] if new_windows else list(self._rows(self._sql.windows_of_keys, queue.name)):
            states[key] = KeyState(queue.name, key, window=Window(start, count))
        self._run(self._sql.delete_keys, queue.name)
        if queue.limits_keys:
            for key, holding in list(self._rows(self._sql.holding_by_key, queue.name)):
                states.setdefault(key, KeyState(queue.name, key)).holding = holding
            self.put_keys(queue, list(states.values()))

    def _limits(self, queue: QueueState) -> tuple[int | None, int | None, int]:
        """From how many held, or started since when, a key of this queue is full."""
        rate = queue.rate_per_key
        if rate is None:
            return queue.per_key, None, 0
        return queue.per_key, rate.count, self.now - self.now % rate.per_micros

    # -- notes

    def write_progress(self, change: Change) -> None:
        record = change.record
        self._run(self._sql.save_progress, record.progress, record.job_seq, record.updated_at, record.uid)
        self._append(change.events)

    def write_checkpoint(self, change: Change) -> None:
        record = change.record
        self._run(self._sql.save_checkpoint, record.checkpoint, record.updated_at, record.uid)

    def write_log(self, change: Change, level: str, message: str) -> None:
        record = change.record
        self._run(self._sql.insert_log, record.uid, self.now, level, message)
        self._run(self._sql.save_log_mark, record.job_seq, record.uid)
        self._append(change.events)

    def write_leases(self, records: Sequence[Record]) -> None:
        self._many(self._sql.save_lease, [(record.lease_expires_at, record.uid, record.epoch) for record in records])

    def write_event(self, event: EventRow) -> None:
        self._append([event])

    # -- schedules and workers

    def schedules_due(self, limit: int) -> list[Schedule]:
        return [schedule_of(body) for (body,) in self._rows(self._sql.schedules_due, self.now, limit)]

    def put_schedule(self, schedule: Schedule) -> None:
        self.news = True
        due = None if schedule.next_run_at is None else to_micros(schedule.next_run_at)
        self._run(self._sql.put_schedule, schedule.id, schedule.paused, due, schedule_text(schedule))

    def remove_schedule(self, schedule_id: str) -> bool:
        return self._run(self._sql.delete_schedule, schedule_id) > 0

    def put_worker(self, worker: WorkerInfo) -> None:
        seen = dataclasses.replace(worker, seen_at=from_micros(self.now))
        self._run(self._sql.put_worker, worker.id, self.now, worker_text(seen))

    # -- what is kept long enough

    def forget_workers(self, limit: int) -> int:
        return self._run(self._sql.forget_workers, self.now - KEEP_WORKERS, limit)

    def forget_tombstones(self, limit: int) -> int:
        return self._run(self._sql.forget_tombstones, self.now - KEY_TTL, limit)

    def prune_events(self, queue: str, moment: int, limit: int) -> int:
        """Walks on from where it last stopped, to the first event that is too young.

        The log is in order of time, unless the clock was set back: then some stay until it has caught up.
        """
        marks = self._one(self._sql.pruned, queue)
        deleted, seen = (0, 0) if marks is None else self._marks(marks)
        begun = seen
        old: list[int] = []
        walked = 0
        for row in self._rows(self._sql.oldest_events, *self._place(seen), _WALKED_AT_ONCE + 1):
            position, (of, occurred_at) = self._positioned(row)
            if occurred_at > moment or len(old) == limit or walked == _WALKED_AT_ONCE:
                break
            seen = position
            walked += 1
            if of == queue:
                old.append(position)
        self._many(self._sql.delete_event, [self._place(position) for position in old])
        if marks is None or seen != begun:
            self._run(self._sql.put_pruned, queue, *self._place(old[-1] if old else deleted), *self._place(seen))
        return max(len(old), walked == _WALKED_AT_ONCE)

    @abstractmethod
    def _marks(self, row: Row) -> tuple[int, int]:
        """A row of `pruned` as two positions: deleted through, seen through."""
