"""Decides when to claim: the store changed, a slot is free, or a job is due."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from longshore.backends.base import Backend
from longshore.core.errors import QueueClosed
from longshore.safe_logging import logger

_EMPTY_CLAIMS = 10
"""Empty claims in a row before the next ones are spaced out: our own commits cause a few per job."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_UNAVAILABLE_PAUSE = 0.5
_WHILE_BUSY = 0.1
"""Seconds between two checks for cancellations while there is more work than free slots."""

_BETWEEN_LOOKS_AHEAD = 0.1
"""Seconds between two queries for the next due job."""
_BEFORE_THE_FIRST = timedelta(seconds=1)
_SLACK = 0.002
"""Seconds by which a timer may fire early."""

_log = logger("longshore.stream")


class WorkSignal:
    """An event that is set when there may be work, and cleared by `wait`.

    Other workers may keep the store busy and leave no jobs for this one. Empty claims are therefore spaced out, up to
    `_LONGEST_PAUSE`, until one finds a job.
    """

    def __init__(self, backend: Backend, poll_seconds: float) -> None:
        self._backend = backend
        self._poll_seconds = poll_seconds
        self._event = asyncio.Event()
        self._event.set()  # the first claim runs at once
        self.notify = self._event.set
        """Call it when there may be work; from other threads through the loop."""
        self._empty_claims = 0
        self.plenty = False
        """Whether the last claim found as many jobs as it asked for."""
        self._no_plenty = asyncio.Event()
        self._no_plenty.set()
        self._changed_while_full = False
        """Whether the store has changed since the last watch without free slots returned."""
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._look_ahead: asyncio.Task[None] | None = None
        self._look_ahead_again = False
        self._looked_until: datetime | None = None
        self._closed: QueueClosed | None = None
        self.changed = False
        """Whether the store changed since this was last set to False."""

    def start(self) -> None:
        """Start watching the store."""
        self._watch = asyncio.create_task(self._watch_store())

    async def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._watch, self._look_ahead) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def notify_in(self, seconds: float) -> None:
        """Notify after this time. Only the earliest time is kept, and none after the next poll."""
        if seconds > self._poll_seconds:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is not None:
            if loop.time() < self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._event.set)

    async def wait(self) -> None:
        """Return when there may be work; raise QueueClosed when the store is closed."""
        await self._event.wait()
        if self._closed is not None:
            raise self._closed
        self._event.clear()

    def found(self, jobs: int, *, plenty: bool = False) -> None:
        """Record how many jobs the last claim found, and whether that was as many as it asked for."""
        self._empty_claims = 0 if jobs else self._empty_claims + 1
        self.plenty = plenty
        if plenty:
            self._no_plenty.clear()
            self._changed_while_full = True
        else:
            self._no_plenty.set()

    def notify_when_due(self, queues: Sequence[str] | None) -> None:
        """After an empty claim, notify when a delayed job is due before the next poll."""
        self._look_ahead_again = True
        if self._look_ahead is None or self._look_ahead.done():
            self._look_ahead = asyncio.create_task(self._find_due(queues))

    async def _find_due(self, queues: Sequence[str] | None) -> None:
        """Query from the time of the last query, not from now: a job may have arrived after the claim."""
        while self._look_ahead_again:
            self._look_ahead_again = False
            with suppress(Exception):  # optional: the next poll finds the job, too
                if self._looked_until is None:
                    self._looked_until = await self._backend.now() - _BEFORE_THE_FIRST
                first = await self._backend.next_due(queues, after=self._looked_until)
                if first is not None:
                    self._looked_until = await self._backend.now()
                    seconds = (first - self._looked_until).total_seconds()
                    if seconds < self._poll_seconds:
                        self.notify_in(max(seconds, 0) + _SLACK)
            await asyncio.sleep(_BETWEEN_LOOKS_AHEAD)

    async def _watch_store(self) -> None:
        while True:
            try:
                changed = await self._wait_for_change()
            except QueueClosed as closed:
                self._closed = closed
                self._event.set()
                return
            except Exception as error:  # the next claim reports it; keep watching
                _log.debug("cannot watch the store; trying again: %r", error)
                await asyncio.sleep(_UNAVAILABLE_PAUSE)
                changed = True
            # no await between this and the next wait, so that no change is missed
            self.changed = self.changed or changed
            self._event.set()

    async def _wait_for_change(self) -> bool:
        """Return whether the store has changed, or may have."""
        full = self.plenty
        if full and self._changed_while_full:  # our own commits would wake us at every exchange
            self._changed_while_full = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_WHILE_BUSY):
                    await self._no_plenty.wait()
            return True
        changed = await self._backend.wait_for_change(self._poll_seconds)
        if changed and full:
            self._changed_while_full = True
        elif not changed:  # the store is quiet, so no other worker takes the jobs: react to the next change at once
            self._empty_claims = 0
        elif self._empty_claims > _EMPTY_CLAIMS:
            pause = _FIRST_PAUSE * 2 ** min(self._empty_claims - _EMPTY_CLAIMS, 10)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE))
        return changed
