"""What a worker tells of itself: that it is there, that it has trouble, that it has nothing to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

from longshore.backends.contract import Backend, WorkerInfo


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
