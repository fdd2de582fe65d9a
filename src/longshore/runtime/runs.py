"""One execution of one job: how it ended, and which outcome that is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from longshore.backends.contract import Outcome
from longshore.core.errors import Fatal, InvalidArgument, Snooze
from longshore.core.payload import check_json
from longshore.core.policy import Ending
from longshore.runtime.executors.contract import Executor
from longshore.runtime.failures import ProcessDied, describe
from longshore.runtime.retries import Strategy, what_follows
from longshore.runtime.running_job import RunningJob

CalledOff = Literal["cancelled", "timeout", "lost", "stopping"]
"""Why a run should end early. A lost one has no outcome: it is somebody else's to report."""


class Run:
    """A job that is being run, by one task of the worker's loop."""

    __slots__ = ("called_off", "grace", "job", "task", "timer")

    def __init__(self, job: RunningJob) -> None:
        self.job = job
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.grace: asyncio.TimerHandle | None = None
        self.called_off: CalledOff | None = None

    async def outcome(self, executor: Executor, strategies: Mapping[str, Strategy]) -> Outcome | None:
        """Runs the job once and tells how it ended; None if nobody may be told."""
        try:
            value = await executor.run(self.job)
        except BaseException as error:  # whatever it is, SystemExit and all, it is this job's end and not the worker's
            return await self._failed(error, strategies)
        if self.called_off == "lost":
            return None
        if self.called_off == "timeout":  # it came too late to count
            return await self.timed_out(strategies)
        record = self.job.record
        if value is None:
            return Outcome(record.id, record.lease)
        try:
            return Outcome(record.id, record.lease, result=check_json("result", value))
        except InvalidArgument as refusal:
            refusal.add_note("the job did its work, but what it returned cannot be stored")
            return await self._failed(refusal, strategies)

    def ended_early(self) -> Outcome | None:
        """The outcome of a run that was called off and gave no answer of its own."""
        record = self.job.record
        if self.called_off == "cancelled":
            return Outcome(record.id, record.lease, "stop", error="cancelled")
        if self.called_off == "stopping":
            return Outcome(record.id, record.lease, "release", error="the worker stopped before the job had ended")
        return None

    async def _failed(self, error: BaseException, strategies: Mapping[str, Strategy]) -> Outcome | None:
        record = self.job.record
        if self.called_off == "lost":
            return None
        stopped = isinstance(error, asyncio.CancelledError)
        if stopped and self.called_off in ("cancelled", "stopping"):
            return self.ended_early()
        if self.called_off == "timeout":
            return await self.timed_out(strategies)
        if isinstance(error, Snooze):
            return Outcome(record.id, record.lease, "release", error=error.reason, retry_at=error.delay)
        if isinstance(error, ProcessDied):
            return Outcome(record.id, record.lease, "crash", error=str(error))
        text = "the processor cancelled itself" if stopped else describe(error)
        return await self._retried_or_buried(Ending("failure", text, isinstance(error, Fatal)), error, strategies)

    async def timed_out(self, strategies: Mapping[str, Strategy]) -> Outcome:
        """The outcome of a run that took longer than the job allows: a failure like any other."""
        limit = self.seconds_allowed
        text = f"TimeoutError: the job took longer than its timeout of {limit:g} seconds"
        return await self._retried_or_buried(Ending("timeout", text), TimeoutError(text), strategies)

    async def _retried_or_buried(
        self, ending: Ending, error: BaseException, strategies: Mapping[str, Strategy]
    ) -> Outcome:
        record = self.job.record
        decision = await what_follows(record, ending, error, strategies)
        retry_at = decision.delay if decision.verb == "fail" and decision.delay else None
        return Outcome(record.id, record.lease, decision.verb, error=ending.error, retry_at=retry_at)

    @property
    def seconds_allowed(self) -> float | None:
        """How long the execution may take."""
        timeout: Any = self.job.record.timeout  # a timedelta in every record that was stored
        return None if timeout is None else timeout.total_seconds()
