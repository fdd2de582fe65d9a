"""A thread that is kept for one call after another, and what each of them came to."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

Answer = tuple[Any, BaseException | None]
"""What was returned, or what was raised: as it is, for a future would change some exceptions on their way."""


class Hand:
    """One thread, for one call after another."""

    def __init__(self) -> None:
        self.interrupted = False
        """Whether an exception is under way to its thread, and may reach it in a later call: it gets none."""
        self._dismissed = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="longshore-processor", daemon=True)
        self._thread.start()

    def begin(self, context: contextvars.Context, call: Callable[..., Any], *args: Any) -> asyncio.Future[Answer]:
        """Calls it in the thread, within the context; what it returned or raised arrives in the running loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def work() -> None:
            try:
                told: Answer = context.run(call, *args), None
            except BaseException as error:  # SystemExit, too, is an answer, and the thread goes on
                told = None, error
            with suppress(RuntimeError):  # its loop has closed: nobody is left to tell
                loop.call_soon_threadsafe(answer.set_result, told)

        self._calls.put(work)
        return answer

    def interrupt(self) -> None:
        """Raises CancelledError in the thread, at its next step in Python code."""
        self.interrupted = True
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(asyncio.CancelledError))

    def dismiss(self) -> None:
        """The thread ends after its present call."""
        self._dismissed = True
        self._calls.put(None)

    def _work(self) -> None:
        while not self._dismissed:
            with suppress(asyncio.CancelledError):  # an interruption that came too late: its call had ended already
                work = self._calls.get()
                if work is not None:
                    work()
