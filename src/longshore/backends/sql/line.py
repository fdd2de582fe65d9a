"""The line of waiting jobs over named statements: whose priority is next, and who is parked because a key is full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from longshore.backends.sql.columns import Row, key_of_row, row_of_queue
from longshore.backends.sql.transaction import SQLTransaction
from longshore.backends.sql.view import BEFORE_ALL
from longshore.backends.transaction import KeyState, QueueState
from longshore.core.limits import Window
from longshore.core.record import Record

_ENOUGH_TO_TELL = (16, 128, 1024, 8192)


class SQLLine(SQLTransaction):
    """The part of a write transaction that claims lean on."""

    def queues_ever_seen(self) -> list[str]:
        return [name for (name,) in self._rows(self._sql.queues_ever_seen)]

    def put_queue(self, state: QueueState) -> None:
        self.news = True
        self._run(self._sql.put_queue, *row_of_queue(state))

    def put_keys(self, queue: QueueState, states: Sequence[KeyState]) -> None:
        for state in states:
            rate = queue.rate_per_key
            if state.holding == 0 and (rate is None or state.window.at(rate, self.now).count == 0):
                self._run(self._sql.delete_key, state.queue, state.key)
            else:
                window, wakes_at = state.window, state.wakes_at(queue, self.now)
                self._run(
                    self._sql.put_key, state.queue, state.key, state.holding, window.start, window.count, wakes_at
                )

    def park(self, records: Sequence[Record]) -> None:
        self._park([record.uid for record in records])

    def _park(self, uids: Sequence[int]) -> None:
        if uids:
            self._run(self._sql.park, self._listed(uids))

    def unpark(self, queue: str, key: str, count: int) -> int:
        return self._unpark(self._rows(self._sql.first_parked, queue, key, count))

    def _unpark(self, rows: Iterable[Row]) -> int:
        parked = [uid for (uid,) in rows]
        if parked:
            self.news = True
            self._run(self._sql.unpark, self._listed(parked))
        return len(parked)

    def keys_waking(self, queue: QueueState) -> list[KeyState]:
        window = 0 if queue.rate_per_key is None else queue.rate_per_key.per_micros
        rows = self._rows(self._sql.keys_waking, queue.name, self.now, self.now + window)
        return [key_of_row(row) for row in rows]

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        self._unpark(self._rows(self._sql.all_parked, queue.name))
        states: dict[str, KeyState] = {}
        for key, start, count in [] if new_windows else list(self._rows(self._sql.windows_of_keys, queue.name)):
            states[key] = KeyState(queue.name, key, window=Window(start, count))
        self._run(self._sql.delete_keys, queue.name)
        if queue.limits_keys:
            for key, holding in list(self._rows(self._sql.holding_by_key, queue.name)):
                states.setdefault(key, KeyState(queue.name, key)).holding = holding
            self.put_keys(queue, list(states.values()))

    def _limits(self, queue: QueueState) -> tuple[int | None, int | None, int]:
        """From how many held, or started since when, a key of this queue is full."""
        rate = queue.rate_per_key
        if rate is None:
            return queue.per_key, None, 0
        return queue.per_key, rate.count, self.now - self.now % rate.per_micros

    def park_ahead(self, queue: QueueState, among: int) -> int:
        looked_at: list[Row] = []
        for priority in self._priorities(queue.name):
            left = among - len(looked_at)
            if left <= 0:
                break
            looked_at += self._rows(self._sql.look_ahead, queue.name, priority, self.now, *self._limits(queue), left)
        full = [uid for uid, is_full in looked_at if is_full]
        self._park(full)
        return len(full)

    def _tagged_priorities(self, queue: str, tag: str) -> Iterator[int]:
        """Those that anybody in line with this tag has."""
        priority = self._one(self._sql.next_tagged_priority, tag, queue, BEFORE_ALL)
        while priority is not None:
            yield priority[0]
            priority = self._one(self._sql.next_tagged_priority, tag, queue, priority[0])

    def _rarest_first(self, tags: Sequence[str]) -> Sequence[str]:
        """By how many wait with each, counted no further than it takes to tell the rarest."""
        if len(tags) == 1:
            return tags
        waiting: dict[str, int] = {}
        for enough in _ENOUGH_TO_TELL:
            for tag in tags:
                ((waiting[tag],),) = self._rows(self._sql.waiting_with_tag, tag, enough)
            if min(waiting.values()) < enough:
                break
        return sorted(tags, key=waiting.__getitem__)
