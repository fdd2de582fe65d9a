"""What every executor promises: it runs one job once, and stops it when the awaiting task is cancelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from longshore.backends.contract import Backend
from longshore.core.job import Job
from longshore.runtime.running_job import RunningJob

CANCEL_GRACE = 5.0
"""Seconds a job that is called off may take to end by itself, before it is ended by force."""


class Executor(ABC):
    """Runs processors. A cancellation, a timeout and a lost lease all reach it as CancelledError in `run`."""

    @abstractmethod
    def take(self, record: Job, backend: Backend) -> RunningJob:
        """The job as its processor will see it."""

    @abstractmethod
    async def run(self, job: RunningJob) -> Any:
        """Runs the job once: returns the processor's value, or raises what it raised.

        Cancelled, it stops the work, by force after the grace; a value that comes within the grace is returned, and
        whoever cancelled decides whether it still counts.
        """

    def begins_later(self, record: Job) -> bool:  # noqa: ARG002  # for executors that have to wait for room
        """Whether a job may wait before it begins; then the executor calls `job.begin()` when it does."""
        return False

    async def close(self) -> None:
        """Lets go of threads and processes; nothing runs any more."""
        return
