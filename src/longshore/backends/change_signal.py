"""A signal that any thread may send and any event loop may wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class ChangeSignal:
    """Counts notifications, so that one sent between a read and a wait is not missed. See docs/write-a-backend.md."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        """The callers that wait now; only this class changes it."""
        self.count = 0
        self.on_wait: Callable[[], None] | None = None
        """Called when a wait begins: the thread that sends the notifications may be asleep."""

    def notify(self) -> None:
        """Wake all waiting callers."""
        with self._lock:
            self.count += 1
            waiting, self.waiting = self.waiting, set()
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # the event loop is closed
                continue

    async def wait(self, count: int, timeout: float) -> bool:
        """Return True once there are more than `count` notifications, False after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiter = (loop, future)
        with self._lock:
            if self.count != count:
                return True
            self.waiting.add(waiter)
        if self.on_wait is not None:
            self.on_wait()
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return self.count != count
        finally:
            with self._lock:
                self.waiting.discard(waiter)
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
