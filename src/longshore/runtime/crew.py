"""The jobs a worker runs at this moment: each is started, ended early if called off, and its outcome handed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from longshore.backends.base import Backend, Outcome
from longshore.core.job import Job
from longshore.runtime.executors.contract import Executor
from longshore.runtime.first_steps import FirstSteps
from longshore.runtime.retries import Strategy
from longshore.runtime.running_job import job_of_the_caller
from longshore.runtime.runs import CalledOff, Run
from longshore.safe_logging import logger

_FORCE_SLACK = 3.0
"""Seconds after the grace in which an executor ends by force what did not end by itself."""

_log = logger("longshore.worker")


class Crew:
    """Runs jobs in tasks of the running loop; `ended` is called there with each run and its outcome, if it has one."""

    def __init__(
        self,
        executor: Executor,
        backend: Backend,
        strategies: Mapping[str, Strategy],
        grace: float,
        ended: Callable[[Run, Outcome | None], None],
    ) -> None:
        self._executor = executor
        self._backend = backend
        self._strategies = strategies
        self._patience = grace + _FORCE_SLACK
        self._tell = ended
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Run] = {}
        self._stray: set[asyncio.Task[None]] = set()
        self._first_steps = FirstSteps(self._execute)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def left_behind(self) -> int:
        """How many runs still go on that were given up."""
        return len(self._stray) + self._executor.left_behind

    def start(self, record: Job) -> bool:
        """Runs a job that was just claimed; False if an earlier run of it, whose lease was lost, has not ended yet."""
        if record.id in self._runs:
            return False
        run = Run(record)
        self._runs[record.id] = run
        if run.seconds_allowed is not None:
            if self._executor.begins_later(record):  # the time it waits for its process is not its own
                run.when_begun = lambda: self._time(run)
            else:
                self._time(run)
        self._first_steps.start(run)
        return True

    def _time(self, run: Run) -> None:
        if run.seconds_allowed is not None and run.timer is None:
            run.timer = self._loop.call_later(run.seconds_allowed, self._call_off, run, "timeout")

    async def _execute(self, run: Run, task: asyncio.Task[None]) -> None:
        run.task = task
        try:
            outcome = await run.outcome(self._executor, self._backend, self._strategies)
        except BaseException as error:  # a GeneratorExit in a future, which closes all that awaits it: still an end
            outcome = await run.failed(error, self._strategies)
        self._ended(run, outcome)

    def _ended(self, run: Run, outcome: Outcome | None) -> None:
        for timer in (run.timer, run.grace):
            if timer is not None:
                timer.cancel()
        job_id = run.record.id
        if self._runs.get(job_id) is run:
            del self._runs[job_id]
            run.seconds = monotonic() - run.began if run.began else 0.0
            self._tell(run, None if run.called_off == "lost" else outcome)

    def runs_of(self, job_ids: Iterable[str]) -> list[Run]:
        """Those of these jobs that are run here; may be asked from any thread."""
        return [run for job_id in job_ids if (run := self._runs.get(job_id)) is not None]

    def runs_where(self, chosen: Callable[[Job], bool]) -> list[Run]:
        """The runs of these jobs; may be asked from any thread."""
        return [run for run in list(self._runs.values()) if chosen(run.record)]

    def runs_the_caller(self) -> bool:
        """Whether the calling code is part of a job that is run here."""
        job = job_of_the_caller()
        return job is not None and any(run.job is job for run in self.runs_of([job.record.id]))

    def call_off(self, runs: Iterable[Run], why: CalledOff) -> None:
        """Asks these runs to end, if they have not ended."""
        for run in runs:
            if self._runs.get(run.record.id) is run:
                self._call_off(run, why)

    def call_off_soon(self, runs: Sequence[Run], why: CalledOff) -> None:
        """As above, from any thread: these very runs, as the loop may claim their jobs anew before it hears of it."""
        if runs:
            with suppress(RuntimeError):  # its loop has closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self.call_off, runs, why)

    def drop_everything(self) -> None:
        """Asks all runs to end and forgets them: they have no outcome any more."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            if run.timer is not None:
                run.timer.cancel()
            run.call_off("lost")
            self._leave_behind(run)

    def _call_off(self, run: Run, why: CalledOff) -> None:
        if run.called_off is None:
            run.call_off(why)
            run.grace = self._loop.call_later(self._patience, self._give_up, run)
        elif why == "lost":  # whatever it was called off for, its outcome is somebody else's now
            run.called_off = why

    def _give_up(self, run: Run) -> None:
        """The run did not end in time: it is settled without it, and whatever it still does counts for nothing."""
        _log.warning(
            "job %s goes on although it was called off (%s); going on without it", run.record.id, run.called_off
        )
        run.interrupt()
        self._leave_behind(run)
        self._keep_alive(self._loop.create_task(self._settle_without(run)))

    async def _settle_without(self, run: Run) -> None:
        self._ended(run, await run.without_an_answer(self._strategies))

    def _leave_behind(self, run: Run) -> None:
        """Nothing that it still says is written."""
        if run.job is not None:
            run.job.disown()
        if run.task is not None:
            self._keep_alive(run.task)

    def _keep_alive(self, task: asyncio.Task[None]) -> None:
        self._stray.add(task)  # a task nobody refers to may vanish in the midst of its work
        task.add_done_callback(self._stray.discard)
