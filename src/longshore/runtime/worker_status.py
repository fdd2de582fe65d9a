"""The worker's published status, heartbeat rows and log lines."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from time import monotonic

from longshore.backends.base import Backend, Outcome, SettleReport, WorkerInfo
from longshore.core.clock import machine_time
from longshore.core.job import DEFAULT_QUEUE, Job
from longshore.core.status import JobStatus
from longshore.runtime.executors.base import Executor
from longshore.runtime.job_tasks import Run
from longshore.safe_logging import logger

_DRAINED_AFTER = 1.0
"""Seconds without a job after which a worker that has had some says that it is drained."""
_NEVER = float("inf")

_log = logger("longshore.worker")


@dataclass(slots=True)
class StatusReporter:
    """Writes for people only: no job depends on it."""

    backend: Backend
    worker_id: str
    queue: str
    queues: Sequence[str]
    tags: Sequence[str]
    concurrency: int
    executor: Executor | None = None
    """Sets the types that it claims; None means all."""
    _idle_since: float = field(default=_NEVER, init=False)
    _started_at: datetime = field(default_factory=machine_time, init=False)
    """By this machine's clock, as it is for people: to ask the store would put off the first heartbeat."""

    async def has_trouble(self, error: str) -> bool:
        """Writes worker.error; False if that was not possible."""
        with suppress(Exception):  # the store that failed may fail again
            await self.backend.record_worker_event(
                "worker.error", self.worker_id, queue=self.queue, detail={"error": error}
            )
            return True
        return False

    def is_busy(self) -> None:
        """It has had a job just now."""
        self._idle_since = monotonic()

    async def is_idle(self) -> None:
        """Writes worker.drained, if it can, when its last job was some time ago; once."""
        if monotonic() - self._idle_since > _DRAINED_AFTER:
            self._idle_since = _NEVER
            with suppress(Exception):
                await self.backend.record_worker_event("worker.drained", self.worker_id, queue=self.queue)

    async def is_here(self, running: int, state: str) -> None:
        """The heartbeat that `list_workers` shows."""
        types = None if self.executor is None else self.executor.types
        await self.backend.heartbeat_worker(
            WorkerInfo(
                id=self.worker_id,
                queues=tuple(self.queues),
                tags=tuple(self.tags),
                types=None if types is None else tuple(types),
                concurrency=self.concurrency,
                running=running,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=version("longshore"),
                state=state,
                started_at=self._started_at,
            )
        )


def log_endings(outcomes: Sequence[Outcome], report: SettleReport, runs: dict[str, Run]) -> None:
    """Logs a line for each settled job: INFO, WARNING for a retry, ERROR for a final failure.

    Logged jobs are removed from `runs`.
    """
    for outcome in outcomes if runs else ():
        run = runs.pop(outcome.job_id, None)
        status = report.settled.get(outcome.job_id)
        if run is not None and status is not None:
            _log_ending(run, outcome, status)
    for refusal in report.refused.values():
        _log.warning("an outcome was refused, it is somebody else's to report: %s", refusal)


def _log_ending(run: Run, outcome: Outcome, status: JobStatus) -> None:
    job, delay = run.record, outcome.retry_at
    later = f"{delay:g} s" if isinstance(delay, int | float) else "" if delay is None else str(delay)
    level, error = logging.INFO, None
    if outcome.verb == "complete":
        what = "completed in"
    elif status is JobStatus.DEAD:
        what, level, error = "failed for good after", logging.ERROR, run.error
    elif outcome.verb in ("fail", "crash") and not status.final:
        what, level = ("failed after" if outcome.verb == "fail" else "crashed after"), logging.WARNING
    elif outcome.verb == "release":
        what = f"released for {later} after" if later else "released after"
    else:
        what = "stopped after"
    if not _log.isEnabledFor(level):
        return
    again = f" and is tried again{' in ' + later if later else ''}" if level == logging.WARNING else ""
    text = "" if outcome.verb == "complete" else outcome.error.partition("\n")[0] or outcome.verb
    _log.log(
        level,
        "%s[%s] %s %d ms%s%s%s",
        job.type,
        job.id,
        what,
        round(run.seconds * 1000),
        again,
        _where(job),
        f": {text}" if text else "",
        exc_info=error,
        extra={
            "job_id": job.id,
            "job_type": job.type,
            "queue": str(job.queue),
            "execution": job.executions,
            "seconds": round(run.seconds, 6),
        },
    )


def _where(job: Job) -> str:
    """The queue if it is not the default one, and the attempt if there may be several."""
    told = [] if job.queue == DEFAULT_QUEUE else [f"queue {job.queue}"]
    if job.max_attempts != 1:
        of = f" of {job.max_attempts}" if job.max_attempts else ""
        told.append(f"attempt {job.retry_count + 1}{of}")
    return f" ({', '.join(told)})" if told else ""
