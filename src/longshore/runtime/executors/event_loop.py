"""Runs `async def` functions as tasks of the worker's event loop."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any

from longshore.runtime.executors.base import Executor
from longshore.runtime.running_job import CURRENT, RunningJob


async def run_on_loop(process: Callable[[RunningJob], Awaitable[Any]], job: RunningJob) -> Any:
    """Await the processor in the calling task, which has the job's context.

    A cancellation reaches the processor as CancelledError at its next `await`.
    """
    CURRENT.set(job)
    try:
        value = await process(job)
    except CancelledError:
        if not job.completed_explicitly:
            raise
        value = None
    if value is None:
        job.notice_cancel()  # the processor has seen the CancelledError
    return job.returned(value)


class LoopExecutor(Executor):
    """Runs the jobs of a worker whose processor is an `async def`."""

    def __init__(self, process: Callable[[RunningJob], Awaitable[Any]]) -> None:
        self._process = process

    async def run(self, job: RunningJob) -> Any:
        """Run the job in the calling task."""
        return await run_on_loop(self._process, job)
