"""The write transaction over named statements, with the claim queries that every dialect shares."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from longshore.backends.base import WorkerInfo
from longshore.backends.data_migration import TABLES, Inventory
from longshore.backends.port import KEEP_WORKERS, KEY_TTL, Candidate, Edge, KeyState, QueueState
from longshore.backends.rows import firing_columns, schedule_of, schedule_row, worker_text
from longshore.backends.sql.reads import BEFORE_ALL, SQLLookups
from longshore.backends.sql.rows import STATUS, Queries, Row, key_of_row, record_of_row, row_of_queue
from longshore.backends.sql.statements import Statements
from longshore.backends.sql.token_queries import SQLTokens
from longshore.core.job_record import Record
from longshore.core.limits import Window
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.times import from_micros
from longshore.core.transitions import Change, EventRow


class SQLStaging:
    """The tables of bulk inserts; the same for every dialect."""

    def __init__(self, sql: Statements, queries: Queries, now: int) -> None:
        self._sql = sql
        self._queries = queries
        self._rows = queries.rows
        self._run = queries.run
        self._listed = queries.listed
        self.now = now

    def run_report(self, run: str) -> tuple[int, int] | None:
        """The offered and inserted jobs of a committed run."""
        for offered, inserted in self._rows(self._sql.staged_run, run):
            return offered, inserted
        return None

    def stage(self, run: str, part: str, bodies: Sequence[str]) -> None:
        """Stage jobs, and record that the run is active."""
        self._stage([(run, part, body) for body in bodies])
        self._run(self._sql.touch_staged_run, run, self.now)  # last, because other tasks of the run wait for this row

    def _stage(self, rows: Sequence[Row]) -> None:
        self._queries.many(self._sql.stage_job, rows)

    def insert_plain(self, run: str, parts: Sequence[str]) -> int:  # noqa: ARG002 - for stores that insert in bulk
        """Insert the plain jobs of these parts in bulk, if the store can; return how many."""
        return 0

    def staged(self, run: str, parts: Sequence[str]) -> Iterable[str]:
        """The other staged jobs of these parts."""
        return [body for (body,) in self._rows(self._sql.staged_jobs, run, self._listed(parts))]

    def finish_run(self, run: str, offered: int, inserted: int) -> None:
        """Record the result of the run, and drop its staged jobs."""
        self._run(self._sql.finish_staged_run, run, self.now, offered, inserted)
        self._run(self._sql.clear_staged_jobs, run)

    def drop_run(self, run: str) -> None:
        """Drop a run that was not committed, and its staged jobs."""
        if self.run_report(run) is None:
            self._run(self._sql.drop_staged_run, run)
            self._run(self._sql.clear_staged_jobs, run)

    def drop_silent_runs(self, unfinished: int, finished: int) -> int:
        """Drop the runs that were last active before these times; return how many."""
        silent = [run for (run,) in self._rows(self._sql.abandoned_runs, unfinished, finished)]
        for run in silent:
            self._run(self._sql.drop_staged_run, run)
            self._run(self._sql.clear_staged_jobs, run)
        return len(silent)


_MOST_EVENTS_READ = 10_000
"""The most events that one pruning transaction reads, including those of other queues."""

_EVENTS_AT_ONCE = 200
_TAG_COUNT_LIMITS = (16, 128, 1024, 8192)
_LEAST_AT_ONCE = 20


class ChangedUnderneath(RuntimeError):
    """A row is not the version that was read, which is impossible inside a write transaction: it is rolled back."""


class SQLTransaction(SQLLookups):
    """A write transaction; `now` is set for each operation."""

    now: int
    changed: bool
    """Whether this transaction changed anything that wakes waiting callers."""

    @property
    def api_tokens(self) -> SQLTokens:
        """The API tokens."""
        return SQLTokens(self._sql, self._queries, self.now)

    @property
    def staging(self) -> SQLStaging:
        """The tables of bulk inserts."""
        return SQLStaging(self._sql, self._queries, self.now)

    @abstractmethod
    def _append(self, events: Sequence[EventRow]) -> None:
        """Append events to the log, in their order."""

    # -- jobs

    def jobs_by_id(self, job_ids: Sequence[str], *, renew: bool = False) -> dict[str, Record]:  # noqa: ARG002 - for stores with many writers
        found = map(record_of_row, self._rows(self._sql.jobs_by_ids, self._listed(job_ids)))
        return {record.id: record for record in found}

    def jobs_by_uid(self, uids: Sequence[int]) -> dict[int, Record]:
        found = map(record_of_row, self._rows(self._sql.jobs_by_uids, self._listed(uids)) if uids else ())
        return {record.uid: record for record in found}

    def jobs_with_tags(self, tags: Sequence[str], queue: str | None) -> list[Record]:
        rows = self._rows(self._sql.uids_with_tags, tags[0], queue, self._listed(tags[1:]))
        return list(self.jobs_by_uid([uid for (uid,) in rows]).values())

    def jobs_held(self, owner: str | None, queue: str | None) -> list[Record]:
        if owner is not None:
            held = self._records(self._rows(self._sql.jobs_held_by, owner))
            return [record for record in held if queue is None or record.queue == queue]
        return self._records(self._rows(self._sql.jobs_held, queue))

    def cancellations_since(self, moment: int, limit: int) -> list[Record]:
        return self._records(self._rows(self._sql.cancellations_since, moment, limit))

    def expired_jobs(self, limit: int) -> list[Record]:
        return self._records(self._rows(self._sql.expired_jobs, self.now, limit))

    def jobs_ended_before(self, statuses: Iterable[JobStatus], moment: int, queue: str, limit: int) -> list[Record]:
        found: list[Record] = []
        for status in statuses:
            if status is JobStatus.CREATED:
                found += self._records(self._rows(self._sql.jobs_created_before, queue, moment, limit))
            else:
                found += self._records(self._rows(self._sql.jobs_ended_before, queue, status, moment, limit))
        found.sort(key=lambda record: (record.finalized_at or record.created_at, record.uid))
        return found[:limit]

    def jobs_beyond(self, keep: int, status: JobStatus, queue: str, limit: int) -> list[Record]:
        return self._records(self._rows(self._sql.jobs_beyond, queue, status, keep, limit))

    # -- identity

    def statuses(self, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, JobStatus]:  # noqa: ARG002 - as above
        names = self._listed(job_ids)
        known: dict[str, str] = dict(self._rows(self._sql.removed_statuses, names, self.now - KEY_TTL))
        known.update(self._rows(self._sql.statuses, names))
        return {job_id: STATUS[status] for job_id, status in known.items()}

    # -- dependencies

    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        return [Edge(*row) for row in self._rows(self._sql.open_edges, self._listed(depends_on))]

    def edges_that_stop(self, uids: Sequence[int]) -> list[Edge]:
        return [Edge(*row) for row in self._rows(self._sql.edges_that_stop, self._listed(uids))]

    # -- job updates

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
        self._run(self._sql.remember_queues, self._listed([event.queue]))  # so that its events are pruned later

    # -- schedules and workers

    def schedules_due(self, after: int, until: int, limit: int) -> list[Schedule]:
        return [schedule_of(*row) for row in self._rows(self._sql.schedules_due, after, until, limit)]

    def schedules_ahead(self, moment: int, limit: int) -> list[Schedule]:
        return [schedule_of(*row) for row in self._rows(self._sql.schedules_ahead, moment, limit)]

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        self.changed = True
        self._many(self._sql.put_schedules, map(schedule_row, schedules))

    def move_schedules(self, schedules: Sequence[Schedule]) -> None:
        self.changed = True
        self._many(self._sql.move_schedules, [(*values, id_) for id_, *values in map(firing_columns, schedules)])

    def remove_schedule(self, schedule_id: str) -> bool:
        return self._run(self._sql.delete_schedule, schedule_id) > 0

    def put_worker(self, worker: WorkerInfo) -> None:
        seen = dataclasses.replace(worker, seen_at=from_micros(self.now))
        self._run(self._sql.put_worker, worker.id, self.now, worker_text(seen))

    # -- retention

    def forget_workers(self, limit: int) -> int:
        return self._run(self._sql.forget_workers, self.now - KEEP_WORKERS, limit)

    def forget_tombstones(self, limit: int) -> int:
        return self._run(self._sql.forget_tombstones, self.now - KEY_TTL, limit)

    def prune_events(self, queue: str, moment: int, limit: int, through: int | None = None) -> int:
        """Read from the last position to the first event that is too recent.

        The log is ordered by time, unless the clock was set back: then some events stay until the clock has caught up.
        """
        marks = self._one(self._sql.pruned, queue)
        deleted, seen = (0, 0) if marks is None else self._pruned_through(marks)
        begun = seen
        old: list[int] = []
        read = 0
        for position, of, occurred_at in self._oldest_events(seen):
            beyond = through is not None and position > through
            if beyond or occurred_at > moment or len(old) == limit or read == _MOST_EVENTS_READ:
                break
            seen = position
            read += 1
            if of == queue:
                old.append(position)
        self._many(self._sql.delete_event, [self._queries.log_position(position) for position in old])
        if marks is None or seen != begun:
            self._run(
                self._sql.put_pruned,
                queue,
                *self._queries.log_position(old[-1] if old else deleted),
                *self._queries.log_position(seen),
            )
        return max(len(old), read == _MOST_EVENTS_READ)

    def _oldest_events(self, after: int) -> Iterator[tuple[int, str, int]]:
        """Positions, queues and times of the oldest events; read in pages, because the first may be too recent
        already."""
        more = True
        while more:
            rows = list(self._rows(self._sql.oldest_events, *self._queries.log_range(after), _EVENTS_AT_ONCE))
            for row in rows:
                after, (of, occurred_at) = self._queries.positioned(row)
                yield after, of, occurred_at
            more = len(rows) == _EVENTS_AT_ONCE

    @abstractmethod
    def _pruned_through(self, row: Row) -> tuple[int, int]:
        """A row of `pruned` as two positions: deleted through, seen through."""

    # -- claims and concurrency keys

    def put_queue(self, state: QueueState) -> None:
        self.changed = True
        self._run(self._sql.put_queue, *row_of_queue(state))

    def put_keys(self, queue: QueueState, states: Sequence[KeyState]) -> None:
        rate = queue.rate_per_key
        kept: list[Row] = []
        idle: list[str] = []
        for state in states:
            if state.running_count == 0 and (rate is None or state.window.at(rate, self.now).count == 0):
                idle.append(state.key)
            else:
                window_ends_at = None if rate is None else state.window_ends_at(queue, self.now)
                kept.append(
                    (queue.name, state.key, state.running_count, state.window.start, state.window.count, window_ends_at)
                )
        if idle:
            self._run(self._sql.forget_keys, queue.name, self._listed(idle))
        if kept:
            self._put_keys(kept)

    @abstractmethod
    def _put_keys(self, rows: Sequence[Row]) -> None:
        """Store keys from rows of queue, key, running count, window start, window count and window end."""

    def block(self, uids: Sequence[int]) -> None:
        if uids:
            self._run(self._sql.block, self._listed(uids))

    def any_blocked(self, queue: str) -> bool:
        return self._one(self._sql.any_blocked, queue) is not None

    def _unblock(self, uids: Sequence[int]) -> None:
        if uids:
            self.changed = True
            self._run(self._sql.unblock, self._listed(uids))

    def keys_with_ended_windows(self, queue: QueueState) -> list[KeyState]:
        window = 0 if queue.rate_per_key is None else queue.rate_per_key.per_micros
        rows = self._rows(self._sql.keys_with_ended_windows, queue.name, self.now, self.now + window)
        return [key_of_row(row) for row in rows]

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        self._unblock([uid for (uid,) in self._rows(self._sql.all_blocked, queue.name)])
        states: dict[str, KeyState] = {}
        for key, start, count in [] if new_windows else list(self._rows(self._sql.windows_of_keys, queue.name)):
            states[key] = KeyState(queue.name, key, window=Window(start, count))
        self._run(self._sql.delete_keys, queue.name)
        if queue.limits_keys:
            for key, running_count in list(self._rows(self._sql.running_by_key, queue.name)):
                states.setdefault(key, KeyState(queue.name, key)).running_count = running_count
            self.put_keys(queue, list(states.values()))

    def _limits(self, queue: QueueState) -> tuple[int | None, int | None, int]:
        """The running count, or the starts since a time, from which a key of this queue is full."""
        rate = queue.rate_per_key
        if rate is None:
            return queue.per_key, None, 0
        return queue.per_key, rate.count, self.now - self.now % rate.per_micros

    def _window(self, queue: QueueState) -> tuple[int, int] | None:
        """The window in which a start counts for the rate of this queue's keys, if they have one."""
        rate = queue.rate_per_key
        if rate is None:
            return None
        since = self.now - self.now % rate.per_micros
        return since, since + rate.per_micros

    def block_ahead(self, queue: QueueState, among: int) -> int:
        read: list[Row] = []
        for priority in self._priorities(queue.name):
            left = among - len(read)
            if left <= 0:
                break
            read += self._rows(self._sql.look_ahead, queue.name, priority, self.now, *self._limits(queue), left)
        full = [uid for uid, is_full in read if is_full]
        self.block(full)
        return len(full)

    def candidates(
        self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int], types: Sequence[str] | None = None
    ) -> Iterator[Candidate]:
        if tags:
            yield from self._tagged_candidates(queue, tags, wanted, types)
            return
        if types is not None:
            yield from self._candidates_of_types(queue, types, wanted)
            return
        at_head = wanted()
        at_once = max(at_head * 5 // 4, _LEAST_AT_ONCE)  # some will have full keys
        begun: Candidate | None = None
        head = self._first_candidates(queue, at_once)
        if head is not None:
            yield from head
            if len(head) < at_once:
                return
            at_head -= len(head)
            begun = head[-1]
        for priority in self._priorities(queue.name, BEFORE_ALL if begun is None else begun.priority - 1):
            last = (begun.sort_key, begun.uid) if begun is not None and begun.priority == priority else (BEFORE_ALL, 0)
            while True:
                at_once = max(wanted() * 5 // 4, _LEAST_AT_ONCE)
                page = self._page_of_candidates(queue, priority, last, at_once, all_keys=at_head > 0)
                yield from page
                at_head -= len(page)
                if len(page) < at_once:
                    break
                last = (page[-1].sort_key, page[-1].uid)

    def _first_candidates(self, _queue: QueueState, _at_once: int) -> list[Candidate] | None:
        """The first candidates of all priorities, if the store reads them in one statement."""
        return None

    def _page_of_candidates(
        self, queue: QueueState, priority: int, after: tuple[int, int], at_once: int, *, all_keys: bool
    ) -> list[Candidate]:
        """With `all_keys`, jobs of full keys are included, so that the claim blocks them; otherwise they are not."""
        if all_keys or not queue.limits_keys:
            found = self._rows(self._sql.claimable, queue.name, priority, self.now, *after, at_once)
        else:
            limits = self._limits(queue)
            found = self._rows(
                self._sql.claimable_with_free_slots, queue.name, priority, self.now, *limits, *after, at_once
            )
        return list(map(Candidate._make, found))

    @abstractmethod
    def _tagged_candidates(
        self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int], types: Sequence[str] | None
    ) -> Iterator[Candidate]:
        """The candidates that have all these tags, including blocked ones."""

    @abstractmethod
    def _candidates_of_types(
        self, queue: QueueState, types: Sequence[str], wanted: Callable[[], int]
    ) -> Iterator[Candidate]:
        """The candidates of these types, from the index of types: jobs of other types are never read."""

    def _tagged_priorities(self, queue: str, tag: str) -> Iterator[int]:
        """The priorities of eligible jobs with this tag."""
        priority = self._one(self._sql.next_tagged_priority, tag, queue, BEFORE_ALL)
        while priority is not None:
            yield priority[0]
            priority = self._one(self._sql.next_tagged_priority, tag, queue, priority[0])

    def _rarest_first(self, tags: Sequence[str]) -> Sequence[str]:
        """Sort by the number of waiting jobs, counted only as far as needed to find the rarest tag."""
        if len(tags) == 1:
            return tags
        waiting: dict[str, int] = {}
        for enough in _TAG_COUNT_LIMITS:
            for tag in tags:
                ((waiting[tag],),) = self._rows(self._sql.waiting_with_tag, tag, enough)
            if min(waiting.values()) < enough:
                break
        return sorted(tags, key=waiting.__getitem__)


_COUNTED = (*TABLES, "job_tags", "queues", "concurrency_keys", "schedules", "api_tokens")
"""In the order of the columns of `row_counts`."""


class SQLCopySide(ABC):
    """A store that can be compared with another."""

    name: str
    _sql: Statements

    @abstractmethod
    def _rows(self, statement: str, *values: Any) -> Iterable[Row]:
        """The rows that a statement returns."""

    def _named(self, what: str, table: str) -> str:
        statement: str = getattr(self._sql, f"{what}_{table}")
        return statement

    def _one(self, statement: str, *values: Any) -> Row:
        (row,) = self._rows(statement, *values)
        return row

    def span(self, table: str) -> tuple[int, int] | None:
        lowest, highest = self._one(self._named("span_of", table))
        return None if lowest is None else (lowest, highest)

    def digest(self, table: str, block: range) -> Row:
        return self._one(self._named("digest_of", table), block.start, block.stop)

    def inventory(self) -> Inventory:
        jobs: dict[str, dict[str, tuple[int, int]]] = {}
        for queue, status, count, retries in self._rows(self._sql.recount):
            jobs.setdefault(queue, {})[status] = (count, retries)
        counts = self._one(self._sql.row_counts)
        return Inventory(dict(zip(_COUNTED, counts, strict=True)), self._one(self._sql.digest_of_job_tags), jobs)
