"""Guards a backend that owns threads and connections against use after a fork or a close."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from longshore.backends.change_signal import ChangeSignal
from longshore.core.errors import BackendUnavailable, QueueClosed

R = TypeVar("R")


class ProcessGuard:
    """Rejects calls after `close`, and calls from a forked process. A backend says what `close` releases."""

    _signal: ChangeSignal

    def __init__(self) -> None:
        self._closed = False
        self._process: int | None = None
        """The process of its first use: from then on it has threads and connections, which a fork does not copy."""
        self._releasing = threading.Lock()
        self._released = False

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise QueueClosed("this backend was closed; open a new one with connect(url)")
        if self._process is None:
            self._process = os.getpid()
        if os.getpid() != self._process:
            raise BackendUnavailable(
                "this backend was used before a fork, and its threads and connections are in the parent process; "
                "call connect(url) again"
            )

    async def _in_thread(self, threads: Executor, work: Callable[..., R], *args: Any) -> R:
        """Run the work in one of these threads."""
        self._refuse_if_closed()
        try:
            working = asyncio.get_running_loop().run_in_executor(threads, work, *args)
        except RuntimeError:  # the threads ended between the check and this call
            self._refuse_if_closed()
            raise
        return await working

    async def close(self) -> None:
        self._closed = True
        if self._process not in (None, os.getpid()):  # threads, locks and connections belong to the parent process
            return
        self._signal.notify()
        released: Future[None] = Future()
        released.set_running_or_notify_cancel()
        # not in the event loop's default executor, which user code may keep busy
        threading.Thread(target=self._release_and_report, args=(released,), name="longshore-closing").start()
        await asyncio.wrap_future(released)

    def _release_and_report(self, released: Future[None]) -> None:
        try:
            self._release()
        except BaseException as error:
            released.set_exception(error)
        else:
            released.set_result(None)

    def _release(self) -> None:
        with self._releasing:
            if not self._released:
                self._release_resources()
            self._released = True

    @abstractmethod
    def _release_resources(self) -> None:
        """End the threads and close the connections, once pending work is done."""
