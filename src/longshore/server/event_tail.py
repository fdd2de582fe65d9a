"""The end of the event log, read once for all streams, long polls and metrics; and a counter of changes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from longshore.backends.base import Backend
from longshore.backends.change_signal import ChangeSignal
from longshore.core.errors import CursorExpired, QueueClosed
from longshore.core.job import JobEvent
from longshore.core.validation import new_id
from longshore.runtime.events import is_named, loaded
from longshore.safe_logging import logger
from longshore.server.models.events import EventPage, event_view
from longshore.server.response_limits import length_of

_AT_ONCE = 1_000
_MOST_LOOKS = 20
"""The most reads of the log for one page; the cursor continues from there."""


async def page_of_log(
    backend: Backend,
    after: str | None,
    limit: int,
    *,
    queue: str | None = None,
    job_id: str | None = None,
    passes: Callable[[JobEvent], bool] | None = None,
) -> EventPage:
    """Return up to `limit` events after the cursor that pass, oldest first; `next_cursor` is where the read ended.

    The page is shorter only at the end of the log, or after many events that did not pass.
    """
    if passes is None:
        events = await backend.read_events(after, limit, queue=queue, job_id=job_id)
        return _page(events, events[-1].cursor if events else after)
    found: list[JobEvent] = []
    cursor = after
    for _ in range(_MOST_LOOKS):
        events = await backend.read_events(cursor, _AT_ONCE, queue=queue, job_id=job_id)
        for event in events:
            cursor = event.cursor
            if passes(event):
                found.append(event)
                if len(found) == limit:
                    return _page(found, cursor)
        if len(events) < _AT_ONCE:
            break
    return _page(found, cursor)


def _page(events: list[JobEvent], cursor: str | None) -> EventPage:
    return EventPage.model_construct(items=[event_view(event) for event in events], next_cursor=cursor)


_KEPT = 10_000
"""Events in memory: a few seconds of a busy store. A stream that is further behind reads the store."""
_MOST_BYTES = 32 * 1024 * 1024
"""The most characters of the details of large events in memory; errors may be long."""
_LARGE = 1_000
"""Characters of a detail from which an event counts as large; few events do."""
_POLL_SECONDS = 1.0
"""Seconds between two reads without a signal: on PostgreSQL an event may become readable after its commit."""
_PAUSE = 0.05
"""Seconds between two reads of a busy store, so that one read gets many events."""
_LONGEST_PAUSE = 5.0

_log = logger("longshore.server")


class Tail:
    """A follower of the log, from when it is opened. It numbers the events that this process reads: 0, 1, 2 …"""

    def __init__(self, backend: Backend, heard: Callable[[Sequence[JobEvent]], None]) -> None:
        self._backend = backend
        self._heard = heard
        self._kept: deque[JobEvent] = deque(maxlen=_KEPT)
        self._large: deque[tuple[int, int]] = deque()
        """The numbers and lengths of large events."""
        self._length = 0
        self.end = 0
        """The number after the last event."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._work: asyncio.Task[None] | None = None
        self._answered = -1e9
        self._looking = asyncio.Lock()
        self._looks = 0
        self._last_to_the_end = 0
        """The number of the last read that reached the end of the log."""
        self.cursor: str | None = None
        """The cursor it has read up to; None until it has found the end of the log."""

    @property
    def silence(self) -> float:
        """Seconds since the store last answered."""
        return monotonic() - self._answered

    @property
    def ended(self) -> bool:
        """Whether it stopped because the store or its event loop was closed."""
        return self._work is None or self._work.done()

    async def open(self) -> None:
        """Start following; wait for a store that is not available yet."""
        self._work = asyncio.create_task(self._follow())
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop following."""
        if self._work is not None:
            await end(self._work)

    def since(self, place: int) -> list[JobEvent] | None:
        """The events from this number on; None if some are no longer kept."""
        missing = place - (self.end - len(self._kept))
        if missing < 0:
            return None
        return [self._kept[index] for index in range(missing, len(self._kept))]

    async def beyond(self, place: int, timeout: float) -> bool:
        """Wait until there is an event with this number; return False after the timeout."""
        if self.end > place:
            return True
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await woken
        finally:
            self._waiting.discard(woken)
        return self.end > place

    async def catch_up(self) -> None:
        """Read every event that is readable now; concurrent callers share one read."""
        enough = self._looks + 1  # a read in progress may have started before the call
        while self._last_to_the_end < enough:
            async with self._looking:
                if self._last_to_the_end < enough:
                    await self._look()

    async def _follow(self) -> None:
        pause = _PAUSE
        while True:
            try:
                async with self._looking:
                    found = await self._look()
                if found:
                    await asyncio.sleep(0 if found == _AT_ONCE else _PAUSE)
                else:
                    await self._backend.wait_for_change(_POLL_SECONDS, after=self.cursor)
                pause = _PAUSE
            except QueueClosed:
                return
            except CursorExpired:  # the next read logs why, and continues
                continue
            except Exception as error:  # keep following: the cause may be temporary
                _log.warning("cannot read events, retrying: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _look(self) -> int:
        """Read the next events and return their number."""
        self._looks += 1
        look = self._looks
        cursor = self.cursor or await self._go_to_the_end()
        try:
            events = await self._backend.read_events(cursor, _AT_ONCE)
        except CursorExpired as error:
            _log.warning("the server missed events and continues with new ones: %s", error)
            events = await self._backend.read_events(await self._go_to_the_end(), _AT_ONCE)
        self._answered = monotonic()
        if events:
            self._take(events)
        if len(events) < _AT_ONCE:
            self._last_to_the_end = look
        return len(events)

    async def _go_to_the_end(self) -> str:
        self.cursor = cursor = await self._backend.end_of_events()
        self._forget()
        return cursor

    def _take(self, events: Sequence[JobEvent]) -> None:
        for place, event in enumerate(events, self.end):
            if event.detail and (length := length_of(event.detail)) >= _LARGE:
                self._large.append((place, length))
                self._length += length
        self._kept.extend(events)
        self.end += len(events)
        self._keep_within_bounds()
        self.cursor = events[-1].cursor
        self._heard(events)
        self._wake()

    def _keep_within_bounds(self) -> None:
        """Drop large events and all before them, so that the rest has no gaps."""
        first = self.end - len(self._kept)
        while self._large and (self._large[0][0] < first or self._length > _MOST_BYTES):
            place, length = self._large.popleft()
            self._length -= length
            for _ in range(first, place + 1):
                self._kept.popleft()
            first = max(first, place + 1)

    def _forget(self) -> None:
        """Drop all events, because there may be a gap; streams then read the store from their cursors."""
        self._kept.clear()
        self._large.clear()
        self._length = 0
        self.end += 1
        self._wake()

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)
        self._waiting.clear()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filter of a stream; None matches everything."""

    queues: frozenset[str] | None = None
    job_id: str | None = None
    names: frozenset[str] | None = None
    jobs: bool = False
    """Whether to load the job of job.added and job.active, and the result of job.completed."""

    @property
    def only_queue(self) -> str | None:
        """The queue, if there is exactly one; the store can then filter by it."""
        return next(iter(self.queues)) if self.queues is not None and len(self.queues) == 1 else None

    def has(self, event: JobEvent) -> bool:
        """Whether the event matches."""
        return (
            (self.queues is None or event.queue in self.queues)
            and (self.job_id is None or event.job_id == self.job_id)
            and (self.names is None or any(is_named(event, name) for name in self.names))
        )


async def events_after(
    tail: Tail, backend: Backend, cursor: str | None, wanted: Wanted, heartbeat: float, *, whole: bool = False
) -> AsyncIterator[JobEvent | str]:
    """Yield all matching events after the cursor, first from the store, then as they happen; never end.

    Without a cursor it starts now, or with `whole` at the start of the log. After `heartbeat` seconds without an event
    it yields the cursor it has reached, as a keep-alive from which the client can resume.
    """
    at = _Where(cursor, None)
    if cursor is None and not whole:
        while tail.cursor is None:  # the tail and this stream must agree on the end of the log
            if not await tail.beyond(tail.end, heartbeat):
                yield ""
        at = _Where(tail.cursor, tail.end)
    due = monotonic() + heartbeat
    while True:
        events, at = await _next(tail, backend, at, wanted)
        for event in events:
            if wanted.has(event):
                yield (await loaded(backend, [event]))[0] if wanted.jobs else event
                due = monotonic() + heartbeat
        if at.place is not None:
            await tail.beyond(at.place, due - monotonic())
        if monotonic() >= due:
            yield at.cursor or ""
            due = monotonic() + heartbeat


@dataclass(frozen=True, slots=True)
class _Where:
    """The position of a stream."""

    cursor: str | None
    """None means the start of the log."""
    place: int | None
    """The number of the next event in the tail; None if the stream must read the store."""


async def _next(tail: Tail, backend: Backend, at: _Where, wanted: Wanted) -> tuple[Sequence[JobEvent], _Where]:
    """Return the next events, including all that match, and the new position."""
    kept = None if at.place is None else tail.since(at.place)
    if kept is not None and at.place is not None:
        return kept, _Where(kept[-1].cursor if kept else at.cursor, at.place + len(kept))
    # too far behind, or after a gap: read the store
    await tail.catch_up()  # so that the tail has passed the cursor
    place = tail.end
    events = await backend.read_events(at.cursor, _AT_ONCE, queue=wanted.only_queue, job_id=wanted.job_id)
    read = _Where(events[-1].cursor if events else at.cursor, None)
    if len(events) == _AT_ONCE:
        return events, read
    await tail.catch_up()  # so that the tail has passed the last of these
    since = tail.since(place)
    if since is None:
        return events, read
    # events that the tail had before this read were committed before it, so there is no gap between the two
    known = {_mark(event) for event in events}
    return [*events, *(event for event in since if _mark(event) not in known)], _Where(tail.cursor, tail.end)


def _mark(event: JobEvent) -> tuple[object, ...]:
    """The identity of an event. Its cursor cannot serve: it also records what was pruned at the time of the read."""
    return event.job_uid, event.job_seq, event.queue, event.event, event.assignee_id, event.occurred_at


async def first_completed(*waits: Awaitable[Any]) -> None:
    """Wait until one of them completes, then cancel the others and wait for them."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*tasks)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks, wait for them and ignore their results."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_LONGEST_POLL = 60.0
_IDLE_SECONDS = 120.0
"""Seconds without a request after which it stops waiting for changes, so that it costs nothing without callers."""
_POLL_PAUSE = 1.0


class Changes:
    """A counter of changes since the first request. A mark is the server's id and the count."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._signal = ChangeSignal()
        self._requested_at = 0.0
        self._work: asyncio.Task[None] | None = None
        self.server = new_id()

    async def mark(self) -> str:
        """Return the current mark; every later change creates another mark."""
        self._requested_at = monotonic()
        if self._work is None or self._work.done():
            self._signal.notify()  # the store may have changed meanwhile
            self._work = asyncio.create_task(self._follow())
            for _ in range(2):  # the task starts, then its first wait
                await asyncio.sleep(0)
        return self._mark()

    async def after(self, mark: str, timeout: float) -> str:
        """Wait until the mark changes or the time has passed; return the mark."""
        if await self.mark() == mark:
            try:
                await self._signal.wait(self._signal.count, timeout)
            finally:
                self._requested_at = monotonic()
        return self._mark()

    async def close(self) -> None:
        """Stop following."""
        if self._work is not None:
            await end(self._work)

    def _mark(self) -> str:
        return f"{self.server}.{self._signal.count}"

    async def _follow(self) -> None:
        waiting = asyncio.ensure_future(self._backend.wait_for_change(_LONGEST_POLL))
        try:
            while self._signal.waiting or monotonic() - self._requested_at < _IDLE_SECONDS:
                try:
                    changed = await waiting
                except QueueClosed:
                    return
                except Exception as error:  # waiting clients must check for themselves
                    _log.warning("cannot wait for changes, retrying: %s", error)
                    await asyncio.sleep(_POLL_PAUSE)
                    changed = True
                # the next wait begins before waiters are notified, so that no change falls in between
                waiting = asyncio.ensure_future(self._backend.wait_for_change(_LONGEST_POLL))
                if changed:
                    self._signal.notify()
        finally:
            await end(waiting)
