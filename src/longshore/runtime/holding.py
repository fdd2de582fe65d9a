"""The jobs a worker holds: their leases are kept, and their runs called off when somebody takes them away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic

from longshore.backends.base import Backend
from longshore.core.job import Job
from longshore.runtime.crew import Crew
from longshore.runtime.dock import dock_of
from longshore.runtime.heartbeat import LeaseKeeper
from longshore.runtime.worker_options import WorkerOptions
from longshore.safe_logging import logger

_log = logger("longshore.worker")


class Holding:
    """A worker as its dock and its lease keeper see it; `beat` is called with every heartbeat."""

    def __init__(
        self, backend: Backend, worker: WorkerOptions, crew: Crew, beat: Callable[[], Awaitable[None]]
    ) -> None:
        self.assignee_id = worker.id
        self._backend = backend
        self._worker = worker
        self._crew = crew
        self._dock = dock_of(backend)
        self._keeper = LeaseKeeper(
            backend,
            worker.lock_seconds,
            worker.renew_seconds,
            lost=self._leases_lost,
            cancelled=self.jobs_cancelled,
            beat=beat,
        )

    def begin(self) -> None:
        """From now on leases are kept, and swept if the worker wants it."""
        self._dock.joined(self, self._backend, sweep=self._worker.sweep)
        self._keeper.start()

    def leave(self) -> None:
        """Whatever is still held is nothing to others in this process any more."""
        self._dock.left(self)

    def abandon(self) -> None:
        """Keeps no lease any longer; waits for nothing."""
        self._keeper.abandon()

    async def stop(self) -> None:
        """Keeps no lease any longer; returns when no renewal is under way."""
        await self._keeper.stop()

    def look_for_cancellations(self) -> None:
        """The store has changed: somebody may have been cancelled."""
        self._keeper.look_now()

    def take(self, jobs: Sequence[Job], asked_at: float) -> bool:
        """Holds jobs that were claimed by a call that began at `asked_at`; False if its answer came too late."""
        self._dock.holds(self, jobs)
        in_time = monotonic() - asked_at < self._worker.lock_seconds
        if in_time:
            self._keeper.keep(jobs, asked_at)
        return in_time

    def let_go(self, job_ids: Sequence[str]) -> None:
        """They have ended, or are lost."""
        self._keeper.drop(job_ids)
        self._dock.let_go(self, job_ids)

    def not_held(self, job_ids: Iterable[str]) -> set[str]:
        """Which of these jobs it does not hold."""
        return set(self._dock.not_held(self, job_ids))

    # -- for the dock and the lease keeper, from any thread

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Somebody else ended them: their runs end without an outcome."""
        self._crew.call_off_soon(self._crew.runs_of(job_ids), "lost")

    def jobs_disowned(self, job_ids: list[str]) -> None:
        """As above."""
        self.jobs_freed(job_ids)

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Their runs are called off."""
        self._crew.call_off_soon(self._crew.runs_of(job_ids), "cancelled")

    def _leases_lost(self, job_ids: list[str]) -> None:
        runs = self._crew.runs_of(job_ids)  # what has ended by itself meanwhile is no loss
        if runs:
            _log.warning("leases lost, their jobs are dropped: %s", ", ".join(run.record.id for run in runs[:10]))
            self._crew.call_off_soon(runs, "lost")
