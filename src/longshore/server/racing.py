"""Waits of which the first to end decides: the others are ended with it, and nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


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
