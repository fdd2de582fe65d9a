"""The background thread of this process: an event loop for heartbeats, sweeps and blocking calls, without user code."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_process = 0


def submit(work: Coroutine[Any, Any, R]) -> Future[R]:
    """Start the coroutine on the background loop; any thread may wait for the future."""
    global _loop, _process
    with _lock:
        if _loop is None or _process != os.getpid():  # a forked process has no copy of the thread
            _loop, _process = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_serve, args=(_loop,), name="longshore-background", daemon=True).start()
        loop = _loop
    return asyncio.run_coroutine_threadsafe(work, loop)


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run the coroutine on the background loop and block the calling thread, which must not run an event loop."""
    begun = begin(work)
    try:
        return begun.result()
    except BaseException:  # a signal handler may raise here: cancel the work too
        begun.cancel()
        raise


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """Return the method for code without an event loop: `close_sync = blocking(close)`."""

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run(method(self, *args, **kwargs))

    waiting.__doc__ = f"Like `{method.__name__}`, for code without an event loop."
    return waiting


def begin(work: Coroutine[Any, Any, R]) -> Future[R]:
    """Start work that the calling thread will wait for; refuse a thread that runs an event loop."""
    refuse_in_event_loop(work)
    return submit(work)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that the calling thread runs, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def refuse_in_event_loop(work: Coroutine[Any, Any, Any]) -> None:
    """Raise RuntimeError if the calling thread runs an event loop."""
    if running_loop() is not None:
        work.close()
        raise RuntimeError("this call would block the running event loop; await the async method instead")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
