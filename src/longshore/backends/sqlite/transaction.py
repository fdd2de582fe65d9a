"""The write transaction on the writer's connection, with SQLite's claim queries."""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from operator import itemgetter
from typing import NoReturn

import apsw

from longshore.backends.port import (
    KEY_TTL,
    Candidate,
    Completion,
    Edge,
    Ended,
    KeyState,
    NewLease,
    QueueState,
    Undecided,
    keys_by_queue,
)
from longshore.backends.sql.reads import BEFORE_ALL
from longshore.backends.sql.rows import (
    MOVES,
    Moves,
    Row,
    WithinKeys,
    any_expired,
    claimed_jobs,
    deltas_of,
    deltas_of_moves,
    inserted_row,
    record_of_row,
    row_claim_order,
    saved_row,
    tag_rows,
    tags_of_moves,
    type_of,
)
from longshore.backends.sql.writes import ChangedUnderneath, SQLTransaction
from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.reads import SQLiteQueries, records_by_key
from longshore.core.actor import actor
from longshore.core.clock import Reading, SteadyClock, StoreClock, read_machine
from longshore.core.errors import BackendUnavailable, DuplicateJob
from longshore.core.job import Job
from longshore.core.job_record import Record, Tombstone
from longshore.core.status import ELIGIBLE, JobStatus
from longshore.core.times import SECOND
from longshore.core.transitions import Change, EventRow
from longshore.core.validation import LAST_NUMBER, USED_UP
from longshore.safe_logging import logger

_log = logger("longshore.sqlite")

_LEAST_SKIPPED = 20
"""The jobs of other types that the smallest claim skips before it uses the index of types."""


def _by_number(keys: Mapping[str, int]) -> Mapping[int, list[str]]:
    """Group keys by their number, which is mostly the same."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for key, number in keys.items():
        by_number[number].append(key)
    return by_number


_ACCEPTED = Moves(["uid", "queue", "status", "retry_count", "sort_key", "tags"])
"""The columns of `jobs_to_accept`."""
_COMPLETED_COLUMNS = [
    *("number", "epoch", "token", "uid", "owner", "queue", "key"),
    *("status", "retry_count", "sort_key", "tags"),
]
"""The columns of `jobs_to_complete`."""
_COMPLETED = Moves(_COMPLETED_COLUMNS)
_owner = itemgetter(_COMPLETED_COLUMNS.index("owner"))
_queue_and_key = itemgetter(*map(_COMPLETED_COLUMNS.index, ("queue", "key")))
_WORTH_A_STATEMENT = 4
"""The number of jobs with the same result from which one statement writes them all."""


class SQLiteTransaction(SQLTransaction):
    """Exists as long as its connection; `begin` and `finish` frame each transaction, `now` is set for each
    operation."""

    token_prefix = ""

    def __init__(self, connection: apsw.Connection, clock: StoreClock) -> None:
        super().__init__(SQL, SQLiteQueries(connection))
        self._connection = connection
        self._store_clock = clock
        self.now = 0
        self._next_uid = 0
        self._next_event = 0
        self._first_of_both = (0, 0)
        self.changed = False

    def begin(self) -> None:
        """Read the next uid and event number, which other processes may have changed; then compare the clocks."""
        self.changed = False
        ((*numbers, boot_id, wall, since_boot),) = self._connection.execute(SQL.counters_and_clock)
        self._next_uid, self._next_event = numbers
        if self._next_uid > LAST_NUMBER or self._next_event > LAST_NUMBER:
            raise BackendUnavailable(f"{self._connection.filename} {USED_UP}")
        self._first_of_both = (self._next_uid, self._next_event)
        clock = self._store_clock
        if clock.boot_id is not None:
            reading = read_machine(clock.boot_id)
            clock.started_at = reading.wall - reading.since_boot
            if boot_id != reading.boot_id or abs(clock.started_at - (wall - since_boot)) > SteadyClock.TOLERANCE:
                self._compare_clocks(None if boot_id is None else Reading(boot_id, wall, since_boot), reading)

    def _compare_clocks(self, stored: Reading | None, reading: Reading) -> None:
        """Store the clocks after a reboot. If the wall clock was set, shift every time that came from a duration.

        After a reboot the elapsed time is unknown: only a clock behind the newest event was certainly set.
        """
        if stored is not None and stored.boot_id == reading.boot_id:
            step = reading.started_at - stored.started_at
        else:
            newest = self._one(SQL.newest_event)
            step = 0 if stored is None or newest is None else min(reading.wall - newest[0], 0)
        self._run(SQL.anchor_clock, *reading)
        if abs(step) <= SteadyClock.TOLERANCE:
            return
        self.changed = True
        self._run(SQL.record_step, reading.wall, step)
        self._run(SQL.shift_relative_times, step)
        self._next_event += self._run(SQL.insert_shifted_events, self._next_event, reading.wall)
        self._run(SQL.count_shifted_events)
        self._run(SQL.shift_sort_keys, step, reading.wall)
        self._run(SQL.shift_tags)
        self._run(SQL.shift_leases, step)
        self._run(SQL.shift_cancellations, step)
        _log.warning(
            "the machine's clock was set %s by %.1f seconds; leases and relative retries were shifted with it",
            "forward" if step > 0 else "back",
            abs(step) / SECOND,
        )

    def finish(self) -> None:
        """Write the next uid and event number."""
        if self._first_of_both != (self._next_uid, self._next_event):
            self.changed = True
            self._connection.execute(SQL.save_counters, (self._next_uid, self._next_event))

    def _pruned_through(self, row: Row) -> tuple[int, int]:
        deleted, seen = row
        return deleted, seen

    # -- jobs

    def jobs_by_id(self, job_ids: Sequence[str], *, renew: bool = False) -> dict[str, Record]:  # noqa: ARG002 - there is one writer
        if len(job_ids) == 1:
            row = self._one(SQL.job_by_id, job_ids[0])
            return {} if row is None else {job_ids[0]: record_of_row(row)}
        return super().jobs_by_id(job_ids)

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
        """Use a savepoint: if an id is taken, this batch is undone, and earlier writes of the transaction stay."""
        if not records:
            return
        connection = self._connection
        connection.execute("SAVEPOINT batch")
        before = connection.total_changes()
        connection.executemany(SQL.insert_job, ((*inserted_row(record), record.relative) for record in records))
        if connection.total_changes() - before != len(records):
            self._refuse_taken(records)
        connection.execute("RELEASE batch")
        tags = [row for record in records if record.tags for row in tag_rows(record)]
        if tags:
            connection.executemany(SQL.insert_tag, tags)
        connection.execute(SQL.insert_added_events, (self._next_event, records[0].uid, self.now, actor()))
        self._next_event += len(records)
        if events:
            self._append(events)
        counts = Counter((record.queue, record.status) for record in records)
        connection.executemany(SQL.add_to_count, ((*key, jobs, 0) for key, jobs in counts.items()))

    def _refuse_taken(self, records: Sequence[Record]) -> NoReturn:
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
        self._many(SQL.save_job, ((change.record.relative, *saved_row(change)) for change in changes))
        self._expect(len(changes), before)
        self._save_tags(changes)
        self._append([event for change in changes for event in change.events])
        self._many(SQL.add_to_count, deltas_of(changes))

    def complete(self, completions: Sequence[Completion], _among: Sequence[str]) -> Ended:
        job_ids: list[str] = []
        rows: list[Row] = []
        results: dict[bytes | None, list[int]] = defaultdict(list)
        names = json.dumps([completion.job_id for completion in completions])
        for row in self._connection.execute(SQL.jobs_to_complete, (names, self.now)):
            job_id, epoch, token, result = completions[row[0]]
            if row[1] == epoch and row[2] == token:
                job_ids.append(job_id)
                rows.append(row)
                results[result].append(row[3])
        if rows:
            before = self._connection.total_changes()
            self._complete(results)
            self._expect(2 * len(rows), before)
            self._follow(_COMPLETED, rows, JobStatus.COMPLETED)
        keyed = [pair for pair in map(_queue_and_key, rows) if pair[1] is not None]
        return Ended(job_ids, Counter(map(_owner, rows)), keys_by_queue(keyed) if keyed else {})

    def _follow(self, moves: Moves, rows: Sequence[Row], status: JobStatus) -> None:
        """Update counts and tags after jobs that all entered one status."""
        tagged = [row for row in rows if moves.tags(row)]
        if tagged:
            self._connection.executemany(SQL.save_tag, tags_of_moves(moves, tagged, status))
        self._connection.executemany(SQL.add_to_count, deltas_of_moves(moves, rows, status))

    def _complete(self, results: Mapping[bytes | None, Sequence[int]]) -> None:
        """Complete jobs, by result. Their events come first: they record the previous status."""
        uids = json.dumps(list(chain.from_iterable(results.values())))
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
        if single:
            self._connection.executemany(SQL.complete_job, single)

    def accept(self, job_ids: Sequence[str]) -> bool:
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

    def _claimed(self, rows: Sequence[Row], lease: NewLease) -> list[Job]:
        """Write the claim of these rows of `claimed_columns`, with its events, counts and tags; return the jobs."""
        if not rows:
            return []
        jobs = claimed_jobs(rows, lease, self.now, self._dependencies_of)
        uids = [job.uid for job in jobs]
        before = self._connection.total_changes()
        listed = json.dumps(uids)
        self._connection.execute(SQL.insert_active_events, (self._next_event, lease.owner, self.now, listed))
        self._next_event += len(uids)
        span = _span_of(uids)
        if span is not None:
            self._connection.execute(SQL.claim_span, (self.now, *lease, *span))
        else:
            self._connection.execute(SQL.claim_jobs, (self.now, *lease, listed))
        self._expect(2 * len(uids), before)
        self._follow(MOVES, rows, JobStatus.RUNNING)
        return jobs

    def _expect(self, changed: int, before: int) -> None:
        if self._connection.total_changes() - before != changed:
            raise ChangedUnderneath("a job changed during a write transaction: another program writes to the file")

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

    # -- claims and concurrency keys

    lock_queues = SQLTransaction.queue_states
    """There is one writer: what it reads does not change until it commits."""

    def claim(
        self,
        queues: Sequence[QueueState],
        limit: int,
        lease: NewLease,
        types: Sequence[str] | None,
        most_skipped: int | None,
    ) -> list[Job] | Undecided:
        if most_skipped is not None:
            return self._claim_within_keys(queues[0], limit, lease, types, most_skipped)
        rows = self._first_rows([queue.name for queue in queues], limit, types)
        if any_expired(rows, self.now):
            return Undecided.EXPIRED
        return self._claimed(rows, lease)

    def _claim_within_keys(
        self, queue: QueueState, limit: int, lease: NewLease, types: Sequence[str] | None, most_skipped: int
    ) -> list[Job] | Undecided:
        within = WithinKeys(queue, limit, most_skipped, self.now, types)
        with closing(self._claim_order(queue.name, limit + most_skipped + 1, SQL.first_with_keys)) as rows:
            chosen = within.choose(rows)
        if not chosen:
            return Undecided.FULL_KEYS
        if any_expired(chosen, self.now):
            return Undecided.EXPIRED
        jobs = self._claimed(chosen, lease)
        self._use_keys(queue, within.used)
        return jobs

    def claim_chosen(self, chosen: Sequence[Candidate], lease: NewLease) -> list[Job]:
        uids = json.dumps([entry.uid for entry in chosen])
        rows = sorted(self._connection.execute(SQL.jobs_to_claim, (uids,)), key=row_claim_order)
        return self._claimed(rows, lease)

    def _use_keys(self, queue: QueueState, used: Mapping[str, int]) -> None:
        since, until = self._window(queue) or (None, None)
        for jobs, keys in _by_number(used).items():
            self._run(SQL.use_keys, queue.name, jobs, self._listed(keys), since, until)

    def release_keys(self, queue: QueueState, released: Mapping[str, int]) -> Mapping[str, KeyState] | None:
        """A key keeps the window end of its last use."""
        for jobs, keys in _by_number(released).items():
            self._run(SQL.release_keys, queue.name, jobs, self._listed(keys))
        self._run(SQL.forget_idle_keys, queue.name, self._listed(released), *self._window(queue) or (None, None))
        return self.key_states(queue.name, list(released)) if self.any_blocked(queue.name) else None

    def _first_rows(self, queues: Sequence[str], limit: int, types: Sequence[str] | None) -> list[Row]:
        """The first claimable jobs of these queues.

        With types it reads the claim order first, because most jobs usually have these types, and uses the index of
        types if it would skip too many.
        """
        most_skipped = 0 if types is None else max(limit // 2, _LEAST_SKIPPED) + 1
        orders = [self._claim_order(queue, limit + most_skipped) for queue in queues]
        rows = orders[0] if len(orders) == 1 else heapq.merge(*orders, key=row_claim_order)
        if types is None:
            return list(islice(rows, limit))
        known = frozenset(types)
        found: list[Row] = []
        for row in rows:
            if type_of(row) in known:
                found.append(row)
                if len(found) == limit:
                    return found
            else:
                most_skipped -= 1
                if most_skipped == 0:
                    break
        else:
            return found
        of_types = [rows for queue in queues for rows in self._rows_of_types(queue, types, SQL.first_of_type, limit)]
        return list(islice(heapq.merge(*of_types, key=row_claim_order), limit))

    def _rows_of_types(self, queue: str, types: Sequence[str], statement: str, limit: int) -> list[Iterator[Row]]:
        """One ordered source for each of these types that has a waiting job."""
        first = list(self._rows(SQL.first_priorities_of_types, queue, self._listed(types)))
        return [
            self._rows_of_type(queue, job_type, priority, statement, limit)
            for job_type, priority in first
            if priority is not None
        ]

    def _rows_of_type(self, queue: str, job_type: str, priority: int, statement: str, limit: int) -> Generator[Row]:
        following: Row | None = (priority,)
        while following is not None:
            (priority,) = following
            yield from self._rows(statement, queue, priority, self.now, job_type, limit)
            following = self._one(SQL.next_priority_of_type, queue, job_type, priority)

    def _claim_order(self, queue: str, limit: int, statement: str = SQL.first_claimable) -> Generator[Row]:
        """The claimable jobs of a queue, up to a limit for each priority, with one index seek for each priority."""
        run = self._connection.execute
        priority = run(SQL.next_priority, (queue, BEFORE_ALL)).fetchone()
        while priority is not None:
            yield from run(statement, (queue, priority[0], self.now, limit))
            priority = run(SQL.next_priority, (queue, priority[0])).fetchone()

    def _candidates_of_types(
        self, queue: QueueState, types: Sequence[str], _wanted: Callable[[], int]
    ) -> Iterator[Candidate]:
        sources = self._rows_of_types(queue.name, types, SQL.claimable_of_type, -1)
        return map(Candidate._make, heapq.merge(*sources))

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
            for key, job_id in self._rows(SQL.jobs_of_keys, queue, wanted):  # a stored job wins over removed ones
                known[queue, key] = job_id
        return known

    def records_by_key(self, pairs: Sequence[tuple[str, str]], since: int) -> dict[tuple[str, str], Record | Tombstone]:
        return records_by_key(self, pairs, since)

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

    def unverified_edges(self, _limit: int) -> list[Edge]:
        return []

    def _append(self, events: Sequence[EventRow]) -> None:
        numbers = range(self._next_event, self._next_event + len(events))
        self._next_event = numbers.stop
        self._many(SQL.insert_event, [(number, *event) for number, event in zip(numbers, events, strict=True)])


def _span_of(uids: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last uid, if they form a range without gaps and duplicates."""
    first, last = min(uids), max(uids)
    return (first, last) if last - first == len(set(uids)) - 1 == len(uids) - 1 else None


def _changed_tag_rows(record: Record) -> Iterator[Row]:
    claimable = record.status in ELIGIBLE
    for tag in record.tags:
        yield (record.sort_key, claimable, record.status, record.retry_count, tag, record.uid)
