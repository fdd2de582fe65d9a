"""Claims on PostgreSQL: which jobs come next, with which tags, and which are blocked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from longshore.backends.port import Candidate, KeyState, QueueState
from longshore.backends.postgres.claim_low_water import LowWaterMarks
from longshore.backends.postgres.connection import OwnSession, Session
from longshore.backends.postgres.locks import Hold, HoldFirst, LockSpaces, Wanted, in_order
from longshore.backends.postgres.reads import PostgresReader
from longshore.backends.sql.reads import BEFORE_ALL
from longshore.backends.sql.rows import MOVES, Claimant, Row, in_standing_order, queue_of_row
from longshore.backends.sql.statements import Statements
from longshore.backends.sql.writes import ChangedUnderneath, SQLClaimQueries
from longshore.core.job import Job
from longshore.core.limits import window_of

_LEAST_AT_ONCE = 20


class PostgresClaimQueries(PostgresReader, SQLClaimQueries):
    """The part of a write transaction that claims lean on."""

    counted: int
    """Rows added to the counts."""

    def __init__(self, session: Session, sql: Statements, schema: str, marks: LowWaterMarks, limited: set[str]) -> None:
        super().__init__(session, sql)
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
        self._holds_rows = False
        """Whether it may have locked rows that others wait for."""
        self._limited = limited
        self._locks = LockSpaces(schema)
        self._marks = marks

    def time(self) -> int:
        return self.now

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        self._holds_rows = self._holds_rows or "UPDATE" in statement
        return super()._rows(statement, *values)

    # -- queues, held by locks that end with the transaction

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:
        """Which queues have limits is remembered from the last time: it tells how to hold them before they are read."""
        if names is None:
            names = list(self._held) if self.holds_all else self.queues_ever_seen()
        while short := self._not_held_enough(names, alone):
            self._hold(short)
        self._read_again([name for name in names if self._held[name].limited and name not in self._up_to_date])
        states = {name: self._held[name] for name in names}
        for state in states.values():
            state.eligible = 1
        return states

    def hold_settings(self, names: Sequence[str]) -> dict[str, QueueState]:
        short = dict.fromkeys((name for name in names if name not in self._held), Hold.SHARED)
        if short:
            self._hold(short)
        return {name: self._held[name] for name in names}

    def _not_held_enough(self, names: Sequence[str], alone: bool) -> Wanted:
        """Those to lock, or to lock more strictly, before their free slots are used; reading them may reveal limits."""
        limited = {
            name for name in names if (self._held[name].limited if name in self._held else name in self._limited)
        }
        enough = {name: Hold.ALONE if alone else Hold.SLOTS if name in limited else Hold.SHARED for name in names}
        return {name: hold for name, hold in enough.items() if self._holds.get(name, 0) < hold}

    def _hold(self, wanted: Wanted) -> None:
        assert isinstance(self._session, OwnSession)  # in the caller's own transaction nothing is held
        settings = self.settings_of(self._session, wanted)
        if self._holds_rows or self._held:
            self._take_if_free(wanted)
            rows = self._session.simply(settings)
        else:
            rows = self._session.simply(self._locks.taken_in_order(wanted) + settings)
        self.now_held(rows, wanted)

    def _take_if_free(self, wanted: Wanted) -> None:
        locks = in_order(wanted)
        spaces, numbers = [self._locks.of(lock) for lock in locks], [lock.number for lock in locks]
        values = map(self._listed, (spaces, numbers, locks.values()))
        ((free,),) = self._rows(self._sql.hold_if_free, *values)
        if not free:
            raise HoldFirst(self._holds | dict(wanted))

    def settings_of(self, session: OwnSession, wanted: Wanted, *, and_all_others: bool = False) -> str:
        """SQL that reads the settings of queues once they are locked so, and takes back the slots left in them."""
        slots = [name for name, hold in wanted.items() if hold is not Hold.SHARED]
        names = [] if and_all_others else [self._listed(wanted)]
        if slots:
            statement = (
                self._sql.held_settings_and_slots_of_all if and_all_others else self._sql.held_settings_and_slots
            )
            return session.called(statement, self._listed(slots), *names)
        return session.called(self._sql.held_settings_of_all if and_all_others else self._sql.held_settings, *names)

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
        self._step_forward()
        return frozenset(states)

    def _read_again(self, names: Sequence[str]) -> None:
        """The free slots of queues that it holds, and in which it has changed something itself."""
        if names:
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

    def claim_next(
        self,
        queues: Sequence[str],
        limit: int,
        assignee_id: str,
        token: str,
        expires_at: int | None,
        types: Sequence[str] | None = None,
    ) -> list[Job] | None:
        if not queues:
            return []
        shares = {queues[0]: limit} if len(queues) == 1 else self._shares(queues, limit, types)
        rows: list[Row] = []
        for queue in sorted(shares):
            claimed = self._claim_from(queue, shares[queue], (assignee_id, token, expires_at), types)
            if claimed is None and not rows:
                return None
            rows += claimed or ()
        rows.sort(key=in_standing_order)
        return self._as_claimed(rows, len(shares), Claimant(assignee_id, token, expires_at, self.now))

    def _as_claimed(self, rows: list[Row], queues: int, claimant: Claimant) -> list[Job]:
        """The jobs of rows that a statement has just claimed, after their tags have followed."""
        tagged = [uid for uid, *_ in MOVES.tagged(rows)]
        if tagged:
            self._run(self._sql.save_tag, self._listed(tagged))
        self.news = self.news or bool(rows)
        self.counted += 2 * queues
        self._up_to_date.clear()
        return claimant.jobs(rows, self._dependencies_of)

    def _shares(self, queues: Sequence[str], limit: int, types: Sequence[str] | None) -> dict[str, int]:
        """How many of the first in line are each queue's."""
        values = (self._listed(queues), self.now, limit)
        if types is None:
            return Counter(name for (name,) in self._rows(self._sql.heads_of_lines, *values))
        return Counter(name for (name,) in self._rows(self._sql.heads_of_types, *values, self._listed(types)))

    def _claim_from(
        self, queue: str, limit: int, lease: tuple[str, str, int | None], types: Sequence[str] | None
    ) -> list[Row] | None:
        """LowWaterMarks are kept for each set of types: claims of other types have reached other positions."""
        values: tuple[Any, ...] = (queue, self.now, limit, *lease)
        statement, further = self._sql.claim_next, self._sql.claim_from_cursor
        if types is not None:
            statement, further = self._sql.claim_of_types, self._sql.claim_of_types_further_on
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
        """What a statement claimed, as rows of `claim_columns`, and how many entries of the claim's index it read.

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
        """In one statement, as a claim without limits is; None if that would not do, and then nobody was claimed."""
        at_once = limit + passed  # so many that it always does, unless more are in the way
        per_key, starts, since = self._limits(queue)
        until = since if queue.rate_per_key is None else since + queue.rate_per_key.per_micros
        values = (queue.name, self.now, limit, assignee_id, token, expires_at, at_once, passed)
        limits = (per_key, starts, since, until)
        if types is None:
            rows = list(self._rows(self._sql.claim_within_keys, *values, *limits))
        else:
            rows = list(self._rows(self._sql.claim_types_within_keys, *values, *limits, self._listed(types)))
        if not rows:
            return None
        claimant = Claimant(assignee_id, token, expires_at, self.now)
        return self._as_claimed(sorted((row[1:] for row in rows), key=in_standing_order), 1, claimant)

    # -- the claim job by job, where limits or tags have a say

    def claim_at_once(
        self, chosen: Sequence[Candidate], assignee_id: str, token: str, expires_at: int | None
    ) -> list[Job]:
        by_queue: dict[str, list[int]] = defaultdict(list)
        for entry in chosen:
            by_queue[entry.queue].append(entry.uid)
        rows: list[Row] = []
        for queue, uids in by_queue.items():
            values = (queue, self.now, self._listed(uids), assignee_id, token, expires_at)
            rows += [row[1:] for row in self._rows(self._sql.claim_chosen, *values)]
        if len(rows) != len(chosen):
            raise ChangedUnderneath(f"{len(chosen)} locked jobs were to be claimed, and {len(rows)} were")
        rows.sort(key=in_standing_order)
        return self._as_claimed(rows, len(by_queue), Claimant(assignee_id, token, expires_at, self.now))

    def _head_of_line(self, queue: QueueState, at_once: int) -> list[Candidate] | None:
        return list(map(Candidate._make, self._rows(self._sql.head_of_line, queue.name, self.now, at_once)))

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
        statement = self._sql.tagged_with_free_slots if queue.limits_keys else self._sql.tagged_claimable
        limits = self._limits(queue) if queue.limits_keys else ()
        for priority in self._tagged_priorities(queue.name, rarest):
            last = (BEFORE_ALL, 0)
            while True:
                at_once = max(wanted(), _LEAST_AT_ONCE)
                values = (rarest, queue.name, priority, self.now, self._listed(others), *last, at_once, known, *limits)
                found = [Candidate._make((*row, None, 0, 0)) for row in self._rows(statement, *values)]
                yield from found
                if len(found) < at_once:
                    break
                last = (found[-1].place, found[-1].uid)

    # -- keys

    def _put_keys(self, rows: Sequence[Row]) -> None:
        self._run(self._sql.put_key, *map(self._listed, zip(*rows, strict=True)))

    def give_back_keys(self, queue: QueueState, given_back: Mapping[str, int]) -> None:
        """Notes it, and changes no key: those are for whoever uses the queue's slots next, and is alone with them."""
        self._up_to_date.discard(queue.name)
        self._run(
            self._sql.note_released_slots, queue.name, self._listed(given_back), self._listed(given_back.values())
        )

    def keys_waking(self, queue: QueueState) -> list[KeyState]:
        first, last = self._waking.get(queue.name, (None, None))
        until = self.now if queue.rate_per_key is None else self.now + queue.rate_per_key.per_micros
        if first is None or last is None or (first > self.now and last <= until):
            return []
        return super().keys_waking(queue)

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        """As they are stored: what was left since they were held is taken back by whoever holds them next."""
        return SQLClaimQueries.key_states(self, queue, keys)

    def unblock(self, queue: str, free_slots: Mapping[str, int]) -> None:
        if free_slots and self._run(
            self._sql.unblock_first, queue, self._listed(free_slots), self._listed(free_slots.values())
        ):
            self.news = True
