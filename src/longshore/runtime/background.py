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
    """Starts the work on the background loop; any thread may wait for the future."""
    global _loop, _process
    with _lock:
        if _loop is None or _process != os.getpid():  # a fork leaves the thread behind
            _loop, _process = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_serve, args=(_loop,), name="longshore-background", daemon=True).start()
        loop = _loop
    return asyncio.run_coroutine_threadsafe(work, loop)


def run(work: Coroutine[Any, Any, R]) -> R:
    """Runs the work on the background loop and blocks the calling thread, which must not run an event loop."""
    begun = begin(work)
    try:
        return begun.result()
    except BaseException:  # perhaps raised into this thread by a signal: then the work is cancelled, too
        begun.cancel()
        raise


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """The same method for code without an event loop: `close_sync = blocking(close)`."""

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run(method(self, *args, **kwargs))

    waiting.__doc__ = f"Like `{method.__name__}`, for code without an event loop."
    return waiting


def begin(work: Coroutine[Any, Any, R]) -> Future[R]:
    """Starts work that the calling thread will wait for; refuses a thread that runs an event loop."""
    refuse_in_event_loop(work)
    return submit(work)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that the calling thread runs, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def refuse_in_event_loop(work: Coroutine[Any, Any, Any]) -> None:
    """Raises RuntimeError if the calling thread runs an event loop, which waiting for the work would stop."""
    if running_loop() is not None:
        work.close()
        raise RuntimeError("a blocking call inside an event loop would stop it; use the same verb with await")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
