"""Claims on PostgreSQL: which jobs come next, with which tags, and which are blocked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from longshore.backends.port import Candidate, Hold, KeyState, NewLease, QueueState, Reader, Undecided
from longshore.backends.postgres.claim_low_water import LowWaterMarks
from longshore.backends.postgres.connection import OwnSession, Session
from longshore.backends.postgres.locks import HoldFirst, LockSpaces, Wanted, in_order
from longshore.backends.postgres.reads import PostgresQueries
from longshore.backends.sql.reads import BEFORE_ALL
from longshore.backends.sql.rows import MOVES, Row, claimed_jobs, in_standing_order, queue_of_row
from longshore.backends.sql.statements import Statements
from longshore.backends.sql.writes import ChangedUnderneath, SQLTransaction
from longshore.core.job import Job
from longshore.core.limits import window_of

_LEAST_AT_ONCE = 20


class PostgresClaimQueries(SQLTransaction):
    """The part of a write transaction that claims lean on."""

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
        look_elsewhere: Callable[[Callable[[Reader], Any]], Any] | None = None,
    ) -> None:
        self._locking = PostgresQueries(session, sql)
        super().__init__(sql, self._locking)
        self._session = session
        self.now = 0
        self.token_prefix = token_prefix
        self.news = False
        self.queues: set[str] = set()
        """The queues that have news."""
        self.counted = 0
        """Rows added to the counts."""
        self.new_queues: set[str] = set()
        """Queues whose names were stored, or found stored, and were not known to be."""
        self._known_queues = known_queues
        self._known_keys = known_keys or {}
        self._look_elsewhere = look_elsewhere
        self._careful = careful
        self._shares_locks = shares_locks
        self._held_schedules: set[str] = set()
        self._sure: set[str] = set()
        """Jobs that nobody ends before this transaction does: held, or stored by it."""
        self.tells_time = False
        """Whether the server's own clock judges here, rather than one that a test holds."""
        self._entries = 0
        self._held: dict[str, QueueState] = {}
        """Queues that nobody changes before this transaction ends."""
        self._holds: dict[str, Hold] = {}
        """How it holds them."""
        self._up_to_date: set[str] = set()
        """Those of them whose slots was read, and that nothing was changed in since."""
        self._given_back: dict[str, list[Any]] = {}
        """What keys of queues with blocked jobs have got back, until those step forward."""
        self._waking: dict[str, tuple[int | None, int | None]] = {}
        """When the first and the last key of a queue wakes whose slots it holds."""
        self.holds_all = False
        """Whether those are all the queues there are."""
        self._limited = limited
        self._locks = locks
        self._marks = marks

    # -- queues, held by locks that end with the transaction

    def hold_queues(self, names: Sequence[str] | None, hold: Hold = Hold.SLOTS) -> dict[str, QueueState]:
        """Which queues have limits is remembered from the last time; it decides how to lock them first."""
        if not self._shares_locks:
            return self.queue_states(names)
        if names is None:
            names = list(self._held) if self.holds_all else self.queues_ever_seen()
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
        """Those to lock, or to lock more strictly, before their free slots are used; reading them may reveal limits."""
        limited = {
            name for name in names if (self._held[name].limited if name in self._held else name in self._limited)
        }
        enough = {name: hold if hold is Hold.ALONE or name in limited else Hold.SHARED for name in names}
        return {name: needed for name, needed in enough.items() if self._holds.get(name, 0) < needed}

    def _hold(self, wanted: Wanted) -> None:
        assert isinstance(self._session, OwnSession)  # in the caller's own transaction nothing is held
        settings = self.settings_of(self._session, wanted)
        if self._locking.holds_rows or self._held:
            self._take_if_free(wanted)
            rows = self._session.simply(settings)
        else:
            rows = self._session.simply(self._locks.taken_in_order(wanted) + settings)
        self.now_held(rows, wanted)

    def _take_if_free(self, wanted: Wanted) -> None:
        locks = in_order(wanted)
        spaces, numbers = [self._locks.of(lock) for lock in locks], [lock.number for lock in locks]
        values = map(self._listed, (spaces, numbers, locks.values()))
        ((free,),) = self._rows(self._sql.try_locks, *values)
        if not free:
            raise HoldFirst(self._holds | dict(wanted))

    def settings_of(self, session: OwnSession, wanted: Wanted, *, and_all_others: bool = False) -> str:
        """SQL that reads the settings of queues once they are locked so, and takes back the slots left in them."""
        slots = [name for name, hold in wanted.items() if hold is not Hold.SHARED]
        names = None if and_all_others else self._listed(wanted)
        if slots:
            return session.called(self._sql.held_settings_and_slots, self._listed(slots), names)
        return session.called(self._sql.held_settings, names)

    def _settings_in(self, rows: Iterable[Row]) -> dict[str, QueueState]:
        states = {}
        for entries, now, running_count, given_back, first, last, name, paused, *others in rows:
            self._entries = entries
            self.now = max(self.now, now) if self.tells_time else self.now  # it may have waited long for the locks
            if name is not None:
                states[name] = QueueState(name) if paused is None else queue_of_row((name, paused, *others))
                states[name].running_count = running_count or 0
                self._waking[name] = (first, last)
                if given_back is not None:
                    self._given_back[name] = given_back
        return states

    def now_held(self, rows: Iterable[Row], locked: Wanted) -> frozenset[str]:
        """Takes queues for held that were locked before they were read; returns the names of all that were read.

        Those that were read and not locked are held when somebody asks for them.
        """
        states = self._settings_in(rows)
        limited = {name for name, state in states.items() if state.limited}
        self._limited.update(limited)
        self._limited.difference_update(states.keys() - limited)
        self._held |= {name: states[name] for name in locked if name in states}
        self._holds |= {name: locked[name] for name in locked if name in states}
        self._up_to_date.update(name for name, hold in locked.items() if hold is not Hold.SHARED)
        if self._given_back:
            self._step_forward()
        return frozenset(states)

    def _read_again(self, names: Sequence[str]) -> None:
        """The free slots of queues that it holds, and in which it has changed something itself."""
        assert isinstance(self._session, OwnSession)
        held = {name: self._holds[name] for name in names}
        self.now_held(self._session.simply(self.settings_of(self._session, held)), held)

    def _step_forward(self) -> None:
        """As many blocked jobs as their keys have more free slots for."""
        for name, keys in self._given_back.items():
            states = [KeyState(name, key, running_count, window_of(*window)) for key, running_count, *window in keys]
            slots = {state.key: state.free_slots(self._held[name], self.now) for state in states}
            self.unblock(name, {key: free_slots for key, free_slots in slots.items() if free_slots})
        self._given_back.clear()

    # -- the claim in one statement

    def claim(
        self,
        queues: Sequence[QueueState],
        limit: int,
        lease: NewLease,
        types: Sequence[str] | None,
        most_passed: int | None,
    ) -> list[Job] | Undecided:
        if not queues:
            return []
        if most_passed is not None:
            return self._claim_within_keys(queues[0], limit, lease, types, most_passed)
        names = [queue.name for queue in queues]
        shares = {names[0]: limit} if len(names) == 1 else self._shares(names, limit, types)
        rows: list[Row] = []
        for queue in sorted(shares):
            claimed = self._claim_from(queue, shares[queue], lease, types)
            if claimed is None and not rows:
                return Undecided.EXPIRED
            rows += claimed or ()
        rows.sort(key=in_standing_order)
        return self._as_claimed(rows, len(shares), lease)

    def _as_claimed(self, rows: list[Row], queues: int, lease: NewLease) -> list[Job]:
        """The jobs of rows that a statement has just claimed, after their tags have followed."""
        tagged = [MOVES.tagged(row)[0] for row in rows if MOVES.tags(row)]
        if tagged:
            self._run(self._sql.save_tag, self._listed(tagged))
        self.news = self.news or bool(rows)
        self.counted += 2 * queues
        self._up_to_date.clear()
        return claimed_jobs(rows, lease, self.now, self._dependencies_of)

    def _shares(self, queues: Sequence[str], limit: int, types: Sequence[str] | None) -> dict[str, int]:
        """How many of the first in line are each queue's."""
        values = (self._listed(queues), self.now, limit)
        if types is None:
            return Counter(name for (name,) in self._rows(self._sql.shares_of_queues, *values))
        return Counter(name for (name,) in self._rows(self._sql.shares_of_queues_by_type, *values, self._listed(types)))

    def _claim_from(self, queue: str, limit: int, lease: NewLease, types: Sequence[str] | None) -> list[Row] | None:
        """LowWaterMarks are kept for each set of types: claims of other types have reached other positions."""
        values: tuple[Any, ...] = (queue, self.now, limit, *lease)
        statement, further = self._sql.claim_next, self._sql.claim_from_cursor
        if types is not None:
            statement, further = self._sql.claim_types, self._sql.claim_types_from_cursor
            values = (*values, self._listed(types))
        line = (queue, None if types is None else tuple(types))
        marks = self._marks.of(line)
        if marks is not None:
            further_on, _ = self._claimed(further, *values, *map(self._listed, zip(*marks, strict=True)))
            if further_on is not None:
                self._marks.went_on(line, further_on)
            return further_on
        claimed, entries = self._claimed(statement, *values)
        if claimed is not None:
            beyond_plain = 0 if types is None else 10 * limit * len(types)  # it reads the first jobs of each type
            self._marks.started_anew(line, entries - beyond_plain, limit, claimed, self.now)
        return claimed

    def _claimed(self, statement: str, *values: object) -> tuple[list[Row] | None, int]:
        """What a statement claimed, as rows of `claimed_columns`, and how many entries of the claim's index it read.

        None means that somebody is past their time, and it claimed nobody.
        """
        rows = list(self._rows(statement, *values))
        outlived = False
        if rows:
            entries = rows[0][0]
        else:
            ((entries, outlived),) = self._rows(self._sql.entries_read, self.now)
        read, self._entries = entries - self._entries, entries
        return None if outlived else [row[1:] for row in rows], read

    def _claim_within_keys(
        self, queue: QueueState, limit: int, lease: NewLease, types: Sequence[str] | None, passed: int
    ) -> list[Job] | Undecided:
        """In one statement, as a claim without limits is."""
        at_once = limit + passed  # so many that it always does, unless more are in the way
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
        return self._as_claimed(sorted((row[1:] for row in rows), key=in_standing_order), 1, lease)

    # -- the claim job by job, where limits or tags have a say

    def claim_chosen(self, chosen: Sequence[Candidate], lease: NewLease) -> list[Job]:
        by_queue: dict[str, list[int]] = defaultdict(list)
        for entry in chosen:
            by_queue[entry.queue].append(entry.uid)
        rows: list[Row] = []
        for queue, uids in by_queue.items():
            values = (queue, self.now, self._listed(uids), *lease)
            rows += [row[1:] for row in self._rows(self._sql.claim_chosen, *values)]
        if len(rows) != len(chosen):
            raise ChangedUnderneath(f"{len(chosen)} locked jobs were to be claimed, and {len(rows)} were")
        rows.sort(key=in_standing_order)
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

    def give_back_keys(self, queue: QueueState, given_back: Mapping[str, int]) -> None:
        """Notes it, and changes no key: those are for whoever uses the queue's slots next, and is alone with them."""
        self._up_to_date.discard(queue.name)
        self._run(
            self._sql.note_released_slots, queue.name, self._listed(given_back), self._listed(given_back.values())
        )

    def keys_with_ended_windows(self, queue: QueueState) -> list[KeyState]:
        first, last = self._waking.get(queue.name, (None, None))
        until = self.now if queue.rate_per_key is None else self.now + queue.rate_per_key.per_micros
        if first is None or last is None or (first > self.now and last <= until):
            return []
        return super().keys_with_ended_windows(queue)

    def unblock(self, queue: str, free_slots: Mapping[str, int]) -> None:
        if free_slots and self._run(
            self._sql.unblock_first, queue, self._listed(free_slots), self._listed(free_slots.values())
        ):
            self.news = True
