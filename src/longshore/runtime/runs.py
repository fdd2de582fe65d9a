"""One execution of one job: how it ended, and which outcome that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Literal

from longshore.backends.base import Backend, Outcome, completed
from longshore.core.errors import Fatal, InvalidArgument, Snooze
from longshore.core.job import Job
from longshore.core.retry import Ending
from longshore.core.times import Moment, check_moment
from longshore.core.validation import check_json, clean_text
from longshore.runtime.executors.contract import Executor
from longshore.runtime.failures import ProcessDied, describe
from longshore.runtime.retries import Strategy, what_follows
from longshore.runtime.running_job import RunningJob

CalledOff = Literal["cancelled", "timeout", "lost", "stopping"]
"""Why a run should end early. A lost one has no outcome: it is somebody else's to report."""


class Run:
    """A job that is being run, by one task of the worker's loop."""

    __slots__ = (
        "began",
        "called_off",
        "error",
        "grace",
        "job",
        "record",
        "seconds",
        "task",
        "timer",
        "under_way",
        "when_begun",
    )

    def __init__(self, record: Job) -> None:
        self.record = record
        self.job: RunningJob | None = None
        self.under_way = False
        """Whether the executor has it: before and after there is nothing to be interrupted."""
        self.task: asyncio.Task[None] | None = None
        self.when_begun: Callable[[], None] | None = None
        """To be called by the executor, if it lets the job wait."""
        self.timer: asyncio.TimerHandle | None = None
        self.grace: asyncio.TimerHandle | None = None
        self.called_off: CalledOff | None = None
        self.began = 0.0
        self.seconds = 0.0
        """How long it ran, after it has ended."""
        self.error: BaseException | None = None
        """The exception that it failed with."""

    def begins(self) -> None:
        """The processor starts now, possibly after waiting for its process."""
        self.began = monotonic()
        if self.when_begun is not None:
            self.when_begun()

    def call_off(self, why: CalledOff) -> None:
        """Tells the processor that it should end."""
        self.called_off = why
        if self.job is not None:
            self.job.request_cancel()
        self.interrupt()

    def interrupt(self) -> None:
        """Reaches the executor as CancelledError, if it has the job."""
        if self.under_way and self.task is not None:
            self.task.cancel()

    async def outcome(self, executor: Executor, backend: Backend, strategies: Mapping[str, Strategy]) -> Outcome | None:
        """Runs the job once and tells how it ended; None if nobody may be told."""
        if self.called_off is not None:  # before it began
            return await self.without_an_answer(strategies)
        try:
            self.job = executor.take(self.record, backend)
            self.job.call_when_begun(self.begins)
            self.began = monotonic()
            self.under_way = True
            value = await executor.run(self.job)
        except BaseException as error:  # whatever it is, SystemExit and all, it is this job's end and not the worker's
            return await self.failed(error, strategies)
        self.under_way = False
        if self.called_off == "timeout" or self._is_late:  # it came too late to count
            self.called_off = "timeout"
            return await self.without_an_answer(strategies)
        if self._stopped_short(value):
            return await self.without_an_answer(strategies)
        if value is None:
            return completed(self.record.id, self.record.lease)
        try:
            return completed(self.record.id, self.record.lease, check_json("result", value))
        except Exception as refusal:  # a value of one's own class may raise anything when it is looked at
            if isinstance(refusal, InvalidArgument):
                refusal.__traceback__ = None  # it tells of nothing but our own looking
            refusal.add_note("the job did its work, but what it returned cannot be stored")
            return await self.failed(refusal, strategies)

    def _stopped_short(self, value: Any) -> bool:
        """Whether the processor returned because it should end, not because its work was done."""
        job = self.job
        if self.called_off is None or job is None or job.said_complete:
            return False
        return job.saw_cancel or (self.called_off == "stopping" and value is None and job.heeded)

    async def without_an_answer(self, strategies: Mapping[str, Strategy]) -> Outcome | None:
        """The outcome of a run that was called off and gave no answer of its own."""
        if self.called_off == "timeout":
            return await self._timed_out(strategies)
        if self.called_off == "cancelled":
            return Outcome(self.record.id, self.record.lease, "stop", error="cancelled")
        if self.called_off == "stopping":
            return self._given_back("the worker stopped before the job had ended")
        return None

    async def failed(self, error: BaseException, strategies: Mapping[str, Strategy]) -> Outcome | None:
        """The outcome of a run that ended with an exception."""
        self.under_way = False
        stopped = isinstance(error, asyncio.CancelledError)
        if self.called_off in ("lost", "timeout") or (stopped and self.called_off is not None):
            return await self.without_an_answer(strategies)
        if isinstance(error, Snooze):
            try:
                check_moment("delay", error.delay, 0)
                return self._given_back(clean_text("reason", error.reason), error.delay)
            except InvalidArgument as refusal:  # nobody can say when it should run again: a failure like any other
                error = refusal
        if self.called_off == "stopping":  # whatever it is, it would not have come without our asking
            return await self.without_an_answer(strategies)
        if isinstance(error, ProcessDied):
            self.error = error
            return Outcome(self.record.id, self.record.lease, "crash", error=str(error))
        text = "CancelledError: the processor cancelled itself" if stopped else describe(error)
        return await self._retried_or_buried(Ending("failure", text, isinstance(error, Fatal)), error, strategies)

    def _given_back(self, reason: str, delay: Moment | None = None) -> Outcome:
        return Outcome(self.record.id, self.record.lease, "release", error=reason, retry_at=delay)

    async def _timed_out(self, strategies: Mapping[str, Strategy]) -> Outcome:
        text = f"TimeoutError: the job took longer than its timeout of {self.seconds_allowed:g} seconds"
        return await self._retried_or_buried(Ending("timeout", text), TimeoutError(text), strategies)

    async def _retried_or_buried(
        self, ending: Ending, error: BaseException, strategies: Mapping[str, Strategy]
    ) -> Outcome:
        self.error = error
        decision = await what_follows(self.record, ending, error, strategies)
        retry_at = decision.delay if decision.verb == "fail" and decision.delay else None
        return Outcome(self.record.id, self.record.lease, decision.verb, error=ending.error, retry_at=retry_at)

    @property
    def seconds_allowed(self) -> float | None:
        """How long the execution may take."""
        timeout: Any = self.record.timeout  # a timedelta in every record that was stored
        return None if timeout is None else timeout.total_seconds()

    @property
    def _is_late(self) -> bool:
        """Whether its time was over, though the loop was too busy to say so."""
        return (
            self.timer is not None
            and self.called_off is None
            and self.timer.when() <= asyncio.get_running_loop().time()
        )
