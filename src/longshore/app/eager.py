"""Eager mode, for users' tests: a task is run where it is enqueued, and its handle has the result already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from longshore.app.at_once import at_once, blocking, on_this_loop
from longshore.app.handles import JobHandle
from longshore.app.middleware import Middleware, Wait, enqueue_within, run_within
from longshore.app.task import Task
from longshore.core.errors import JobFailed
from longshore.core.explain import Explanation, Facts, explanation_of
from longshore.core.job import Job
from longshore.core.job_record import record_of
from longshore.core.status import JobStatus
from longshore.core.times import from_micros
from longshore.core.validation import check_json, pack
from longshore.runtime.failures import describe
from longshore.runtime.running_job import Results, RunningJob, Written, running
from longshore.safe_logging import logger

R = TypeVar("R")

_log = logger("longshore.app")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Eagerness:
    """Whether jobs are run at once, and how. No store is touched, nothing is retried, and no delay is waited for."""

    def __init__(self, layers: Sequence[Middleware]) -> None:
        self._layers = layers
        self._lock = threading.Lock()
        self._depth = 0

    @property
    def on(self) -> bool:
        """Whether it is on, in whichever thread."""
        return self._depth > 0

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """For the length of the block."""
        with self._lock:
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1

    async def run(self, task: Task[..., R], job: Job, results: Mapping[str, Any] = _NOTHING) -> JobHandle[R]:
        """Runs it where a worker would: an `async def` on the loop, a `def` in a thread.

        `results` are those of steps it depends on, which ran before.
        """

        async def perform(active: RunningJob) -> Any:
            return await (_run_async(task, active) if task.is_async else asyncio.to_thread(_run_here, task, active))

        return _handle(task, await self._run(job, results, perform, on_this_loop))

    def run_sync(self, task: Task[..., R], job: Job) -> JobHandle[R]:
        """Runs it in the calling thread, whose transactions and the like it may thus use."""
        return _handle(task, at_once(self.run_blocking(task, job)))

    async def run_blocking(self, task: Task[..., Any], job: Job, results: Mapping[str, Any] = _NOTHING) -> Finished:
        """A coroutine that never waits, for whoever runs several so."""

        async def perform(active: RunningJob) -> Any:
            return asyncio.run(_run_async(task, active)) if task.is_async else _run_here(task, active)

        return await self._run(job, results, perform, blocking)

    async def _run(
        self, job: Job, results: Mapping[str, Any], perform: Callable[[RunningJob], Awaitable[Any]], wait: Wait
    ) -> Finished:
        passed: list[Job] = []

        async def keep(jobs: Sequence[Job]) -> list[str]:
            for job in jobs:
                record_of(job, 0)  # what no store would take is refused here, too
            passed.extend(jobs)
            return [job.id for job in jobs]

        await enqueue_within(self._layers, [job], keep, wait)
        notes = NotePad(results)
        active = RunningJob(passed[0].replace(executions=1), notes)
        ending: dict[str, Any] = {"status": JobStatus.COMPLETED}
        failure: Exception | None = None
        try:
            value = await run_within(self._layers, active, lambda: perform(active), wait)
            ending["result"] = None if value is None else check_json("result", value)
        except Exception as error:
            failure = error
            ending = {"status": JobStatus.DEAD, "error_message": describe(error)}
        record = active.record.replace(progress=notes.progress, checkpoint=active.checkpoint, **ending)
        return Finished(record, failure)


def _handle(task: Task[..., R], finished: Finished) -> JobHandle[R]:
    return JobHandle(finished.record.id, finished, task.signature.result.read)


async def _run_async(task: Task[..., Any], job: RunningJob) -> Any:
    with running(job):
        return job.returned(await task.run_async(job))


def _run_here(task: Task[..., Any], job: RunningJob) -> Any:
    with running(job):
        return job.returned(task.run_here(job))


class Finished:
    """A job that ended before its handle was made."""

    def __init__(self, record: Job, error: Exception | None = None) -> None:
        self.record = record
        self._error = error

    async def job(self, _: str) -> Job:
        """As it ended."""
        return self.record

    async def ended(self, job_id: str, _: float | None) -> Job:
        """At once; a failure shows what it came from."""
        if self._error is not None:
            raise JobFailed(job_id, self.record.error_message) from self._error
        return self.record

    async def explain(self, _: str) -> Explanation:
        """That it is over."""
        now = self.record.finalized_at or self.record.created_at or from_micros(0)
        return explanation_of(Facts(now, self.record, now))

    async def cancel(self, _: str) -> bool:
        """It is over already."""
        return False


class NotePad:
    """The notes of a job that is stored nowhere."""

    def __init__(self, results: Mapping[str, Any] = _NOTHING) -> None:
        self.progress: Any = None
        self._results = results

    def set_progress(self, _: Job, value: Any) -> Written:
        """Kept for the record."""
        check_json("progress", value)
        self.progress = value
        return Written()

    def append_log(self, _: Job, message: str, level: str) -> Written:
        """To the program's own log, for there is no other."""
        _log.info("%s: %s", level, message)
        return Written()

    def save_checkpoint(self, _: Job, data: Any) -> Written:
        """The running job itself remembers it."""
        pack("data", data)
        return Written()

    def dependency_results(self, _: Job) -> Results:
        """Those of steps of the same flow: whatever else it depended on was not stored either."""
        return Results(self._results)
