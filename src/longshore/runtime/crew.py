"""The jobs a worker runs at this moment: each is started, ended early if called off, and its outcome handed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from longshore.backends.contract import Backend, Outcome
from longshore.core.job import Job
from longshore.runtime.executors.contract import Executor
from longshore.runtime.retries import Strategy
from longshore.runtime.runs import CalledOff, Run

_FORCE_SLACK = 3.0
"""Seconds after the grace in which an executor ends by force what did not end by itself."""

_log = logging.getLogger("longshore.worker")


class Crew:
    """Runs jobs in tasks of the running loop; `ended` is called there with each job's id and outcome, if it has one."""

    def __init__(
        self,
        executor: Executor,
        backend: Backend,
        strategies: Mapping[str, Strategy],
        grace: float,
        ended: Callable[[str, Outcome | None], None],
    ) -> None:
        self._executor = executor
        self._backend = backend
        self._strategies = strategies
        self._patience = grace + _FORCE_SLACK
        self._tell = ended
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Run] = {}
        self._stray: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._runs)

    def start(self, record: Job) -> None:
        """Runs a job that was just claimed."""
        run = Run(self._executor.take(record, self._backend))
        self._runs[record.id] = run
        run.task = self._loop.create_task(self._execute(run))
        seconds = run.seconds_allowed
        if seconds is not None:
            run.timer = self._loop.call_later(seconds, self._call_off, run, "timeout")

    async def _execute(self, run: Run) -> None:
        self._ended(run, await run.outcome(self._executor, self._strategies))

    def _ended(self, run: Run, outcome: Outcome | None) -> None:
        for timer in (run.timer, run.grace):
            if timer is not None:
                timer.cancel()
        job_id = run.job.record.id
        if self._runs.get(job_id) is run:
            del self._runs[job_id]
            self._tell(job_id, outcome)

    def call_off(self, job_ids: Iterable[str], why: CalledOff) -> None:
        """Asks these runs to end, if they are here."""
        for job_id in job_ids:
            run = self._runs.get(job_id)
            if run is not None:
                self._call_off(run, why)

    def call_off_where(self, chosen: Callable[[Job], bool], why: CalledOff) -> None:
        """Asks the runs of these jobs to end."""
        self.call_off([job_id for job_id, run in self._runs.items() if chosen(run.job.record)], why)

    def drop_everything(self) -> None:
        """Asks all runs to end and forgets them: they have no outcome any more."""
        for run in self._runs.values():
            run.called_off = "lost"
            run.job.request_cancel()
            if run.task is not None:
                run.task.cancel()
                self._leave_behind(run.task)
        self._runs.clear()

    def _call_off(self, run: Run, why: CalledOff) -> None:
        if run.called_off is None:
            run.called_off = why
            run.job.request_cancel()
            if run.task is not None:
                run.task.cancel()
            run.grace = self._loop.call_later(self._patience, self._give_up, run)
        elif why == "lost":  # whatever it was called off for, its outcome is somebody else's now
            run.called_off = why

    def _give_up(self, run: Run) -> None:
        """The run did not end in time: it is settled without it, and whatever it still does counts for nothing."""
        _log.warning("job %s goes on although it was called off (%s); going on without it", run.job.id, run.called_off)
        if run.task is not None:
            run.task.cancel()
            self._leave_behind(run.task)
        self._leave_behind(self._loop.create_task(self._settle_without(run)))

    async def _settle_without(self, run: Run) -> None:
        timed_out = run.called_off == "timeout"
        self._ended(run, await run.timed_out(self._strategies) if timed_out else run.ended_early())

    def _leave_behind(self, task: asyncio.Task[None]) -> None:
        self._stray.add(task)  # a task nobody refers to may vanish in the midst of its work
        task.add_done_callback(self._stray.discard)
