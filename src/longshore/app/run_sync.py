"""Runs coroutines to their end for code without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def at_once(work: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine that never waits, because whatever it awaits has blocked already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise RuntimeError("a blocking call inside an event loop would stop it; use the same verb with await")
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a coroutine's value by the language's own rule
    work.close()
    raise RuntimeError("something was awaited here that must not be")


async def on_this_loop(answer: Awaitable[Any]) -> Any:
    """Awaits it where it was asked for."""
    return await answer


async def blocking(answer: Awaitable[Any]) -> Any:
    """Waits for it with the thread blocked, so that the caller's coroutine never waits.

    On a loop of its own in this very thread: it is the user's code, which may take its time.
    """
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # leaves the thread's own loop, if any, alone
        return runner.run(on_this_loop(answer))
