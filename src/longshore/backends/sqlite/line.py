"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from longshore.backends.sql.columns import Row, key_of_row, record_of_row
from longshore.backends.sql.transaction import SQLTransaction
from longshore.backends.sqlite.statements import SQL
from longshore.backends.sqlite.view import SQLiteView
from longshore.backends.transaction import KeyState, QueueState
from longshore.core.record import Record

_ENOUGH_TO_TELL = (16, 128, 1024, 8192)
_BEFORE_ALL = -(2**63)


class SQLiteLine(SQLiteView, SQLTransaction):
    """The part of a write transaction that claims lean on."""

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:  # noqa: ARG002 - there is one writer, alone in any case
        return self.queue_states(names)

    def claim_in_line(self, *_claim: object) -> None:
        """Nothing: rows are near here, and reading them one by one costs as little as one large statement."""

    def candidates(self, queue: QueueState, tags: Sequence[str], _wanted: int) -> Iterator[Record]:
        if tags:
            yield from self._tagged_candidates(queue, tags)
            return
        for priority in self._priorities(queue.name):
            if queue.limits_keys:
                rows = self._rows(SQL.claimable_with_room, queue.name, priority, self.now, *self._limits(queue))
            else:
                rows = self._rows(SQL.claimable, queue.name, priority, self.now)
            for row in rows:
                yield self._whole(record_of_row(row))

    def _priorities(self, queue: str) -> Iterator[int]:
        """The priorities that anybody in line has, one index seek each."""
        priority = self._one(SQL.next_priority, queue, _BEFORE_ALL)
        while priority is not None:
            yield priority[0]
            priority = self._one(SQL.next_priority, queue, priority[0])

    def _tagged_candidates(self, queue: QueueState, tags: Sequence[str]) -> Iterator[Record]:
        rarest, *others = self._rarest_first(tags) if len(tags) > 1 else tags
        also = json.dumps(others)
        priority = _BEFORE_ALL
        while True:
            following = self._one(SQL.next_tagged_priority, rarest, queue.name, priority)
            if following is None:
                return
            priority = following[0]
            for (uid,) in self._rows(SQL.tagged_claimable, rarest, queue.name, priority, self.now, also):
                if queue.limits_keys:
                    row = self._one(SQL.uid_with_room, queue.name, uid, self.now, *self._limits(queue))
                else:
                    row = self._one(SQL.claimable_by_uid, uid, self.now)
                if row is not None:
                    yield self._whole(record_of_row(row))

    def _rarest_first(self, tags: Sequence[str]) -> list[str]:
        """By how many wait with each, counted no further than it takes to tell the rarest."""
        waiting: dict[str, int] = {}
        for enough in _ENOUGH_TO_TELL:
            for tag in tags:
                ((waiting[tag],),) = self._rows(SQL.waiting_with_tag, tag, enough)
            if min(waiting.values()) < enough:
                break
        return sorted(tags, key=waiting.__getitem__)

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        states = {}
        for key in keys:
            row = self._one(SQL.key_state, queue, key)
            states[key] = KeyState(queue, key) if row is None else key_of_row(row)
        return states

    def park_ahead(self, queue: QueueState, among: int) -> int:
        looked_at: list[Row] = []
        for priority in self._priorities(queue.name):
            left = among - len(looked_at)
            if left <= 0:
                break
            looked_at += self._rows(SQL.look_ahead, queue.name, priority, self.now, *self._limits(queue), left)
        full = [uid for uid, is_full in looked_at if is_full]
        self._park(full)
        return len(full)
