"""Runs `async def` functions as tasks of the worker's event loop."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any

from longshore.runtime.executors.base import Executor
from longshore.runtime.running_job import CURRENT, RunningJob


async def run_on_loop(process: Callable[[RunningJob], Awaitable[Any]], job: RunningJob) -> Any:
    """Awaits the processor in the calling task, whose context is the job's own.

    A cancellation reaches the processor as CancelledError at its next `await`.
    """
    CURRENT.set(job)
    try:
        value = await process(job)
    except CancelledError:
        if not job.said_complete:
            raise
        value = None
    if value is None:
        job.heed()  # a CancelledError that was raised in it has been noticed
    return job.returned(value)


class LoopExecutor(Executor):
    """Awaits the processor of a worker that was given an `async def`."""

    def __init__(self, process: Callable[[RunningJob], Awaitable[Any]]) -> None:
        self._process = process

    async def run(self, job: RunningJob) -> Any:
        """Runs the job in the calling task."""
        return await run_on_loop(self._process, job)
