"""Runs `async def` functions as tasks of the worker's event loop."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any

from longshore.backends.base import Backend
from longshore.core.job import Job
from longshore.runtime.executors.base import Executor
from longshore.runtime.running_job import AsyncReporter, RunningJob, become_current


class LoopExecutor(Executor):
    """Awaits the processor; a cancellation reaches it as CancelledError at its next `await`."""

    def __init__(self, process: Callable[[RunningJob], Awaitable[Any]]) -> None:
        self._process = process
        self._reporter: AsyncReporter | None = None

    def take(self, record: Job, backend: Backend) -> RunningJob:
        """A job whose notes are awaited."""
        if self._reporter is None or self._reporter.backend is not backend:
            self._reporter = AsyncReporter(backend)
        return RunningJob(record, self._reporter)

    async def run(self, job: RunningJob) -> Any:
        """In the calling task, whose context is its own."""
        become_current(job)
        try:
            value = await self._process(job)
        except CancelledError:
            if not job.said_complete:
                raise
            value = None
        if value is None:
            job.heed()  # it could not miss the CancelledError that was raised in it
        return job.returned(value)
