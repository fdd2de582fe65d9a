"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from longshore.backends.sqlite.view import SQL, Row, SQLiteView, record_of_row
from longshore.backends.transaction import KeyState, QueueState
from longshore.core.limits import Window
from longshore.core.record import Record

_ENOUGH_TO_TELL = (16, 128, 1024, 8192)
_BEFORE_ALL = -(2**63)


class SQLiteLine(SQLiteView):
    """The part of a write transaction that claims lean on."""

    now: int

    def _many(self, statement: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(statement, rows)

    def queues_ever_seen(self) -> list[str]:
        return [name for (name,) in self._rows(SQL.queues_ever_seen)]

    def put_queue(self, state: QueueState) -> None:
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

    def candidates(self, queue: str, tags: Sequence[str]) -> Iterator[Record]:
        if tags:
            yield from self._tagged_candidates(queue, tags)
            return
        priority = _BEFORE_ALL
        while True:
            following = self._one(SQL.next_priority, queue, priority)
            if following is None:
                return
            priority = following[0]
            for row in self._rows(SQL.claimable, queue, priority, self.now, self.now):
                yield self._whole(record_of_row(row))

    def _tagged_candidates(self, queue: str, tags: Sequence[str]) -> Iterator[Record]:
        rarest, *others = self._rarest_first(tags) if len(tags) > 1 else tags
        also = json.dumps(others)
        priority = _BEFORE_ALL
        while True:
            following = self._one(SQL.next_tagged_priority, rarest, queue, priority)
            if following is None:
                return
            priority = following[0]
            for (uid,) in self._rows(SQL.tagged_claimable, rarest, queue, priority, self.now, also):
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
            idle = state.holding == 0 and state.parked == 0
            if idle and (queue.rate_per_key is None or state.window.at(queue.rate_per_key, self.now).count == 0):
                self._connection.execute(SQL.delete_key, (state.queue, state.key))
            else:
                window, wakes_at = state.window, state.wakes_at(queue, self.now)
                row = (state.queue, state.key, state.holding, window.start, window.count, state.parked, wakes_at)
                self._connection.execute(SQL.put_key, row)

    def park(self, records: Sequence[Record]) -> None:
        self._many(SQL.park, ((record.uid,) for record in records))
        self._many(SQL.save_tag_parked, ((0, tag, record.uid) for record in records for tag in record.tags))

    def unpark(self, queue: str, key: str, count: int) -> int:
        found: list[Row] = []
        tags: Row | None = ("",)
        while tags is not None:
            found += self._rows(SQL.first_parked, queue, key, tags[0], count)
            tags = self._one(SQL.next_parked_tags, queue, key, tags[0])
        return self._unpark(found)

    def _unpark(self, parked: Sequence[Row]) -> int:
        self._many(SQL.unpark, ((uid,) for uid, _ in parked))
        self._many(SQL.save_tag_parked, ((1, tag, uid) for uid, tags in parked if tags for tag in json.loads(tags)))
        return len(parked)

    def keys_waking(self, queue: QueueState) -> list[KeyState]:
        window = 0 if queue.rate_per_key is None else queue.rate_per_key.per_micros
        rows = self._rows(SQL.keys_waking, queue.name, self.now, self.now + window)
        return [_key_of_row(row) for row in rows]

    def recount_keys(self, queue: QueueState, *, new_rate: bool) -> None:
        self._unpark(self._connection.execute(SQL.all_parked, (queue.name,)).fetchall())
        states: dict[str, KeyState] = {}
        for key, start, count in [] if new_rate else list(self._rows(SQL.windows_of_keys, queue.name)):
            states[key] = KeyState(queue.name, key, window=Window(start, count))
        self._connection.execute(SQL.delete_keys, (queue.name,))
        if queue.limits_keys:
            for key, holding in list(self._rows(SQL.holding_by_key, queue.name)):
                states.setdefault(key, KeyState(queue.name, key)).holding = holding
            self.put_keys(queue, list(states.values()))


def _key_of_row(row: Row) -> KeyState:
    queue, key, holding, start, count, parked = row
    return KeyState(queue, key, holding, Window(start, count), parked)
