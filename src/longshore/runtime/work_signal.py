"""When to look for work: the store changed, a slot is free, or a job is due."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from longshore.backends.base import Backend
from longshore.core.errors import QueueClosed
from longshore.safe_logging import logger

_PATIENCE = 10
"""Looks in a row that may find nothing before the next ones are spaced out: after a job our own commits cause a few."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_UNAVAILABLE_PAUSE = 0.5
_WHILE_BUSY = 0.1
"""Seconds between two looks for cancellations while there is more work than free slots."""

_AHEAD_AGAIN = 0.1
"""Seconds between two looks at what is still to come."""
_BEFORE_THE_FIRST = timedelta(seconds=1)
_SLACK = 0.002
"""Seconds by which a timer may be early."""

_log = logger("longshore.stream")


class WorkSignal:
    """A flag that many reasons may raise and one look lowers; it belongs to the loop it is started in.

    Others may keep the store busy without leaving anything for us: looks that find nothing are spaced out, up to
    `_LONGEST_PAUSE`, until one finds something.
    """

    def __init__(self, backend: Backend, poll_seconds: float) -> None:
        self._backend = backend
        self._poll_seconds = poll_seconds
        self._raised = asyncio.Event()
        self._raised.set()  # the first look is at once
        self._fruitless = 0
        self._scarce = asyncio.Event()
        self._scarce.set()
        self._restless = False
        """Whether the store has changed, by us or others, since the last look of a watch that has no free slot."""
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None
        self._ahead_again = False
        self._told_until: datetime | None = None
        self._closed: QueueClosed | None = None
        self.changed = False
        """Whether the store changed since this was last set to False."""

    def start(self) -> None:
        """Begins to watch the store."""
        self._watch = asyncio.create_task(self._ring_on_changes())

    async def stop(self) -> None:
        """Watches no longer."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._watch, self._ahead) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def notify(self) -> None:
        """There may be something to do."""
        self._raised.set()

    def ring_in(self, seconds: float) -> None:
        """There will be something to do; the first such time is kept, and none that comes after the next poll."""
        if seconds > self._poll_seconds:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is not None:
            if loop.time() < self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._raised.set)

    async def wait(self) -> None:
        """Returns when there was any reason since the last time; raises QueueClosed when there will be no more."""
        await self._raised.wait()
        if self._closed is not None:
            raise self._closed
        self._raised.clear()

    def found(self, jobs: int, *, plenty: bool = False) -> None:
        """How much the last look found, and whether it was as much as could be taken."""
        self._fruitless = 0 if jobs else self._fruitless + 1
        if plenty:
            self._scarce.clear()
            self._restless = True
        else:
            self._scarce.set()

    @property
    def plenty(self) -> bool:
        """Whether the last look found as much as could be taken."""
        return not self._scarce.is_set()

    def look_ahead(self, queues: Sequence[str] | None) -> None:
        """After a look that found nothing: rings when the time of a delayed job comes, be it before the next poll."""
        self._ahead_again = True
        if self._ahead is None or self._ahead.done():
            self._ahead = asyncio.create_task(self._ring_when_due(queues))

    async def _ring_when_due(self, queues: Sequence[str] | None) -> None:
        while self._ahead_again:
            self._ahead_again = False
            with suppress(Exception):  # nothing depends on it: the next poll finds the job, too
                await self._ask_when(queues)
            await asyncio.sleep(_AHEAD_AGAIN)

    async def _ask_when(self, queues: Sequence[str] | None) -> None:
        """From where it last asked, not from now: a job may have come since the look that did not find it."""
        if self._told_until is None:
            self._told_until = await self._backend.now() - _BEFORE_THE_FIRST
        first = await self._backend.next_due(queues, after=self._told_until)
        if first is not None:
            self._told_until = await self._backend.now()
            seconds = (first - self._told_until).total_seconds()
            if seconds < self._poll_seconds:
                self.ring_in(max(seconds, 0) + _SLACK)

    async def _ring_on_changes(self) -> None:
        while True:
            try:
                changed = await self._something_to_see()
            except QueueClosed as closed:
                self._closed = closed
                self.notify()
                return
            except Exception as error:  # whatever it is, whoever looks next meets it, too; and the watch goes on
                _log.debug("cannot watch the store, trying again: %r", error)
                await asyncio.sleep(_UNAVAILABLE_PAUSE)
                changed = True
            # with no await between these and the next wait, so that no change falls in between
            self.changed = self.changed or changed
            self.notify()

    async def _something_to_see(self) -> bool:
        """Waits; tells whether the store has changed, or may have."""
        full = self.plenty
        if full and self._restless:  # more than can be taken: our own commits would wake us at every turn for nothing
            self._restless = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_WHILE_BUSY):
                    await self._scarce.wait()
            return True
        changed = await self._backend.wait_for_change(self._poll_seconds)
        if changed and full:
            self._restless = True
        elif changed:
            await self._space_out()
        else:  # looks at a quiet store are no sign of rivals: the next change is answered at once
            self._fruitless = 0
        return changed

    async def _space_out(self) -> None:
        if self._fruitless > _PATIENCE:
            pause = _FIRST_PAUSE * 2 ** min(self._fruitless - _PATIENCE, 10)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE))
