"""The write transaction on the writer's connection, with SQLite's claim queries."""

from __future__ import annotations

import heapq
import json
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import apsw

from longshore.backends.port import KEY_TTL, Candidate, Completion, Edge, Ended, KeyState, QueueState, keys_by_queue
from longshore.backends.sql.rows import (
    MOVES,
    Claimant,
    Moves,
    Row,
    WithinKeys,
    any_outlived,
    completed_by_result,
    deltas_of,
    in_standing_order,
    inserted_row,
    record_of_row,
    saved_row,
    tag_rows,
    type_of,
)
from longshore.backends.sql.writes import ChangedUnderneath, SQLClaimQueries
from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.reads import SQLiteReader
from longshore.core.actor import actor
from longshore.core.clock import Reading, SteadyClock
from longshore.core.errors import BackendUnavailable, DuplicateJob
from longshore.core.job import Job
from longshore.core.job_record import Record
from longshore.core.status import ELIGIBLE, JobStatus
from longshore.core.transitions import Change, EventRow
from longshore.core.validation import LAST_NUMBER, USED_UP

_LEAST_PASSED = 20
"""Jobs of other types that even the smallest claim skips before it uses the index of types."""


class SQLiteClaimQueries(SQLiteReader, SQLClaimQueries):
    """The part of a write transaction that claims lean on."""

    def hold_settings(self, names: Sequence[str]) -> dict[str, QueueState]:
        return self.hold_queues(names)

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:  # noqa: ARG002 - there is one writer, alone in any case
        return self.queue_states(names)

    def claim_next(
        self,
        queues: Sequence[str],
        limit: int,
        assignee_id: str,
        token: str,
        expires_at: int | None,
        types: Sequence[str] | None = None,
    ) -> list[Job] | None:
        rows = self._first_in_line(queues, limit) if types is None else self._first_of_types(queues, limit, types)
        if any_outlived(rows, self.now):
            return None  # they are ended on the way, which takes a closer look at each
        claimant = Claimant(assignee_id, token, expires_at, self.now)
        jobs = claimant.jobs(rows, self._dependencies_of)
        if jobs:
            self._write_claim([job.uid for job in jobs], assignee_id, token, expires_at)
            self._follow(MOVES, rows, JobStatus.RUNNING)
        return jobs

    def claim_within_keys(
        self,
        queue: QueueState,
        limit: int,
        passed: int,
        assignee_id: str,
        token: str,
        expires_at: int | None,
        types: Sequence[str] | None = None,
    ) -> list[Job] | None:
        within = WithinKeys(queue, limit, passed, self.now, types)
        with closing(self._line_of(queue.name, limit + passed + 1, SQL.first_with_keys)) as line:
            rows = within.choose(line)
        if not rows or any_outlived(rows, self.now):
            return None
        jobs = Claimant(assignee_id, token, expires_at, self.now).jobs(rows, self._dependencies_of)
        self._write_claim([job.uid for job in jobs], assignee_id, token, expires_at)
        self._follow(MOVES, rows, JobStatus.RUNNING)
        self._use_keys(queue, within.used)
        return jobs

    def _use_keys(self, queue: QueueState, used: Mapping[str, int]) -> None:
        since, until = self._window(queue) or (None, None)
        for jobs, keys in _by_number(used).items():
            self._run(SQL.use_keys, queue.name, jobs, self._listed(keys), since, until)

    def give_back_keys(self, queue: QueueState, given_back: Mapping[str, int]) -> Mapping[str, KeyState] | None:
        """When a key wakes was told when it was used, and stays so."""
        for jobs, keys in _by_number(given_back).items():
            self._run(SQL.give_back_keys, queue.name, jobs, self._listed(keys))
        self._run(SQL.forget_idle_keys, queue.name, self._listed(given_back), *self._window(queue) or (None, None))
        return self.key_states(queue.name, list(given_back)) if self.any_blocked(queue.name) else None

    @abstractmethod
    def _write_claim(self, uids: Sequence[int], owner: str | None, token: str | None, expires_at: int | None) -> None:
        """Writes a claim and its events."""

    @abstractmethod
    def _follow(self, moves: Moves, rows: Sequence[Row], status: JobStatus) -> None:
        """Counts and tags, after jobs that all went into one status."""

    def _first_in_line(self, queues: Sequence[str], limit: int) -> list[Row]:
        return list(islice(self._merged(queues, limit), limit))

    def _merged(self, queues: Sequence[str], limit: int) -> Iterator[Row]:
        """The claimable jobs of these queues merged in order, up to a limit for each priority of each queue."""
        lines = [self._line_of(queue, limit) for queue in queues]
        return lines[0] if len(lines) == 1 else heapq.merge(*lines, key=in_standing_order)

    def _first_of_types(self, queues: Sequence[str], limit: int, types: Sequence[str]) -> list[Row]:
        """Reads the plain order, because most jobs usually have these types; falls back to the index of types."""
        known = frozenset(types)
        most_passed = max(limit // 2, _LEAST_PASSED)
        found: list[Row] = []
        passed = 0
        for row in self._merged(queues, limit + most_passed + 1):
            if type_of(row) in known:
                found.append(row)
                if len(found) == limit:
                    return found
            else:
                passed += 1
                if passed > most_passed:
                    break
        else:
            return found
        lines = [line for queue in queues for line in self._lines_of_types(queue, types, SQL.first_of_type, limit)]
        return list(islice(heapq.merge(*lines, key=in_standing_order), limit))

    def _lines_of_types(self, queue: str, types: Sequence[str], statement: str, limit: int) -> list[Iterator[Row]]:
        """One ordered source for each of these types that has a waiting job."""
        first = list(self._rows(SQL.first_priorities_of_types, queue, self._listed(types)))
        return [
            self._line_of_type(queue, job_type, priority, statement, limit)
            for job_type, priority in first
            if priority is not None
        ]

    def _line_of_type(self, queue: str, job_type: str, priority: int, statement: str, limit: int) -> Generator[Row]:
        following: Row | None = (priority,)
        while following is not None:
            (priority,) = following
            yield from self._rows(statement, queue, priority, self.now, job_type, limit)
            following = self._one(SQL.next_priority_of_type, queue, job_type, priority)

    def _line_of(self, queue: str, limit: int, statement: str = SQL.first_in_line) -> Generator[Row]:
        for priority in self._priorities(queue):
            yield from self._rows(statement, queue, priority, self.now, limit)

    def claim_at_once(
        self, chosen: Sequence[Candidate], assignee_id: str, token: str, expires_at: int | None
    ) -> list[Job]:
        uids = [entry.uid for entry in chosen]
        rows = sorted(self._rows(SQL.jobs_to_claim, self._listed(uids)), key=in_standing_order)
        self._write_claim(uids, assignee_id, token, expires_at)
        self._follow(MOVES, rows, JobStatus.RUNNING)
        return Claimant(assignee_id, token, expires_at, self.now).jobs(rows, self._dependencies_of)

    def _candidates_of_types(
        self, queue: QueueState, types: Sequence[str], _wanted: Callable[[], int]
    ) -> Iterator[Candidate]:
        lines = self._lines_of_types(queue.name, types, SQL.claimable_of_type, -1)
        return map(Candidate._make, heapq.merge(*lines))

    def _tagged_candidates(
        self, queue: QueueState, tags: Sequence[str], _wanted: Callable[[], int], types: Sequence[str] | None
    ) -> Iterator[Candidate]:
        rarest, *others = self._rarest_first(tags)
        also = json.dumps(others)
        known = None if types is None else self._listed(types)
        for priority in self._tagged_priorities(queue.name, rarest):
            for (uid,) in self._rows(SQL.tagged_claimable, rarest, queue.name, priority, self.now, also):
                if queue.limits_keys:
                    row = self._one(SQL.uid_with_free_slots, queue.name, uid, self.now, *self._limits(queue), known)
                else:
                    row = self._one(SQL.claimable_by_uid, uid, self.now, known)
                if row is not None:
                    yield Candidate._make((*row, None, 0, 0))

    def _put_keys(self, rows: Sequence[Row]) -> None:
        self._many(SQL.put_key, rows)

    def unblock(self, queue: str, free_slots: Mapping[str, int]) -> None:
        blocked: list[int] = []
        for key, job_type in list(self._rows(SQL.types_with_blocked, queue, self._listed(free_slots))):
            blocked += [uid for (uid,) in self._rows(SQL.first_blocked, queue, key, job_type, free_slots[key])]
        self._unblock(blocked)


def _by_number(keys: Mapping[str, int]) -> Mapping[int, list[str]]:
    """Keys by the number that goes with each: mostly it is the same one."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for key, number in keys.items():
        by_number[number].append(key)
    return by_number


_ACCEPTED = Moves(["uid", "queue", "status", "retry_count", "place", "tags"])
"""The columns of `jobs_to_accept`."""
_COMPLETED_COLUMNS = [
    *("number", "epoch", "token", "uid", "owner", "queue", "key"),
    *("status", "retry_count", "place", "tags"),
]
"""Those of `jobs_to_complete`."""
_COMPLETED = Moves(_COMPLETED_COLUMNS)
_owner = itemgetter(_COMPLETED_COLUMNS.index("owner"))
_queue_and_key = itemgetter(*map(_COMPLETED_COLUMNS.index, ("queue", "key")))
_WORTH_A_STATEMENT = 4
"""So many jobs that completed with the same result are written together; fewer are written one by one."""


class SQLiteTransaction(SQLiteClaimQueries):
    """Lives as long as its connection; `begin` and `finish` frame each transaction, `now` is set for each verb."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection, lambda: self.now)
        self.now = 0
        self._next_uid = 0
        self._next_event = 0
        self._first_of_both = (0, 0)
        self._compared: Reading | None = None
        """The machine's clocks as stored after the last step or reboot."""
        self.news = False

    def begin(self) -> None:
        """Reads where uids and events go on; other processes may have taken some since."""
        self.news = False
        ((*numbers, boot_id, wall, since_boot),) = self._rows(SQL.counters_and_clock)
        self._next_uid, self._next_event = numbers
        if self._next_uid > LAST_NUMBER or self._next_event > LAST_NUMBER:
            raise BackendUnavailable(f"{self._connection.filename} {USED_UP}")
        self._compared = None if boot_id is None else Reading(boot_id, wall, since_boot)
        self._first_of_both = (self._next_uid, self._next_event)

    def compare_clocks(self, reading: Reading) -> int:
        """How far the wall clock was set since the clocks were stored, in microseconds; 0 if by at most two seconds.

        Shifts every time that came from a duration. After a reboot the time that passed is unknown: only a clock behind
        the newest event was certainly set.
        """
        stored = self._compared
        if stored is not None and stored.boot_id == reading.boot_id:
            step = reading.started_at - stored.started_at
        else:
            newest = self._one(SQL.newest_event)
            step = 0 if stored is None or newest is None else min(reading.wall - newest[0], 0)
        stepped = abs(step) > SteadyClock.TOLERANCE
        if stepped or stored is None or stored.boot_id != reading.boot_id:
            self._run(SQL.anchor_clock, *reading)
            self._compared = reading
        if not stepped:
            return 0
        self.news = True
        self._run(SQL.record_step, reading.wall, step)
        self._run(SQL.shift_relative_times, step)
        self._next_event += self._run(SQL.insert_shifted_events, self._next_event, reading.wall)
        self._run(SQL.count_shifted_events)
        self._run(SQL.shift_places, step, reading.wall)
        self._run(SQL.shift_tags)
        self._run(SQL.shift_leases, step)
        self._run(SQL.shift_cancellations, step)
        return step

    def finish(self) -> None:
        """Writes back where they go on from here."""
        if self._first_of_both != (self._next_uid, self._next_event):
            self.news = True
            self._connection.execute(SQL.save_counters, (self._next_uid, self._next_event))

    def _run(self, statement: str, *values: Any) -> int:
        self._connection.execute(statement, values)
        return self._connection.changes()

    def _many(self, statement: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(statement, rows)

    def _pruned_through(self, row: Row) -> tuple[int, int]:
        deleted, seen = row
        return deleted, seen

    # -- jobs

    def jobs_by_id(self, job_ids: Sequence[str]) -> dict[str, Record]:
        if len(job_ids) == 1:
            row = self._one(SQL.job_by_id, job_ids[0])
            return {} if row is None else {job_ids[0]: record_of_row(row)}
        return super().jobs_by_id(job_ids)

    def jobs_to_renew(self, job_ids: Sequence[str]) -> dict[str, Record]:
        return self.jobs_by_id(job_ids)

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

    def new_uids(self, count: int) -> Sequence[int]:
        first = self._next_uid
        self._next_uid += count
        return range(first, self._next_uid)

    def insert(self, records: Sequence[Record], events: Sequence[EventRow]) -> None:
        if not records:
            return
        self._insert_rows(records)
        self._many(SQL.insert_tag, (row for record in records if record.tags for row in tag_rows(record)))
        self._connection.execute(SQL.insert_added_events, (self._next_event, records[0].uid, self.now, actor()))
        self._next_event += len(records)
        self._append(events)
        counts = Counter((record.queue, record.status) for record in records)
        self._many(SQL.add_to_count, ((*key, jobs, 0) for key, jobs in counts.items()))

    def _insert_rows(self, records: Sequence[Record]) -> None:
        """Under a savepoint: if an id is taken, nothing of this batch stays, and what others wrote before it does."""
        self._connection.execute("SAVEPOINT batch")
        before = self._connection.total_changes()
        self._many(SQL.insert_job, ((*inserted_row(record), record.relative) for record in records))
        if self._connection.total_changes() - before == len(records):
            self._connection.execute("RELEASE batch")
            return
        taken = self.ids_taken([record.id for record in records], records[0].uid)
        self._connection.execute("ROLLBACK TO batch")
        self._connection.execute("RELEASE batch")
        self._next_uid = records[0].uid
        raise DuplicateJob([record.id for record in records if record.id in taken])

    def ids_taken(self, job_ids: Sequence[str], before: int | None = None) -> set[str]:
        """The ids among these that stored jobs have, with uids below `before` if it is given."""
        names, first_uid = self._listed(job_ids), self._next_uid if before is None else before
        return {job_id for (job_id,) in self._rows(SQL.ids_taken, names, first_uid)}

    def save(self, changes: Sequence[Change]) -> None:
        before = self._connection.total_changes()
        completed, others = completed_by_result(changes)
        self._complete(completed)
        self._many(SQL.save_job, ((change.record.relative, *saved_row(change)) for change in others))
        self._expect(2 * len(changes) - len(others), before)
        self._save_tags(changes)
        self._append([event for change in others for event in change.events])
        self._many(SQL.add_to_count, deltas_of(changes))

    def complete_at_once(self, ended: Iterable[Completion], _among: Iterable[str]) -> Ended:
        given = list(ended)
        job_ids: list[str] = []
        rows: list[Row] = []
        results: dict[bytes | None, list[int]] = defaultdict(list)
        names = self._listed(completion.job_id for completion in given)
        for row in self._rows(SQL.jobs_to_complete, names, self.now):
            job_id, epoch, token, result = given[row[0]]
            if row[1] == epoch and row[2] == token:
                job_ids.append(job_id)
                rows.append(row)
                results[result].append(row[3])
        before = self._connection.total_changes()
        self._complete(results)
        self._expect(2 * len(rows), before)
        self._follow(_COMPLETED, rows, JobStatus.COMPLETED)
        return Ended(job_ids, Counter(map(_owner, rows)), keys_by_queue(map(_queue_and_key, rows)))

    def _follow(self, moves: Moves, rows: Sequence[Row], status: JobStatus) -> None:
        """Counts and tags, after jobs that all went into one status."""
        self._many(SQL.save_tag, moves.tag_rows(rows, status))
        self._many(SQL.add_to_count, moves.deltas(rows, status))

    def _complete(self, results: Mapping[bytes | None, Sequence[int]]) -> None:
        """Jobs that completed, by result; their events first, as they tell of what each was."""
        if not results:
            return
        uids = self._listed(chain.from_iterable(results.values()))
        self._connection.execute(SQL.insert_completed_events, (self._next_event, self.now, uids))
        self._next_event += self._connection.changes()
        single: list[Row] = []
        for result, alike in results.items():
            if len(alike) < _WORTH_A_STATEMENT:
                single += [(result, self.now, uid) for uid in alike]
            elif (span := _span_of(alike)) is not None:
                self._connection.execute(SQL.complete_span, (result, self.now, *span))
            else:
                self._connection.execute(SQL.complete_jobs, (result, self.now, self._listed(alike)))
        self._many(SQL.complete_job, single)

    def accept_at_once(self, job_ids: Sequence[str]) -> bool:
        rows = list(self._rows(SQL.jobs_to_accept, self._listed(job_ids), self.now))
        if not rows or len(rows) != len(job_ids):
            return False
        before = self._connection.total_changes()
        uids = self._listed(uid for uid, *_ in rows)
        self._connection.execute(SQL.insert_accepted_events, (self._next_event, self.now, actor(), uids))
        self._next_event += len(rows)
        self._connection.execute(SQL.accept_jobs, (self.now, uids))
        self._expect(2 * len(rows), before)
        self._follow(_ACCEPTED, rows, JobStatus.INITIAL_PENDING)
        return True

    def announce_due(self, limit: int) -> list[str]:
        due = list(self._rows(SQL.jobs_to_announce, self.now, limit))
        if due:
            before = self._connection.total_changes()
            listed = self._listed(uid for uid, _ in due)
            self._connection.execute(SQL.insert_promoted_events, (self._next_event, self.now, listed))
            self._next_event += len(due)
            self._connection.execute(SQL.announce_jobs, (self.now, listed))
            self._expect(2 * len(due), before)
        return [job_id for _, job_id in due]

    def _write_claim(self, uids: Sequence[int], owner: str | None, token: str | None, expires_at: int | None) -> None:
        before = self._connection.total_changes()
        listed = self._listed(uids)
        self._connection.execute(SQL.insert_active_events, (self._next_event, owner, self.now, listed))
        self._next_event += len(uids)
        span = _span_of(uids)
        if span is not None:
            self._connection.execute(SQL.claim_span, (self.now, owner, token, expires_at, *span))
        else:
            self._connection.execute(SQL.claim_jobs, (self.now, owner, token, expires_at, listed))
        self._expect(2 * len(uids), before)

    def _expect(self, changed: int, before: int) -> None:
        if self._connection.total_changes() - before != changed:
            raise ChangedUnderneath("a job changed under a write transaction: the file is written by something else")

    def _save_tags(self, changes: Sequence[Change]) -> None:
        self._many(SQL.save_tag, (row for change in changes for row in _changed_tag_rows(change.record)))

    def remove(self, changes: Sequence[Change]) -> None:
        records = [change.record for change in changes]
        self._many(
            SQL.insert_tombstone,
            ((r.uid, r.id, r.queue, r.type, r.status, r.idempotency_key, self.now, r.request) for r in records),
        )
        self._many(SQL.delete_tag, ((tag, r.uid) for r in records for tag in r.tags))
        for statement in (SQL.delete_logs, SQL.delete_edges, SQL.delete_job):
            self._many(statement, ((record.uid,) for record in records))
        self._append([event for change in changes for event in change.events])
        self._many(SQL.add_to_count, deltas_of(changes, removed=True))

    # -- identity, dependencies, events

    def jobs_by_key(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        by_queue: dict[str, list[str]] = defaultdict(list)
        for queue, key in pairs:
            by_queue[queue].append(key)
        known: dict[tuple[str, str], str] = {}
        for queue, keys in by_queue.items():
            wanted = self._listed(keys)
            for key, job_id in self._rows(SQL.removed_jobs_of_keys, queue, wanted, self.now - KEY_TTL):
                known[queue, key] = job_id
            for key, job_id in self._rows(
                SQL.jobs_of_keys, queue, wanted
            ):  # what is there counts, else the last removed
                known[queue, key] = job_id
        return known

    def held_statuses(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return self.statuses(job_ids)

    def lock_dependents(self, job_ids: Sequence[str], tags: Sequence[str], queue: str | None) -> None:
        pass  # there is one writer

    def put_edges(self, edges: Sequence[Edge]) -> None:
        self._many(SQL.put_edge, edges)

    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        if self._one(SQL.any_open_edge) == (0,):
            return []
        return super().open_edges(depends_on)

    def count_down(self, fewer: Mapping[int, int]) -> dict[int, int]:
        left = {}
        for uid, less in fewer.items():
            for (remaining,) in self._rows(SQL.count_down, less, uid):
                left[uid] = remaining
        return left

    def unsure_edges(self, _limit: int) -> list[Edge]:
        return []

    def _append(self, events: Sequence[EventRow]) -> None:
        numbers = range(self._next_event, self._next_event + len(events))
        self._next_event = numbers.stop
        self._many(SQL.insert_event, [(number, *event) for number, event in zip(numbers, events, strict=True)])


def _span_of(uids: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last of them, if they are all there are from one to the other, and each is there once."""
    first, last = min(uids), max(uids)
    return (first, last) if last - first == len(set(uids)) - 1 == len(uids) - 1 else None


def _changed_tag_rows(record: Record) -> Iterator[Row]:
    claimable = record.status in ELIGIBLE
    for tag in record.tags:
        yield (record.place, claimable, record.status, record.retry_count, tag, record.uid)
