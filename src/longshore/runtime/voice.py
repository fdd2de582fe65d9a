"""What a worker tells of itself and its jobs: that it is there, has trouble or nothing to do; what did not go well."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

from longshore.backends.contract import Backend, Outcome, SettleReport, WorkerInfo
from longshore.core.lifecycle import JobStatus

_log = logging.getLogger("longshore.worker")


@dataclass(frozen=True, slots=True)
class Voice:
    """Writes for people only: no job depends on it."""

    backend: Backend
    worker_id: str
    queue: str
    queues: Sequence[str]
    tags: Sequence[str]
    concurrency: int

    async def has_trouble(self, error: str) -> bool:
        """Writes worker.error; False if that was not possible."""
        with suppress(Exception):  # the store that failed may fail again
            await self.backend.record_worker_event(
                "worker.error", self.worker_id, queue=self.queue, detail={"error": error}
            )
            return True
        return False

    async def is_drained(self) -> None:
        """Writes worker.drained, if it can."""
        with suppress(Exception):
            await self.backend.record_worker_event("worker.drained", self.worker_id, queue=self.queue)

    async def is_here(self, running: int, state: str) -> None:
        """The heartbeat that `list_workers` shows."""
        await self.backend.heartbeat_worker(
            WorkerInfo(
                id=self.worker_id,
                queues=tuple(self.queues),
                tags=tuple(self.tags),
                concurrency=self.concurrency,
                running=running,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=version("longshore"),
                state=state,
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
