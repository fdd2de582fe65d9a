"""What a worker tells of itself and its jobs: that it is there, has trouble or nothing to do; what did not go well."""

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

from longshore.backends.contract import Backend, Outcome, SettleReport, WorkerInfo
from longshore.core.clock import machine_time
from longshore.core.lifecycle import JobStatus
from longshore.runtime.executors.contract import Executor

_DRAINED_AFTER = 1.0
"""Seconds without a job after which a worker that has had some says that it is drained."""
_NEVER = float("inf")

_log = logging.getLogger("longshore.worker")


@dataclass(slots=True)
class Voice:
    """Writes for people only: no job depends on it."""

    backend: Backend
    worker_id: str
    queue: str
    queues: Sequence[str]
    tags: Sequence[str]
    concurrency: int
    executor: Executor | None = None
    """Says which types it claims; None is all."""
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


def log_endings(outcomes: Sequence[Outcome], report: SettleReport) -> None:
    """A line for each job that did not simply complete: a warning if it is over, or nobody may say how it ended."""
    for outcome in outcomes:
        if outcome.verb == "complete":
            continue
        status = report.settled.get(outcome.job_id)
        if status is not None:
            level = logging.WARNING if status is JobStatus.DEAD else logging.INFO
            _log.log(
                level, "job %s is %s: %s", outcome.job_id, status, outcome.error.partition("\n")[0] or outcome.verb
            )
    for refusal in report.refused.values():
        _log.warning("an outcome was refused, it is somebody else's to report: %s", refusal)
