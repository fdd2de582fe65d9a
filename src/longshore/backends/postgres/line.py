"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from zlib import crc32

from longshore.backends.postgres.marks import Marks
from longshore.backends.postgres.session import Session
from longshore.backends.postgres.view import PostgresView
from longshore.backends.sql.claims import Claimant, in_standing_order, moves_of
from longshore.backends.sql.columns import Row, key_of_row, queue_of_row
from longshore.backends.sql.line import SQLLine
from longshore.backends.sql.view import BEFORE_ALL
from longshore.backends.statements import Statements
from longshore.backends.transaction import KeyState, QueueState
from longshore.core.job import Job
from longshore.core.record import Record

_LEAST_AT_ONCE = 20


def lock_number(name: str) -> int:
    """The number of an advisory lock; two names with one number only wait for each other now and then."""
    return crc32(name.encode()) - 2**31


def lock_numbers(names: Iterable[str]) -> list[int]:
    """The numbers for several names, in the order in which everybody locks them."""
    return sorted({lock_number(name) for name in names})


class BeginAnew(Exception):
    """Something that this transaction had taken for granted changed meanwhile; done again, it will see that."""


class PostgresLine(PostgresView, SQLLine):
    """The part of a write transaction that claims lean on."""

    counted: int
    """Rows added to the counts."""

    def __init__(self, session: Session, sql: Statements, schema: str, marks: Marks, limited: set[str]) -> None:
        super().__init__(session, sql)
        self.tells_time = False
        """Whether the server's own clock judges here, rather than one that a test holds."""
        self._entries = 0
        self._held: dict[str, QueueState] | None = None
        self._limited = limited
        self._room = lock_number(f"longshore {schema}")
        self._marks = marks

    def time(self) -> int:
        return self.now

    # -- queues, held by locks that end with the transaction

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:
        """Which queues have limits is remembered from the last time: it tells how to hold them before they are read."""
        states, self._held = self._held, None
        if states is None or alone or not (names is None or states.keys() == set(names)):
            states = self._hold(self.queues_ever_seen() if names is None else names, alone=alone)
        for state in states.values():
            state.eligible = 1
            if state.running_limit is not None:
                counts = self._counts_of(state.name)
                state.holding = sum(jobs for status, jobs in counts.items() if status.holds_capacity)
        return states

    def _hold(self, names: Sequence[str], *, alone: bool) -> dict[str, QueueState]:
        alone_in = {name for name in names if alone or name in self._limited}
        self._lock(self._sql.hold_queues_alone, alone_in)
        self._lock(self._sql.hold_queues, set(names) - alone_in)
        states = self._settings_in(self._rows(self._sql.held_settings, self._listed(names)))
        limited = {name for name, state in states.items() if state.limited}
        self._limited.difference_update(states)
        self._limited.update(limited)
        if limited - alone_in:
            raise BeginAnew
        return states

    def _lock(self, statement: str, names: Collection[str]) -> None:
        if names:
            self._rows(statement, self._room, self._listed(lock_numbers(names)))

    def _settings_in(self, rows: Iterable[Row]) -> dict[str, QueueState]:
        states = {}
        for entries, now, name, paused, *others in rows:
            self._entries = entries
            self.now = max(self.now, now) if self.tells_time else self.now  # it may have waited long for the locks
            if name is not None:
                states[name] = QueueState(name) if paused is None else queue_of_row((name, paused, *others))
        return states

    def held_from_the_start(self, rows: Iterable[Row], locked: Collection[str]) -> frozenset[str]:
        """Takes these queues for held if they were locked as they should be, or they are held when somebody asks.

        Returns their names.
        """
        states = self._settings_in(rows)
        limited = {name for name, state in states.items() if state.limited}
        self._limited.update(limited)
        if not limited.isdisjoint(locked):
            raise BeginAnew
        self._held = states if states.keys() <= set(locked) else None
        return frozenset(states)

    # -- the claim in one statement

    def claim_in_line(
        self, queues: Sequence[str], limit: int, assignee_id: str, token: str, expires_at: int | None
    ) -> list[Job] | None:
        if not queues:
            return []
        shares = {queues[0]: limit} if len(queues) == 1 else self._shares(queues, limit)
        rows: list[Row] = []
        for queue in sorted(shares):
            claimed = self._claim_from(queue, shares[queue], (assignee_id, token, expires_at))
            if claimed is None and not rows:
                return None
            rows += claimed or ()
        rows.sort(key=in_standing_order)
        tagged = [uid for uid, *_, tags in moves_of(rows) if tags]
        if tagged:
            self._run(self._sql.save_tag, self._listed(tagged))
        self.news = self.news or bool(rows)
        self.counted += 2 * len(shares)
        return Claimant(assignee_id, token, expires_at, self.now).jobs(rows, self._dependencies_of)

    def _shares(self, queues: Sequence[str], limit: int) -> dict[str, int]:
        """How many of the first in line are each queue's."""
        return Counter(name for (name,) in self._rows(self._sql.heads_of_lines, self._listed(queues), self.now, limit))

    def _claim_from(self, queue: str, limit: int, lease: tuple[str, str, int | None]) -> list[Row] | None:
        values = (queue, self.now, limit, *lease)
        marks = self._marks.of(queue)
        if marks is not None:
            further_on, _ = self._claimed(
                self._sql.claim_further_on, *values, *map(self._listed, zip(*marks, strict=True))
            )
            if further_on is not None:
                self._marks.went_on(queue, further_on)
            return further_on
        claimed, entries = self._claimed(self._sql.claim_in_line, *values)
        if claimed is not None:
            self._marks.started_anew(queue, entries, limit, claimed, self.now)
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

    # -- the claim job by job, where limits or tags have a say

    def candidates(self, queue: QueueState, tags: Sequence[str], wanted: int) -> Iterator[Record]:
        at_once = max(wanted, _LEAST_AT_ONCE)
        if tags:
            yield from self._tagged_candidates(queue, tags, at_once)
            return
        for priority in self._priorities(queue.name):
            last = (BEFORE_ALL, 0)
            while True:
                rows = self._untagged(queue, priority, last, at_once)
                yield from self._records(rows)
                if len(rows) < at_once:
                    break
                last = _place_of(rows[-1])

    def _untagged(self, queue: QueueState, priority: int, after: tuple[int, int], at_once: int) -> list[Row]:
        if queue.limits_keys:
            limits = self._limits(queue)
            found = self._rows(self._sql.claimable_with_room, queue.name, priority, self.now, *limits, *after, at_once)
        else:
            found = self._rows(self._sql.claimable, queue.name, priority, self.now, *after, at_once)
        return list(found)

    def _tagged_candidates(self, queue: QueueState, tags: Sequence[str], at_once: int) -> Iterator[Record]:
        rarest, *others = self._rarest_first(tags)
        statement = self._sql.tagged_with_room if queue.limits_keys else self._sql.tagged_claimable
        limits = self._limits(queue) if queue.limits_keys else ()
        for priority in self._tagged_priorities(queue.name, rarest):
            last = (BEFORE_ALL, 0)
            while True:
                values = (rarest, queue.name, priority, self.now, self._listed(others), *last, at_once, *limits)
                rows = list(self._rows(statement, *values))
                yield from self._records(rows)
                if len(rows) < at_once:
                    break
                last = _place_of(rows[-1])

    # -- keys

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        states = {key: KeyState(queue, key) for key in keys}
        states.update({row[1]: key_of_row(row) for row in self._rows(self._sql.key_state, queue, self._listed(keys))})
        return states


_PLACE, _UID = 25, 0


def _place_of(row: Row) -> tuple[int, int]:
    """Where the job of a row of `job_columns` stands within its priority."""
    return row[_PLACE], row[_UID]
