"""Runs expensive work in a few threads, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

AT_ONCE = 2
"""Each takes its turn at the interpreter, and so much memory as what it works on: one may be very large, and another
goes on meanwhile."""
_threads = ThreadPoolExecutor(AT_ONCE, "longshore-large")


async def beside_the_loop(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What the work gives back; it waits until one of the threads is free."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args, **kwargs))
