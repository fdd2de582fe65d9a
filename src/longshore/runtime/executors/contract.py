"""What every executor promises: it runs one job once, and stops it when the awaiting task is cancelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic
from typing import Any

from longshore.backends.base import Backend
from longshore.core.errors import Snooze
from longshore.core.job import Job
from longshore.runtime.running_job import RunningJob
from longshore.safe_logging import logger

CANCEL_GRACE = 5.0
"""Seconds a job that is called off may take to end by itself, before it is ended by force."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0

_log = logger("longshore.worker")


class CannotStart(Snooze):
    """Not the job but this worker is at fault: no thread or process is to be had, or the job's module is not.

    The job goes back uncharged, so that a sick machine does not bury what others could run.
    """


class Pauses:
    """How long jobs that could not be started stay away: each time longer, until one is started again."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until = 0.0

    def after(self, reason: str) -> CannotStart:
        """The error to raise. Many jobs that fail at the same time are one failure."""
        if monotonic() >= self._until:
            self._seconds = min(max(_FIRST_PAUSE, 2 * self._seconds), _LONGEST_PAUSE)
            self._until = monotonic() + self._seconds
            _log.error("jobs cannot be started here and go back for %g seconds: %s", self._seconds, reason)
        return CannotStart(self._seconds, f"this worker cannot run it now: {reason}")

    def end(self) -> None:
        """A job was started."""
        self._seconds = self._until = 0.0


class Executor(ABC):
    """Runs processors. A cancellation, a timeout and a lost lease all reach it as CancelledError in `run`."""

    _closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed, as it is with the worker it was given to: then it runs nothing any more."""
        return self._closed

    @property
    def left_behind(self) -> int:
        """How many jobs that were called off still go on, as nothing could end them."""
        return 0

    @property
    def types(self) -> Sequence[str] | None:
        """The job types that it can run, which its worker claims; None means all."""
        return None

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
