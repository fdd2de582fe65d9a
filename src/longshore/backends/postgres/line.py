"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from psycopg.sql import Literal

from longshore.backends.postgres.marks import Marks
from longshore.backends.postgres.queue_locks import BeginAnew, HoldFirst, Wanted, in_order, lock_number, taken_in_order
from longshore.backends.postgres.session import OwnSession, Session
from longshore.backends.postgres.view import PostgresView
from longshore.backends.sql.claims import Claimant, in_standing_order, moves_of
from longshore.backends.sql.columns import Row, queue_of_row
from longshore.backends.sql.line import SQLLine
from longshore.backends.sql.transaction import ChangedUnderneath
from longshore.backends.sql.view import BEFORE_ALL
from longshore.backends.statements import Statements
from longshore.backends.transaction import InLine, KeyState, QueueState
from longshore.core.job import Job
from longshore.core.limits import window_of
from longshore.core.moments import LATEST

_LEAST_AT_ONCE = 20


class PostgresLine(PostgresView, SQLLine):
    """The part of a write transaction that claims lean on."""

    counted: int
    """Rows added to the counts."""

    def __init__(self, session: Session, sql: Statements, schema: str, marks: Marks, limited: set[str]) -> None:
        super().__init__(session, sql)
        self.tells_time = False
        """Whether the server's own clock judges here, rather than one that a test holds."""
        self._entries = 0
        self._held: dict[str, QueueState] = {}
        """Queues that nobody changes before this transaction ends."""
        self._alone: set[str] = set()
        """Those of them that are this transaction's alone."""
        self.holds_all = False
        """Whether those are all the queues there are."""
        self._holds_rows = False
        """Whether it may have locked rows that others wait for."""
        self._limited = limited
        self._room = lock_number(f"longshore {schema}")
        self._marks = marks

    def time(self) -> int:
        return self.now

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        self._holds_rows = self._holds_rows or "UPDATE" in statement
        return super()._rows(statement, *values)

    # -- queues, held by locks that end with the transaction

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:
        """Which queues have limits is remembered from the last time: it tells how to hold them before they are read."""
        if names is None and self.holds_all and not alone:
            states = self._held
        else:
            wanted = self.queues_ever_seen() if names is None else names
            enough = self._alone if alone else self._held.keys()
            self._hold({name: alone or name in self._limited for name in wanted if name not in enough})
            states = {name: self._held[name] for name in wanted}
        for state in states.values():
            state.eligible = 1
            if state.running_limit is not None:
                counts = self._counts_of(state.name)
                state.holding = sum(jobs for status, jobs in counts.items() if status.holds_capacity)
        return states

    def _hold(self, wanted: Wanted) -> None:
        if not wanted:
            return
        assert isinstance(self._session, OwnSession)  # in the caller's own transaction nothing is held
        settings = self._settings_of(self._session, list(wanted))
        if self._holds_rows or self._held:
            self._take_if_free(wanted)
            rows = self._session.simply(settings)
        else:
            rows = self._session.simply(taken_in_order(self._room, wanted) + settings)
        self.now_held(rows, wanted)

    def _take_if_free(self, wanted: Wanted) -> None:
        locks = in_order(wanted)
        ((free,),) = self._rows(self._sql.hold_if_free, self._room, self._listed(locks), self._listed(locks.values()))
        if not free:
            raise HoldFirst({name: name in self._alone for name in self._held} | dict(wanted))

    def _settings_of(self, session: OwnSession, names: Sequence[str]) -> str:
        return session.called(self._sql.held_settings, Literal(self._listed(names)).as_string(session.connection))

    def _settings_in(self, rows: Iterable[Row]) -> dict[str, QueueState]:
        states = {}
        for entries, now, name, paused, *others in rows:
            self._entries = entries
            self.now = max(self.now, now) if self.tells_time else self.now  # it may have waited long for the locks
            if name is not None:
                states[name] = QueueState(name) if paused is None else queue_of_row((name, paused, *others))
        return states

    def now_held(self, rows: Iterable[Row], locked: Wanted) -> frozenset[str]:
        """Takes queues for held if they were locked as their settings ask for; returns the names of all that were read.

        Those that were read and not locked are held when somebody asks for them.
        """
        states = self._settings_in(rows)
        limited = {name for name, state in states.items() if state.limited}
        self._limited.difference_update(states)
        self._limited.update(limited)
        if any(name in limited and not alone for name, alone in locked.items()):
            raise BeginAnew
        self._held |= {name: states[name] for name in locked if name in states}
        self._alone.update(name for name, alone in locked.items() if alone)
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

    def claim_within_keys(
        self, queue: QueueState, limit: int, passed: int, assignee_id: str, token: str, expires_at: int | None
    ) -> list[Job] | None:
        """In one statement, as a claim without limits is; None if that would not do, and then nobody was claimed."""
        at_once = max(limit * 5 // 4, _LEAST_AT_ONCE)
        per_key, starts, since = self._limits(queue)
        until = since if queue.rate_per_key is None else since + queue.rate_per_key.per_micros
        values = (queue.name, self.now, limit, assignee_id, token, expires_at, at_once, passed)
        rows = list(self._rows(self._sql.claim_within_keys, *values, per_key, starts, since, until))
        if not rows:
            return None
        claimant = Claimant(assignee_id, token, expires_at, self.now)
        return self._as_claimed(sorted((row[1:] for row in rows), key=in_standing_order), 1, claimant)

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

    def give_back_keys(self, queue: QueueState, given_back: Mapping[str, int]) -> Mapping[str, KeyState] | None:
        """In one statement; when a key wakes was told when it was used, and stays so."""
        since = LATEST if queue.rate_per_key is None else self._limits(queue)[2]
        values = (queue.name, self._listed(given_back), self._listed(given_back.values()), since)
        rows = list(self._rows(self._sql.give_back_keys, *values))
        if not rows[0][0]:  # nobody is parked
            return None
        left = {key: (holding, window_of(start, count)) for _, key, holding, start, count in rows}
        return {key: KeyState(queue.name, key, *left.get(key, ())) for key in given_back}

    def unpark(self, queue: str, room: Mapping[str, int]) -> None:
        if room and self._run(self._sql.unpark_first, queue, self._listed(room), self._listed(room.values())):
            self.news = True
