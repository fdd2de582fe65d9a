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
    """Refuses calls after `close`, and calls from a process that forked. A backend says what `close` releases."""

    _signal: ChangeSignal

    def __init__(self) -> None:
        self._closed = False
        self._process: int | None = None
        """Whose it is: that of its first use, for only then are there threads and connections to be left behind."""
        self._releasing = threading.Lock()
        self._released = False

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise QueueClosed("this backend was closed; open a new one with connect(url)")
        if self._process is None:
            self._process = os.getpid()
        if os.getpid() != self._process:
            raise BackendUnavailable(
                "this backend was used before a fork, and its threads and connections stayed behind; "
                "call connect(url) anew"
            )

    async def _in_thread(self, threads: Executor, work: Callable[..., R], *args: Any) -> R:
        """Runs the work in one of these threads."""
        self._refuse_if_closed()
        try:
            working = asyncio.get_running_loop().run_in_executor(threads, work, *args)
        except RuntimeError:  # the threads were ended between the two lines
            self._refuse_if_closed()
            raise
        return await working

    async def close(self) -> None:
        self._closed = True
        if self._process not in (None, os.getpid()):  # threads, locks and connections are of the process that forked
            return
        self._signal.notify()
        released: Future[None] = Future()
        released.set_running_or_notify_cancel()
        # not in the loop's own threads, which may be busy for as long as users like
        threading.Thread(target=self._release_and_tell, args=(released,), name="longshore-closing").start()
        await asyncio.wrap_future(released)

    def _release_and_tell(self, released: Future[None]) -> None:
        try:
            self._release()
        except BaseException as error:
            released.set_exception(error)
        else:
            released.set_result(None)

    def _release(self) -> None:
        with self._releasing:
            if not self._released:
                self._let_go()
            self._released = True

    @abstractmethod
    def _let_go(self) -> None:
        """Ends its threads and closes its connections, once what was handed in is done."""
