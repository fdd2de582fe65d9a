"""Listeners: a Queue reads the event log once and calls its listeners in log order."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from difflib import get_close_matches
from time import monotonic
from typing import Any

from longshore.backends.base import Backend
from longshore.backends.port import comes_after
from longshore.core.errors import BackendUnavailable, CursorExpired, InvalidArgument, LongshoreError, QueueClosed
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent
from longshore.core.status import JobStatus
from longshore.core.transitions import result_detail
from longshore.runtime import background
from longshore.safe_logging import logger

EventListener = Callable[[JobEvent], Any]
"""Called with each event; an awaitable that it returns is awaited."""

EVERY = "*"
EVENTS = (
    "job.added",
    "job.active",
    "job.completed",
    "job.failed",
    "job.progress",
    "job.stalled",
    "job.delayed",
    "job.promoted",
    "job.removed",
    "job.log_added",
    "job.waiting_children",
    "job.dependencies_completed",
    "job.cancelling",
    "job.stopped",
    "job.dead",
    "job.accepted",
    "job.retried",
    "job.released",
    "job.updated",
    "queue.paused",
    "queue.resumed",
    "queue.changed",
    "schedule.paused",
    "schedule.resumed",
    "schedule.changed",
    "schedule.removed",
    "token.created",
    "token.revoked",
    "worker.error",
    "worker.drained",
)

ALIASES: dict[str, tuple[str, Callable[[JobEvent], bool]]] = {
    "job.attempt_failed": ("job.failed", lambda event: not event.detail["final"]),
    "job.retry_scheduled": ("job.delayed", lambda event: event.execution > 0),
}
"""Aliases that select some events of another name; the event keeps its own name."""

BUFFERED = 1_000
"""Events buffered in memory for a busy listener; after that it reads them from the log."""
END_WITHIN = 1.0
"""Seconds in which the store must return the end of its log when a listener starts."""
SHOWN_JOB = 64 * 1024
"""The largest size, payload and result in bytes, of a job that an event carries to a listener."""
_LOADED_AT_ONCE = 20
"""Jobs loaded in one call, because they may be large."""
_GRACE = 1.0
"""Seconds for which the other listeners wait for a call, so that all are called in log order."""
_FAST, _SLOW_CALLS = 0.02, 3
"""After three calls in a row that take longer than this (in seconds), the others do not wait for the listener until it
is fast again. A single long call, as on a busy machine, does not change the order."""
_AT_ONCE = 200
"""Events per read: few enough that plain listeners do not block the loop for long."""
_POLL_SECONDS = 1.0
"""Seconds between two reads without a notification: on PostgreSQL an event may become readable after its commit."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_log = logger("longshore.events")


def check_event(event: object) -> str:
    """Return the name or alias of an event, or "*" for all."""
    if event == EVERY or event in EVENTS or event in tuple(ALIASES):
        return str(event)
    names = (*EVENTS, *ALIASES)
    near = get_close_matches(str(event), names, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; use one of {', '.join(names)}, or * for all"
    raise InvalidArgument("event", f"unknown event {event!r}{hint}")


def is_named(event: JobEvent, name: str) -> bool:
    """Whether a listener for this name, alias or "*" gets the event."""
    if name in (EVERY, event.event):
        return True
    own_name, selects = ALIASES.get(name, ("", bool))
    return own_name == event.event and selects(event)


async def loaded(
    backend: Backend, events: Sequence[JobEvent], wanted: Callable[[JobEvent], bool] = lambda _: True
) -> list[JobEvent]:
    """Return the events, with details of the current job added that the log does not store.

    `job.added` and `job.active` get the `job` (`job_omitted` with its size if it is too large), `job.completed` its
    result. Nothing is added if the job was removed meanwhile.
    """
    ids = {event.job_id for event in events if _lacks_its_job(event) and wanted(event)}
    if not ids:
        return list(events)
    some = JobFilter(ids=sorted(job_id for job_id in ids if job_id is not None))
    jobs = {job.uid: job for job in (await backend.list_jobs(some, limit=len(ids))).items}
    return [_with_its_job(event, jobs.get(event.job_uid or 0)) if event.job_id in ids else event for event in events]


def _lacks_its_job(event: JobEvent) -> bool:
    if event.event == "job.completed":
        return not event.detail
    return event.event in ("job.added", "job.active")


def _with_its_job(event: JobEvent, job: Job | None) -> JobEvent:
    if job is None or not _lacks_its_job(event):
        return event
    if event.event == "job.completed":
        known: dict[str, Any] = result_detail(job.result) if job.status is JobStatus.COMPLETED else {}
    else:
        size = len(job.payload) + len(job.result or b"")
        known = {"job": job} if size <= SHOWN_JOB else {"job_omitted": size}
    return dataclasses.replace(event, detail={**event.detail, **known})


def end_of_log(backend: Backend) -> str:
    """Return the current end of the log for a new listener; block the thread for at most `END_WITHIN`."""
    reading = background.submit(backend.end_of_events())
    try:
        return reading.result(END_WITHIN)
    except TimeoutError:
        reading.cancel()
        raise BackendUnavailable(
            f"the store did not return the end of its event log within {END_WITHIN:g} s; check its connection, "
            "then call on() again"
        ) from None


class Follower:
    """Reads the log for all listeners of one Queue in one event loop, and passes each event to all of them."""

    def __init__(self, backend: Backend, queue: str | None, cursor: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.backend = backend
        self.queue = queue
        self.listeners: list[Listener] = []
        self.passed = cursor
        """The cursor of the last event passed to the listeners."""
        self._cursor: str | None = cursor
        self._stopped = False
        self._work = self.loop.create_task(self._follow())

    @property
    def stopped(self) -> bool:
        """Whether it has stopped."""
        return self._stopped or self._work.done()

    def listen(self, event: str, call: EventListener, cursor: str) -> Listener:
        """Add a listener, which gets the events after this cursor."""
        listener = Listener(self, event, call, cursor)
        self.listeners.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener, from any thread; without listeners the log is not read."""
        listener.stopped = True
        if background.running_loop() is self.loop:
            self._leave(listener)
        else:
            with suppress(RuntimeError):  # its loop has closed
                self.loop.call_soon_threadsafe(self._leave, listener)

    def _leave(self, listener: Listener) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)
        listener.stop()
        if not self.listeners:
            self._stopped = True
            if asyncio.current_task(self.loop) is not self._work:  # a plain listener may remove itself
                self._work.cancel()

    async def end(self) -> None:
        """End all listeners. Wait until the log is no longer read, but not for running calls."""
        listeners = list(self.listeners)
        for listener in listeners:
            self.leave(listener)
        if asyncio.get_running_loop() is self.loop:
            for listener in listeners:
                await listener.ended()
            if asyncio.current_task() is not self._work:
                await asyncio.wait([self._work])

    async def _follow(self) -> None:
        pause = _SHORTEST_PAUSE
        gap = CursorExpired()
        while not self._stopped:
            try:
                if self._cursor is None:
                    self._cursor = self.passed = await self.backend.end_of_events()
                    for listener in self.listeners:
                        listener.continue_after(self._cursor)
                    names = ", ".join(sorted({listener.event for listener in self.listeners}))
                    _log.warning("listeners for %s missed events and continue with new ones: %s", names, gap)
                self._cursor = await self._pass_new_events(self._cursor)
                if not self._stopped:
                    await self.backend.wait_for_change(_POLL_SECONDS, after=self._cursor)
                pause = _SHORTEST_PAUSE
            except QueueClosed:
                return
            except CursorExpired as error:
                gap, self._cursor = error, None
                if pause > _SHORTEST_PAUSE:  # the first time it continues at once
                    await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            except Exception as error:  # the error may be temporary
                known = isinstance(error, LongshoreError)
                _log.warning("cannot read events; trying again: %s", error, exc_info=not known)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _pass_new_events(self, cursor: str) -> str:
        """Pass the events after this cursor to the listeners; return the new cursor."""
        events = await self.backend.read_events(cursor, _AT_ONCE, queue=self.queue)
        if not events:
            # another queue changed: continue from the end, or the next wait would return at once
            end = await self.backend.end_of_events()
            events = await self.backend.read_events(cursor, _AT_ONCE, queue=self.queue)
            if not events:
                return end
        for first in range(0, len(events), _LOADED_AT_ONCE):
            for event in await loaded(self.backend, events[first : first + _LOADED_AT_ONCE], self._is_wanted):
                if self._stopped:
                    return cursor
                await self._pass_event(event)
                cursor = self._cursor = event.cursor
        return cursor

    def _is_wanted(self, event: JobEvent) -> bool:
        return any(is_named(event, listener.event) for listener in self.listeners)

    async def _pass_event(self, event: JobEvent) -> None:
        self.passed = event.cursor
        begun = []
        for listener in list(self.listeners):
            work = listener.pass_event(event)
            if work is not None:
                begun.append(work)
        if begun:
            await asyncio.wait(begun, timeout=_GRACE)


class Listener:
    """A function that is called with events, one at a time and in log order.

    A slow listener does not block the others. While it is busy, up to `BUFFERED` events are kept in memory; after that
    it reads the log from its own cursor until it has caught up.
    """

    def __init__(self, follower: Follower, event: str, call: EventListener, cursor: str) -> None:
        self.event = event
        self.stopped = False
        self._follower = follower
        self._call = call
        self._after = cursor
        """It gets only the events after this cursor."""
        self._context = copy_context()
        self._waiting: deque[JobEvent] = deque()
        self._behind: str | None = None
        """The cursor from which it reads the log after its buffer was full."""
        self._warned = False
        self._slow_calls = 0
        self._delivering = False
        self._work: asyncio.Task[None] | None = None

    def pass_event(self, event: JobEvent) -> asyncio.Task[None] | None:
        """Call the function with a matching event, or buffer the event while the function is busy.

        Return the task of the call if the other listeners should wait for it.
        """
        if self.stopped or self._behind is not None:
            return None
        if not is_named(event, self.event) or not comes_after(event.cursor, self._after):
            return None
        if self._work is not None:
            self._keep(event)
            return None
        answer = self._context.run(self._begin, event)
        if answer is None:
            return None
        work = self._follower.loop.create_task(self._drain_buffer(answer, event), context=self._context)
        self._work = work
        return work if self._slow_calls < _SLOW_CALLS else None

    def continue_after(self, cursor: str) -> None:
        """Move back to this cursor after the log was restored or pruned, if its own lies beyond the end."""
        if comes_after(self._after, cursor):
            self._after = cursor

    def stop(self) -> None:
        """Take no more events; a running call may finish."""
        self.stopped = True
        self._waiting.clear()
        if self._work is None:
            self._call = _nothing
        elif not self._delivering:
            self._work.cancel()

    async def ended(self) -> None:
        """Wait until it no longer reads the log, but not for a running call."""
        if self._work is not None and not self._delivering:
            await asyncio.wait([self._work])

    def _keep(self, event: JobEvent) -> None:
        if len(self._waiting) < BUFFERED:
            self._waiting.append(event)
            return
        self._behind = self._waiting[-1].cursor
        if not self._warned:
            self._warned = True
            _log.warning(
                "a listener for %s is more than %d events behind and reads them from the log; no event is lost",
                self.event,
                BUFFERED,
            )

    def _begin(self, event: JobEvent) -> Awaitable[Any] | None:
        """Call the function; return its awaitable, if any."""
        with self._failures_logged(event):
            answer = self._call(event)
            return answer if inspect.isawaitable(answer) else None
        return None

    async def _drain_buffer(self, answer: Awaitable[Any], event: JobEvent) -> None:
        """Await the first call, then make the calls that were buffered meanwhile."""
        try:
            await self._finish(answer, event)
            pause = _SHORTEST_PAUSE
            while not self.stopped and (self._waiting or self._behind is not None):
                if self._waiting:
                    await self._deliver(self._waiting.popleft())
                    continue
                try:
                    await self._catch_up(str(self._behind))
                    pause = _SHORTEST_PAUSE
                except QueueClosed:
                    return
                except CursorExpired as error:
                    _log.warning("a listener for %s missed events and continues with new ones: %s", self.event, error)
                    self._behind = None
                except Exception as error:
                    known = isinstance(error, LongshoreError)
                    _log.warning("cannot read events; trying again: %s", error, exc_info=not known)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            self._work = None
            if self.stopped:  # callers may keep the function that ends the listener: release the callback
                self._call = _nothing

    async def _catch_up(self, cursor: str) -> None:
        """Call the function with pages of the log until it has caught up with the follower."""
        events = await self._follower.backend.read_events(cursor, _AT_ONCE, queue=self._follower.queue)
        for first in range(0, len(events), _LOADED_AT_ONCE):
            some = events[first : first + _LOADED_AT_ONCE]
            for event in await loaded(self._follower.backend, some, lambda event: is_named(event, self.event)):
                if self.stopped:
                    return
                if is_named(event, self.event):
                    await self._deliver(event)
                self._behind = event.cursor
        if self._behind is not None and not comes_after(self._follower.passed, self._behind):
            self._after, self._behind = self._behind, None

    async def _deliver(self, event: JobEvent) -> None:
        answer = self._begin(event)
        if answer is not None:
            await self._finish(answer, event)

    async def _finish(self, answer: Awaitable[Any], event: JobEvent) -> None:
        began = monotonic()
        self._delivering = True
        try:
            with self._failures_logged(event):
                await answer
        finally:
            self._delivering = False
            self._slow_calls = self._slow_calls + 1 if monotonic() - began > _FAST else 0

    @contextmanager
    def _failures_logged(self, event: JobEvent) -> Iterator[None]:
        """Log an exception of the function; it must not stop the listener."""
        name = event.event if event.job_id is None else f"{event.event} of job {event.job_id!r}"
        try:
            yield
        except asyncio.CancelledError:
            if self._work is not None and self._work.cancelling():
                raise
            _log.warning("a listener for %s was cancelled inside its own await, on %s", self.event, name)
        except Exception:
            _log.exception("a listener for %s raised an error on %s", self.event, name)


def _nothing(_: JobEvent) -> None:
    """Ignore the event."""
