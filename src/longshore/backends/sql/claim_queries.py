"""Claim queries over named statements: which queue and priority comes next, and which jobs are blocked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

from longshore.backends.port import Candidate, KeyState, QueueState
from longshore.backends.sql.reads import BEFORE_ALL
from longshore.backends.sql.rows import Row, key_of_row, row_of_queue
from longshore.backends.sql.writes import SQLTransaction
from longshore.core.job import Job
from longshore.core.limits import Window

_ENOUGH_TO_TELL = (16, 128, 1024, 8192)
_LEAST_AT_ONCE = 20


class SQLClaimQueries(SQLTransaction):
    """The part of a write transaction that claims lean on."""

    def put_queue(self, state: QueueState) -> None:
        self.news = True
        self._run(self._sql.put_queue, *row_of_queue(state))

    def put_keys(self, queue: QueueState, states: Sequence[KeyState]) -> None:
        rate = queue.rate_per_key
        kept: list[Row] = []
        idle: list[str] = []
        for state in states:
            if state.holding == 0 and (rate is None or state.window.at(rate, self.now).count == 0):
                idle.append(state.key)
            else:
                wakes_at = None if rate is None else state.wakes_at(queue, self.now)
                kept.append((queue.name, state.key, state.holding, state.window.start, state.window.count, wakes_at))
        if idle:
            self._run(self._sql.forget_keys, queue.name, self._listed(idle))
        if kept:
            self._put_keys(kept)

    def claim_within_keys(
        self,
        _queue: QueueState,
        _limit: int,
        _passed: int,
        _owner: str,
        _token: str,
        _expires_at: int | None,
        _types: Sequence[str] | None = None,
    ) -> list[Job] | None:
        return None

    @abstractmethod
    def _put_keys(self, rows: Sequence[Row]) -> None:
        """Stores keys as rows of queue, key, holding, window's start and count, and the time it wakes at."""

    def park(self, uids: Sequence[int]) -> None:
        if uids:
            self._run(self._sql.park, self._listed(uids))

    def any_parked(self, queue: str) -> bool:
        return self._one(self._sql.any_parked, queue) is not None

    def _unpark(self, uids: Sequence[int]) -> None:
        if uids:
            self.news = True
            self._run(self._sql.unpark, self._listed(uids))

    def keys_waking(self, queue: QueueState) -> list[KeyState]:
        window = 0 if queue.rate_per_key is None else queue.rate_per_key.per_micros
        rows = self._rows(self._sql.keys_waking, queue.name, self.now, self.now + window)
        return [key_of_row(row) for row in rows]

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        self._unpark([uid for (uid,) in self._rows(self._sql.all_parked, queue.name)])
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

    def _window(self, queue: QueueState) -> tuple[int, int] | None:
        """From when to when a start counts for the rate of this queue's keys, if they have one."""
        rate = queue.rate_per_key
        if rate is None:
            return None
        since = self.now - self.now % rate.per_micros
        return since, since + rate.per_micros

    def park_ahead(self, queue: QueueState, among: int) -> int:
        looked_at: list[Row] = []
        for priority in self._priorities(queue.name):
            left = among - len(looked_at)
            if left <= 0:
                break
            looked_at += self._rows(self._sql.look_ahead, queue.name, priority, self.now, *self._limits(queue), left)
        full = [uid for uid, is_full in looked_at if is_full]
        self.park(full)
        return len(full)

    def candidates(
        self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int], types: Sequence[str] | None = None
    ) -> Iterator[Candidate]:
        if tags:
            yield from self._tagged_candidates(queue, tags, wanted, types)
            return
        if types is not None:
            yield from self._candidates_of_types(queue, types, wanted)
            return
        at_head = wanted()
        at_once = max(at_head * 5 // 4, _LEAST_AT_ONCE)  # some will be in the way
        begun: Candidate | None = None
        head = self._head_of_line(queue, at_once)
        if head is not None:
            yield from head
            if len(head) < at_once:
                return
            at_head -= len(head)
            begun = head[-1]
        for priority in self._priorities(queue.name, BEFORE_ALL if begun is None else begun.priority - 1):
            last = (begun.place, begun.uid) if begun is not None and begun.priority == priority else (BEFORE_ALL, 0)
            while True:
                at_once = max(wanted() * 5 // 4, _LEAST_AT_ONCE)
                page = self._page_of_line(queue, priority, last, at_once, all_keys=at_head > 0)
                yield from page
                at_head -= len(page)
                if len(page) < at_once:
                    break
                last = (page[-1].place, page[-1].uid)

    def _head_of_line(self, _queue: QueueState, _at_once: int) -> list[Candidate] | None:
        """The first ones of all priorities, where the store reads them in one go."""
        return None

    def _page_of_line(
        self, queue: QueueState, priority: int, after: tuple[int, int], at_once: int, *, all_keys: bool
    ) -> list[Candidate]:
        """The first ones whatever their key, so that those of full keys are seen and parked; then none of those."""
        if all_keys or not queue.limits_keys:
            found = self._rows(self._sql.claimable, queue.name, priority, self.now, *after, at_once)
        else:
            limits = self._limits(queue)
            found = self._rows(self._sql.claimable_with_room, queue.name, priority, self.now, *limits, *after, at_once)
        return list(map(Candidate._make, found))

    @abstractmethod
    def _tagged_candidates(
        self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int], types: Sequence[str] | None
    ) -> Iterator[Candidate]:
        """Those who carry all these tags, parked ones included."""

    @abstractmethod
    def _candidates_of_types(
        self, queue: QueueState, types: Sequence[str], wanted: Callable[[], int]
    ) -> Iterator[Candidate]:
        """Jobs of these types, from the index of types: jobs of other types are never read."""

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
