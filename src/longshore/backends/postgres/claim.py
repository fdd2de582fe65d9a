"""Claims on PostgreSQL: the next jobs, by tags and types, and blocked jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from longshore.backends.port import Candidate, Hold, KeyState, NewLease, QueueState, Reader, Undecided
from longshore.backends.postgres.claim_low_water import LowWaterMarks
from longshore.backends.postgres.connection import OwnSession, Session
from longshore.backends.postgres.locks import LockFirst, LockSpaces, Wanted, in_order
from longshore.backends.postgres.reads import PostgresQueries
from longshore.backends.sql.reads import BEFORE_ALL
from longshore.backends.sql.rows import MOVES, Row, claimed_jobs, queue_of_row, row_claim_order
from longshore.backends.sql.statements import Statements
from longshore.backends.sql.writes import ChangedUnderneath, SQLTransaction
from longshore.core.job import Job
from longshore.core.limits import window_of

_LEAST_AT_ONCE = 20


class PostgresClaimQueries(SQLTransaction):
    """The part of a write transaction that claims use."""

    def __init__(
        self,
        session: Session,
        sql: Statements,
        locks: LockSpaces,
        marks: LowWaterMarks,
        limited: set[str],
        *,
        token_prefix: str,
        careful: bool = False,
        shares_locks: bool = True,
        known_queues: frozenset[str] = frozenset(),
        known_keys: Mapping[tuple[str, str], str] | None = None,
        read_elsewhere: Callable[[Callable[[Reader], Any]], Any] | None = None,
    ) -> None:
        self._locking = PostgresQueries(session, sql)
        super().__init__(sql, self._locking)
        self._session = session
        self.now = 0
        self.token_prefix = token_prefix
        self.changed = False
        self.queues: set[str] = set()
        """The queues that changed."""
        self.counted = 0
        """Rows added to the counts."""
        self.new_queues: set[str] = set()
        """Queues whose names were stored, or found stored, by this transaction."""
        self._known_queues = known_queues
        self._known_keys = known_keys or {}
        self._read_elsewhere = read_elsewhere
        self._careful = careful
        self._shares_locks = shares_locks
        self._held_schedules: set[str] = set()
        self._verified: set[str] = set()
        """Jobs that no other transaction ends before this one does: locked, or stored by it."""
        self.uses_server_clock = False
        """Whether the server's clock decides; otherwise a test's clock does."""
        self._entries = 0
        self._held: dict[str, QueueState] = {}
        """Locked queues: no other transaction changes them before this one ends."""
        self._holds: dict[str, Hold] = {}
        """How each of them is locked."""
        self._up_to_date: set[str] = set()
        """Those whose free slots were read, and have not changed since."""
        self._released: dict[str, list[Any]] = {}
        """The released slots of keys of queues with blocked jobs, until those are unblocked."""
        self._window_ends: dict[str, tuple[int | None, int | None]] = {}
        """The first and the last end of a key's window, for queues whose slots it holds."""
        self.holds_all = False
        """Whether these are all queues."""
        self._limited = limited
        self._locks = locks
        self._marks = marks

    # -- queues, locked until the transaction ends

    def lock_queues(self, names: Sequence[str] | None, hold: Hold = Hold.SLOTS) -> dict[str, QueueState]:
        """Lock queues. The limits known from the last read decide how to lock them first."""
        if not self._shares_locks:
            return self.queue_states(names)
        if names is None:
            names = list(self._held) if self.holds_all else self.known_queues()
        if hold is Hold.SHARED:
            short = dict.fromkeys((name for name in names if name not in self._held), hold)
            if short:
                self._hold(short)
            return {name: self._held[name] for name in names}
        while missing := self._not_held_enough(names, hold):
            self._hold(missing)
        outdated = [name for name in names if self._held[name].limited and name not in self._up_to_date]
        if outdated:
            self._read_again(outdated)
        states = {name: self._held[name] for name in names}
        for state in states.values():
            state.eligible = 1
        return states

    def _not_held_enough(self, names: Sequence[str], hold: Hold) -> Wanted:
        """The queues to lock, or to lock more strictly, before their free slots are used. Reading them may show new
        limits."""
        limited = {
            name for name in names if (self._held[name].limited if name in self._held else name in self._limited)
        }
        enough = {name: hold if hold is Hold.EXCLUSIVE or name in limited else Hold.SHARED for name in names}
        return {name: needed for name, needed in enough.items() if self._holds.get(name, 0) < needed}

    def _hold(self, wanted: Wanted) -> None:
        assert isinstance(self._session, OwnSession)  # in the caller's transaction nothing is locked
        settings = self.settings_of(self._session, wanted)
        if self._locking.holds_rows or self._held:
            self._take_if_free(wanted)
            rows = self._session.simply(settings)
        else:
            rows = self._session.simply(self._locks.statements(wanted) + settings)
        self.record_held(rows, wanted)

    def _take_if_free(self, wanted: Wanted) -> None:
        locks = in_order(wanted)
        spaces, numbers = [self._locks.of(lock) for lock in locks], [lock.number for lock in locks]
        values = map(self._listed, (spaces, numbers, locks.values()))
        ((free,),) = self._rows(self._sql.try_locks, *values)
        if not free:
            raise LockFirst(self._holds | dict(wanted))

    def settings_of(self, session: OwnSession, wanted: Wanted, *, and_all_others: bool = False) -> str:
        """SQL that reads the settings of locked queues, and applies released slots."""
        slots = [name for name, hold in wanted.items() if hold is not Hold.SHARED]
        names = None if and_all_others else self._listed(wanted)
        if slots:
            return session.called(self._sql.held_settings_and_slots, self._listed(slots), names)
        return session.called(self._sql.held_settings, names)

    def _settings_in(self, rows: Iterable[Row]) -> dict[str, QueueState]:
        states = {}
        for entries, now, running_count, released, first, last, name, paused, *others in rows:
            self._entries = entries
            self.now = max(self.now, now) if self.uses_server_clock else self.now  # it may have waited for the locks
            if name is not None:
                states[name] = QueueState(name) if paused is None else queue_of_row((name, paused, *others))
                states[name].running_count = running_count or 0
                self._window_ends[name] = (first, last)
                if released is not None:
                    self._released[name] = released
        return states

    def record_held(self, rows: Iterable[Row], locked: Wanted) -> frozenset[str]:
        """Record queues as held that were locked before they were read; return the names of all that were read.

        Queues that were read but not locked are locked when they are needed.
        """
        states = self._settings_in(rows)
        limited = {name for name, state in states.items() if state.limited}
        self._limited.update(limited)
        self._limited.difference_update(states.keys() - limited)
        self._held |= {name: states[name] for name in locked if name in states}
        self._holds |= {name: locked[name] for name in locked if name in states}
        self._up_to_date.update(name for name, hold in locked.items() if hold is not Hold.SHARED)
        if self._released:
            self._unblock_released()
        return frozenset(states)

    def _read_again(self, names: Sequence[str]) -> None:
        """Read the free slots of locked queues again, after this transaction changed them."""
        assert isinstance(self._session, OwnSession)
        held = {name: self._holds[name] for name in names}
        self.record_held(self._session.simply(self.settings_of(self._session, held)), held)

    def _unblock_released(self) -> None:
        """Unblock as many jobs as their keys have free slots."""
        for name, keys in self._released.items():
            states = [KeyState(name, key, running_count, window_of(*window)) for key, running_count, *window in keys]
            slots = {state.key: state.free_slots(self._held[name], self.now) for state in states}
            self.unblock(name, {key: free_slots for key, free_slots in slots.items() if free_slots})
        self._released.clear()

    # -- the claim in one statement

    def claim(
        self,
        queues: Sequence[QueueState],
        limit: int,
        lease: NewLease,
        types: Sequence[str] | None,
        most_skipped: int | None,
    ) -> list[Job] | Undecided:
        if not queues:
            return []
        if most_skipped is not None:
            return self._claim_within_keys(queues[0], limit, lease, types, most_skipped)
        names = [queue.name for queue in queues]
        shares = {names[0]: limit} if len(names) == 1 else self._shares(names, limit, types)
        rows: list[Row] = []
        for queue in sorted(shares):
            claimed = self._claim_from(queue, shares[queue], lease, types)
            if claimed is None and not rows:
                return Undecided.EXPIRED
            rows += claimed or ()
        rows.sort(key=row_claim_order)
        return self._as_claimed(rows, len(shares), lease)

    def _as_claimed(self, rows: list[Row], queues: int, lease: NewLease) -> list[Job]:
        """The jobs of rows that a statement has just claimed; also updates their tags."""
        tagged = [MOVES.tagged(row)[0] for row in rows if MOVES.tags(row)]
        if tagged:
            self._run(self._sql.save_tag, self._listed(tagged))
        self.changed = self.changed or bool(rows)
        self.counted += 2 * queues
        self._up_to_date.clear()
        return claimed_jobs(rows, lease, self.now, self._dependencies_of)

    def _shares(self, queues: Sequence[str], limit: int, types: Sequence[str] | None) -> dict[str, int]:
        """The number of jobs to claim from each queue, by the common claim order."""
        values = (self._listed(queues), self.now, limit)
        if types is None:
            return Counter(name for (name,) in self._rows(self._sql.shares_of_queues, *values))
        return Counter(name for (name,) in self._rows(self._sql.shares_of_queues_by_type, *values, self._listed(types)))

    def _claim_from(self, queue: str, limit: int, lease: NewLease, types: Sequence[str] | None) -> list[Row] | None:
        """Claim from the marks or from the start. Marks are kept for each set of types, which have other positions."""
        values: tuple[Any, ...] = (queue, self.now, limit, *lease)
        statement, from_marks = self._sql.claim_next, self._sql.claim_from_cursor
        if types is not None:
            statement, from_marks = self._sql.claim_types, self._sql.claim_types_from_cursor
            values = (*values, self._listed(types))
        source = (queue, None if types is None else tuple(types))
        marks = self._marks.of(source)
        if marks is not None:
            marked, _ = self._claimed(from_marks, *values, *map(self._listed, zip(*marks, strict=True)))
            if marked is not None:
                self._marks.record_marked_read(source, marked)
            return marked
        claimed, entries = self._claimed(statement, *values)
        if claimed is not None:
            beyond_plain = 0 if types is None else 10 * limit * len(types)  # it reads the first jobs of each type
            self._marks.record_full_read(source, entries - beyond_plain, limit, claimed, self.now)
        return claimed

    def _claimed(self, statement: str, *values: object) -> tuple[list[Row] | None, int]:
        """The rows of `claimed_columns` that a statement claimed, and the number of index entries it read.

        None means that a job is past its `expires_at`, and nothing was claimed.
        """
        rows = list(self._rows(statement, *values))
        expired = False
        if rows:
            entries = rows[0][0]
        else:
            ((entries, expired),) = self._rows(self._sql.entries_read, self.now)
        read, self._entries = entries - self._entries, entries
        return None if expired else [row[1:] for row in rows], read

    def _claim_within_keys(
        self, queue: QueueState, limit: int, lease: NewLease, types: Sequence[str] | None, passed: int
    ) -> list[Job] | Undecided:
        """Claim in one statement, like a claim without limits."""
        at_once = limit + passed  # enough, unless it skips more than `passed`
        per_key, starts, since = self._limits(queue)
        until = since if queue.rate_per_key is None else since + queue.rate_per_key.per_micros
        values = (queue.name, self.now, limit, *lease, at_once, passed)
        limits = (per_key, starts, since, until)
        if types is None:
            rows = list(self._rows(self._sql.claim_within_keys, *values, *limits))
        else:
            rows = list(self._rows(self._sql.claim_types_within_keys, *values, *limits, self._listed(types)))
        if not rows:
            return Undecided.FULL_KEYS
        return self._as_claimed(sorted((row[1:] for row in rows), key=row_claim_order), 1, lease)

    # -- the claim job by job, with limits or tags

    def claim_chosen(self, chosen: Sequence[Candidate], lease: NewLease) -> list[Job]:
        by_queue: dict[str, list[int]] = defaultdict(list)
        for entry in chosen:
            by_queue[entry.queue].append(entry.uid)
        rows: list[Row] = []
        for queue, uids in by_queue.items():
            values = (queue, self.now, self._listed(uids), *lease)
            rows += [row[1:] for row in self._rows(self._sql.claim_chosen, *values)]
        if len(rows) != len(chosen):
            raise ChangedUnderneath(f"{len(rows)} of {len(chosen)} locked jobs were claimed")
        rows.sort(key=row_claim_order)
        return self._as_claimed(rows, len(by_queue), lease)

    def _first_candidates(self, queue: QueueState, at_once: int) -> list[Candidate] | None:
        return list(map(Candidate._make, self._rows(self._sql.first_candidates, queue.name, self.now, at_once)))

    def _candidates_of_types(
        self, queue: QueueState, types: Sequence[str], wanted: Callable[[], int]
    ) -> Iterator[Candidate]:
        last = (BEFORE_ALL, BEFORE_ALL, 0)
        while True:
            at_once = max(wanted() * 5 // 4, _LEAST_AT_ONCE)
            values = (queue.name, self.now, at_once, *last, self._listed(types))
            found = [Candidate._make(row) for row in self._rows(self._sql.candidates_of_types, *values)]
            yield from found
            if len(found) < at_once:
                break
            last = found[-1][:3]

    def _tagged_candidates(
        self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int], types: Sequence[str] | None
    ) -> Iterator[Candidate]:
        rarest, *others = self._rarest_first(tags)
        known = None if types is None else self._listed(types)
        for priority in self._tagged_priorities(queue.name, rarest):
            last = (BEFORE_ALL, 0)
            while True:
                at_once = max(wanted(), _LEAST_AT_ONCE)
                values = (rarest, queue.name, priority, self.now, self._listed(others), *last, at_once, known)
                rows = self._rows(self._sql.tagged_claimable, *values, *self._limits(queue))
                found = [Candidate(*row) for row in rows]
                yield from found
                if len(found) < at_once:
                    break
                last = (found[-1].sort_key, found[-1].uid)

    # -- keys

    def _put_keys(self, rows: Sequence[Row]) -> None:
        self._run(self._sql.put_key, *map(self._listed, zip(*rows, strict=True)))

    def release_keys(self, queue: QueueState, released: Mapping[str, int]) -> None:
        """Record the released slots. The next transaction that locks the queue's slots applies them to the keys."""
        self._up_to_date.discard(queue.name)
        self._run(self._sql.note_released_slots, queue.name, self._listed(released), self._listed(released.values()))

    def keys_with_ended_windows(self, queue: QueueState) -> list[KeyState]:
        first, last = self._window_ends.get(queue.name, (None, None))
        until = self.now if queue.rate_per_key is None else self.now + queue.rate_per_key.per_micros
        if first is None or last is None or (first > self.now and last <= until):
            return []
        return super().keys_with_ended_windows(queue)

    def unblock(self, queue: str, free_slots: Mapping[str, int]) -> None:
        if free_slots and self._run(
            self._sql.unblock_first, queue, self._listed(free_slots), self._listed(free_slots.values())
        ):
            self.changed = True
