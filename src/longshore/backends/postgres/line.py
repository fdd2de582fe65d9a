"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from zlib import crc32

from psycopg.sql import Literal

from longshore.backends.postgres.marks import Marks
from longshore.backends.postgres.session import OwnSession, Session
from longshore.backends.postgres.view import PostgresView
from longshore.backends.sql.claims import Claimant, in_standing_order, moves_of
from longshore.backends.sql.columns import Row, queue_of_row
from longshore.backends.sql.line import SQLLine
from longshore.backends.sql.transaction import ChangedUnderneath
from longshore.backends.sql.view import BEFORE_ALL
from longshore.backends.statements import Statements
from longshore.backends.transaction import InLine, QueueState
from longshore.core.job import Job

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
        self._alone: dict[str, QueueState] = {}
        """Queues that are this transaction's alone, until it ends."""
        self._limited = limited
        self._room = lock_number(f"longshore {schema}")
        self._marks = marks

    def time(self) -> int:
        return self.now

    # -- queues, held by locks that end with the transaction

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:
        """Which queues have limits is remembered from the last time: it tells how to hold them before they are read."""
        if names is None and self._held is not None:
            states = self._held
        else:
            wanted = self.queues_ever_seen() if names is None else names
            held = self._alone if alone else self._alone | (self._held or {})
            states = {name: held[name] for name in wanted if name in held}
            states |= self._hold([name for name in wanted if name not in held], alone=alone)
        for state in states.values():
            state.eligible = 1
            if state.running_limit is not None:
                counts = self._counts_of(state.name)
                state.holding = sum(jobs for status, jobs in counts.items() if status.holds_capacity)
        return states

    def _hold(self, names: Sequence[str], *, alone: bool) -> dict[str, QueueState]:
        if not names:
            return {}
        alone_in = {name for name in names if alone or name in self._limited}
        if isinstance(self._session, OwnSession) and alone_in == set(names):
            rows = self._session.simply(f"{self._locked_alone(names)}; {self._settings_of(self._session, names)}")
        else:
            self._lock(self._sql.hold_queues_alone, alone_in)
            self._lock(self._sql.hold_queues, set(names) - alone_in)
            rows = self._rows(self._sql.held_settings, self._listed(names))
        states = self._settings_in(rows)
        limited = {name for name, state in states.items() if state.limited}
        self._limited.difference_update(states)
        self._limited.update(limited)
        if limited - alone_in:
            raise BeginAnew
        self._alone |= {name: states[name] for name in alone_in}
        return states

    def _locked_alone(self, names: Collection[str]) -> str:
        """As SQL with nothing left open, so that it goes in one message with what is read once it is held."""
        numbers = ", ".join(f"({number})" for number in lock_numbers(names))
        return f"SELECT pg_advisory_xact_lock({self._room}, lock) FROM (VALUES {numbers}) AS locks (lock)"

    def _settings_of(self, session: OwnSession, names: Sequence[str]) -> str:
        return session.called(self._sql.held_settings, Literal(self._listed(names)).as_string(session.connection))

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
        return self._as_claimed(rows, len(shares), Claimant(assignee_id, token, expires_at, self.now))

    def _as_claimed(self, rows: list[Row], queues: int, claimant: Claimant) -> list[Job]:
        """The jobs of rows that a statement has just claimed, after their tags have followed."""
        tagged = [uid for uid, *_, tags in moves_of(rows) if tags]
        if tagged:
            self._run(self._sql.save_tag, self._listed(tagged))
        self.news = self.news or bool(rows)
        self.counted += 2 * queues
        return claimant.jobs(rows, self._dependencies_of)

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

    def claim_at_once(
        self, chosen: Sequence[InLine], assignee_id: str, token: str, expires_at: int | None
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

    def _head_of_line(self, queue: QueueState, at_once: int) -> list[InLine] | None:
        return list(map(InLine._make, self._rows(self._sql.head_of_line, queue.name, self.now, at_once)))

    def _tagged_candidates(self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int]) -> Iterator[InLine]:
        rarest, *others = self._rarest_first(tags)
        statement = self._sql.tagged_with_room if queue.limits_keys else self._sql.tagged_claimable
        limits = self._limits(queue) if queue.limits_keys else ()
        for priority in self._tagged_priorities(queue.name, rarest):
            last = (BEFORE_ALL, 0)
            while True:
                at_once = max(wanted(), _LEAST_AT_ONCE)
                values = (rarest, queue.name, priority, self.now, self._listed(others), *last, at_once, *limits)
                found = [InLine._make((*row, None, 0, 0)) for row in self._rows(statement, *values)]
                yield from found
                if len(found) < at_once:
                    break
                last = (found[-1].place, found[-1].uid)

    # -- keys

    def _put_keys(self, rows: Sequence[Row]) -> None:
        self._run(self._sql.put_key, *map(self._listed, zip(*rows, strict=True)))

    def unpark(self, queue: str, room: Mapping[str, int]) -> None:
        if room and self._run(self._sql.unpark_first, queue, self._listed(room), self._listed(room.values())):
            self.news = True
