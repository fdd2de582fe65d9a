"""A signal that any thread may set and any event loop may wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Bell:
    """Counts its rings, so that one that came between looking and waiting is not missed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self.rings = 0
        self.on_wait: Callable[[], None] | None = None
        """Called each time somebody has begun to wait: whoever listens on the bell's behalf may have gone to sleep."""

    @property
    def awaited(self) -> bool:
        """Whether anybody waits now."""
        return bool(self._waiting)

    def ring(self) -> None:
        """Wakes whoever waits."""
        with self._lock:
            self.rings += 1
            waiting, self._waiting = self._waiting, set()
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # its loop has closed: nobody is left to wake
                continue

    async def wait(self, rings: int, timeout: float) -> bool:
        """True as soon as there have been more than `rings` rings; False after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiter = (loop, future)
        with self._lock:
            if self.rings != rings:
                return True
            self._waiting.add(waiter)
        if self.on_wait is not None:
            self.on_wait()
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return self.rings != rings
        finally:
            with self._lock:
                self._waiting.discard(waiter)
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
