"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from longshore.backends.sqlite.statements import SQL
from longshore.backends.sqlite.view import Row, SQLiteView, record_of_row
from longshore.backends.transaction import KeyState, QueueState
from longshore.core.limits import Window
from longshore.core.record import Record

_ENOUGH_TO_TELL = (16, 128, 1024, 8192)
_BEFORE_ALL = -(2**63)


class SQLiteLine(SQLiteView):
    """The part of a write transaction that claims lean on."""

    now: int
    news: bool
    """Whether this transaction did anything that somebody who waits for a change would want to know of."""

    def _many(self, statement: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(statement, rows)

    def queues_ever_seen(self) -> list[str]:
        return [name for (name,) in self._rows(SQL.queues_ever_seen)]

    def put_queue(self, state: QueueState) -> None:
        self.news = True
        rate, key_rate = state.rate, state.rate_per_key
        self._connection.execute(
            SQL.put_queue,
            (
                state.name,
                state.paused,
                state.running_limit,
                state.per_key,
                None if rate is None else rate.count,
                None if rate is None else rate.per_micros,
                None if key_rate is None else key_rate.count,
                None if key_rate is None else key_rate.per_micros,
                state.window.start,
                state.window.count,
                state.keep_finished,
                state.keep_dead,
                state.keep_events,
            ),
        )

    def candidates(self, queue: QueueState, tags: Sequence[str]) -> Iterator[Record]:
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

    def _limits(self, queue: QueueState) -> tuple[int | None, int | None, int]:
        """From how many held, or started since when, a key of this queue is full."""
        rate = queue.rate_per_key
        if rate is None:
            return queue.per_key, None, 0
        return queue.per_key, rate.count, self.now - self.now % rate.per_micros

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
            states[key] = KeyState(queue, key) if row is None else _key_of_row(row)
        return states

    def put_keys(self, queue: QueueState, states: Sequence[KeyState]) -> None:
        for state in states:
            rate = queue.rate_per_key
            if state.holding == 0 and (rate is None or state.window.at(rate, self.now).count == 0):
                self._connection.execute(SQL.delete_key, (state.queue, state.key))
            else:
                window, wakes_at = state.window, state.wakes_at(queue, self.now)
                row = (state.queue, state.key, state.holding, window.start, window.count, wakes_at)
                self._connection.execute(SQL.put_key, row)

    def park(self, records: Sequence[Record]) -> None:
        if records:
            self._connection.execute(SQL.park, (json.dumps([record.uid for record in records]),))

    def park_ahead(self, queue: QueueState, among: int) -> int:
        looked_at: list[Row] = []
        for priority in self._priorities(queue.name):
            left = among - len(looked_at)
            if left <= 0:
                break
            looked_at += self._rows(SQL.look_ahead, queue.name, priority, self.now, *self._limits(queue), left)
        full = [uid for uid, is_full in looked_at if is_full]
        if full:
            self._connection.execute(SQL.park, (json.dumps(full),))
        return len(full)

    def unpark(self, queue: str, key: str, count: int) -> int:
        return self._unpark(self._rows(SQL.first_parked, queue, key, count))

    def _unpark(self, rows: Iterable[Row]) -> int:
        parked = [uid for (uid,) in rows]
        if parked:
            self.news = True
            self._connection.execute(SQL.unpark, (json.dumps(parked),))
        return len(parked)

    def keys_waking(self, queue: QueueState) -> list[KeyState]:
        window = 0 if queue.rate_per_key is None else queue.rate_per_key.per_micros
        rows = self._rows(SQL.keys_waking, queue.name, self.now, self.now + window)
        return [_key_of_row(row) for row in rows]

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        self._unpark(self._rows(SQL.all_parked, queue.name))
        states: dict[str, KeyState] = {}
        for key, start, count in [] if new_windows else list(self._rows(SQL.windows_of_keys, queue.name)):
            states[key] = KeyState(queue.name, key, window=Window(start, count))
        self._connection.execute(SQL.delete_keys, (queue.name,))
        if queue.limits_keys:
            for key, holding in list(self._rows(SQL.holding_by_key, queue.name)):
                states.setdefault(key, KeyState(queue.name, key)).holding = holding
            self.put_keys(queue, list(states.values()))


def _key_of_row(row: Row) -> KeyState:
    queue, key, holding, start, count = row
    return KeyState(queue, key, holding, Window(start, count))
