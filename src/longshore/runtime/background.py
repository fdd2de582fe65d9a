"""The one event loop of this process that runs no user's code: heartbeats, sweeps and blocking calls live on it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_process = 0


def submit(work: Coroutine[Any, Any, R]) -> Future[R]:
    """Starts the work there; the future tells its outcome to any thread."""
    return asyncio.run_coroutine_threadsafe(work, _running_loop())


def run(work: Coroutine[Any, Any, R]) -> R:
    """Waits for the work in the calling thread, which must not be one that runs an event loop."""
    begun = begin(work)
    try:
        return begun.result()
    except BaseException:  # perhaps one raised into this thread, by a signal, say: then the work is called off
        begun.cancel()
        raise


def begin(work: Coroutine[Any, Any, R]) -> Future[R]:
    """Starts work whose outcome the calling thread will wait for: not one that runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return submit(work)
    work.close()
    raise RuntimeError("a blocking call inside an event loop would stop it; use the same verb with await")


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop, _process
    with _lock:
        if _loop is None or _process != os.getpid():  # a fork leaves the thread behind
            _loop, _process = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_serve, args=(_loop,), name="longshore-background", daemon=True).start()
        return _loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
