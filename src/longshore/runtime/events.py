"""Listeners: each follows the durable log from where it began, whoever writes it, and calls a user's function."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from longshore.backends.contract import Backend
from longshore.core.errors import CursorExpired, InvalidArgument, LongshoreError, QueueClosed
from longshore.core.job import JobEvent
from longshore.runtime import background

EventListener = Callable[[JobEvent], Any]
"""Called with each event; what it returns is awaited if it can be."""

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

_AT_ONCE = 200
"""Events read by one look: few enough that a plain function called for each does not hold up the loop for long."""
_PATIENCE = 1.0
"""Seconds between two looks when nothing is heard: on PostgreSQL an event may become readable after its commit."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_log = logging.getLogger("longshore.events")


def check_event(event: object) -> str:
    """The name of an event, or "*" for all of them."""
    if event == EVERY or event in EVENTS:
        return str(event)
    near = get_close_matches(str(event), EVENTS, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(EVENTS)}, and * for all"
    raise InvalidArgument("event", f"there is no event {event!r}{hint}")


class Listener:
    """One function that is told of events, in the order of the log, in the event loop that asked for it.

    Each has its own place in the log, so that one that is slow or fails holds up nobody else, and nothing piles up in
    memory.
    """

    def __init__(self, backend: Backend, queue: str | None, event: str, call: EventListener) -> None:
        self._backend = backend
        self._queue = queue
        self._event = check_event(event)
        if not callable(call):
            raise InvalidArgument("listener", f"must be a function that takes a JobEvent, not {call!r}")
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._telling = False
        self._begun: Future[str] = background.submit(backend.end_of_events())
        self._found_beginning = False
        self._work = self._loop.create_task(self._follow())
        self._work.add_done_callback(self._let_go)

    def stop(self) -> None:
        """Hears nothing more; what it is doing with an event it may finish. From any thread."""
        self._over = True
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._leave()
        else:
            with suppress(RuntimeError):  # its loop has closed, and it with it
                self._loop.call_soon_threadsafe(self._leave)

    @property
    def begins(self) -> bool:
        """Whether it has not found its place in the log yet."""
        return not self._begun.done()

    async def begun(self) -> None:
        """Waits until it hears whatever is committed from now on, or could not find out; never raises for it."""
        place = asyncio.wrap_future(self._begun)
        place.add_done_callback(_look_at)
        await asyncio.wait([place])

    async def ended(self) -> None:
        """Waits until it has stopped following; not for a function that is still at work."""
        if not self._telling and asyncio.get_running_loop() is self._loop:
            await asyncio.wait([self._work])

    def _leave(self) -> None:
        if not self._telling:
            self._work.cancel()

    def _let_go(self, _: object) -> None:
        """Whoever keeps the function that ends this listener need not keep what it called."""
        self._call = _nobody

    async def _follow(self) -> None:
        place: str | None = None
        pause = _SHORTEST_PAUSE
        while not self._over:
            try:
                if place is None:
                    place = await self._beginning()
                place = await self._tell_what_is_new(place)
                if not self._over:
                    await self._backend.wait_for_change(_PATIENCE, after=place)
                pause = _SHORTEST_PAUSE
            except QueueClosed:
                return
            except CursorExpired as error:
                _log.warning("a listener for %s missed events and goes on with new ones: %s", self._event, error)
                place = None
                await asyncio.sleep(pause)
            except Exception as error:  # it must never fall silent: whatever is wrong may pass
                known = isinstance(error, LongshoreError)
                _log.warning("the events cannot be read now, trying again: %s", error, exc_info=not known)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _beginning(self) -> str:
        if self._found_beginning:  # and lost it again
            return await self._backend.end_of_events()
        self._found_beginning = True
        return await asyncio.wrap_future(self._begun)

    async def _tell_what_is_new(self, place: str) -> str:
        """Tells of the events after this place; returns the place after them."""
        events = await self._backend.read_events(place, _AT_ONCE, queue=self._queue)
        if not events:
            # what woke us was another queue's: from now on it is behind us, or we would be woken by it again and again
            end = await self._backend.end_of_events()
            events = await self._backend.read_events(place, _AT_ONCE, queue=self._queue)
            if not events:
                return end
        for event in events:
            if self._over:
                break
            if self._event in (EVERY, event.event):
                await self._tell(event)
            place = event.cursor
        return place

    async def _tell(self, event: JobEvent) -> None:
        self._telling = True
        try:
            answer = self._call(event)
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError:
            if self._work.cancelling():
                raise
            _log.warning("a listener for %s was cancelled by what it awaited, on %s", self._event, _name(event))
        except Exception:
            _log.exception("a listener for %s failed on %s", self._event, _name(event))
        finally:
            self._telling = False


def _nobody(_: JobEvent) -> None:
    """Hears nothing."""


def _look_at(place: asyncio.Future[str]) -> None:
    """A failure is the listener's to tell of, and it does."""
    if not place.cancelled():
        place.exception()


def _name(event: JobEvent) -> str:
    return event.event if event.job_id is None else f"{event.event} of job {event.job_id!r}"
