"""Counts the changes of the store that this server has seen, for remote backends that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import monotonic
from typing import Any

from longshore.backends.base import Backend
from longshore.backends.change_signal import ChangeSignal
from longshore.core.errors import QueueClosed
from longshore.core.validation import new_id
from longshore.safe_logging import logger


async def first_of(*waits: Awaitable[Any]) -> None:
    """Returns when one of them is over, and all are."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*tasks)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels them, and waits until they have ended; how they did is theirs to tell."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_PATIENCE = 60.0
_UNASKED = 120.0
"""Seconds without anybody asking, after which it stops to look: a server without remote workers pays nothing."""
_PAUSE = 1.0

_log = logger("longshore.server")


class Changes:
    """Counts changes from the first time somebody asks. A mark tells server and count; every server has a name."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._signal = ChangeSignal()
        self._asked_at = 0.0
        self._work: asyncio.Task[None] | None = None
        self.server = new_id()

    async def mark(self) -> str:
        """Where it stands now: every change from here on makes it another one."""
        self._asked_at = monotonic()
        if self._work is None or self._work.done():
            self._signal.notify()  # nobody looked, so that it may have changed
            self._work = asyncio.create_task(self._follow())
            for _ in range(2):  # it begins, and then its first wait does
                await asyncio.sleep(0)
        return self._told()

    async def after(self, mark: str, timeout: float) -> str:
        """Waits until the mark is another one, or the time is over; returns what it is then."""
        if await self.mark() == mark:
            try:
                await self._signal.wait(self._signal.count, timeout)
            finally:
                self._asked_at = monotonic()
        return self._told()

    async def close(self) -> None:
        """Ends it."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _told(self) -> str:
        return f"{self.server}.{self._signal.count}"

    async def _follow(self) -> None:
        waiting = asyncio.ensure_future(self._backend.wait_for_change(_PATIENCE))
        try:
            while self._signal.awaited or monotonic() - self._asked_at < _UNASKED:
                try:
                    changed = await waiting
                except QueueClosed:
                    return
                except Exception as error:  # whatever it is may pass; whoever waits had better look
                    _log.warning("changes cannot be waited for now, trying again: %s", error)
                    await asyncio.sleep(_PAUSE)
                    changed = True
                # the next wait begins before anybody is told, so that no change falls in between
                waiting = asyncio.ensure_future(self._backend.wait_for_change(_PATIENCE))
                if changed:
                    self._signal.notify()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
