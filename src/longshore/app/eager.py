"""Eager mode for tests: a task or a flow runs where it is enqueued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from longshore.app.middleware import Middleware, Wait, at_once, blocking, enqueue_within, on_this_loop, run_within
from longshore.app.results import JobHandle
from longshore.app.step import filled
from longshore.app.task import Task
from longshore.core.dependencies import INPUTS
from longshore.core.errors import InvalidArgument, JobFailed
from longshore.core.explain import Explanation, Facts, explanation_of
from longshore.core.flows import policy_of
from longshore.core.job import Job
from longshore.core.job_record import record_of
from longshore.core.status import JobStatus
from longshore.core.times import from_micros
from longshore.core.validation import check_json, pack, read_json
from longshore.runtime.error_text import describe
from longshore.runtime.running_job import Results, RunningJob, Written, running
from longshore.safe_logging import logger

R = TypeVar("R")

_log = logger("longshore.app")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class EagerMode:
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
        notes = EagerReporter(results)
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


class EagerReporter:
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


Run = Callable[[Task[..., Any], Job, Mapping[str, Any]], Awaitable[Job]]


async def run_steps(eagerness: EagerMode, tasks: Mapping[str, Task[..., Any]], jobs: Sequence[Job]) -> list[Job]:
    """The steps as they ended; one that waits for another that failed is not run."""

    async def run(task: Task[..., Any], job: Job, results: Mapping[str, Any]) -> Job:
        return await (await eagerness.run(task, job, results)).job()

    return await _run_steps(tasks, jobs, run)


def run_steps_sync(eagerness: EagerMode, tasks: Mapping[str, Task[..., Any]], jobs: Sequence[Job]) -> list[Job]:
    """The same in the calling thread."""

    async def run(task: Task[..., Any], job: Job, results: Mapping[str, Any]) -> Job:
        return (await eagerness.run_blocking(task, job, results)).record

    return at_once(_run_steps(tasks, jobs, run))


async def _run_steps(tasks: Mapping[str, Task[..., Any]], jobs: Sequence[Job], run: Run) -> list[Job]:
    ended: dict[str, Job] = {}
    for job in jobs:
        status = _standing(job, ended)
        if status is not JobStatus.INITIAL_PENDING:
            ended[job.id] = job.replace(status=status)
            continue
        results = {
            name: None if ended[name].result is None else read_json("result", ended[name].result or b"")
            for name in job.depends_on
            if name in ended and ended[name].status is JobStatus.COMPLETED
        }
        stored = {name: ended[name].result for name in results}
        ready = job.replace(payload=filled(job, stored)) if INPUTS in job.options else job
        ended[job.id] = await run(tasks[job.type], ready, results)
    return list(ended.values())


def _standing(job: Job, ended: Mapping[str, Job]) -> JobStatus:
    """Whether it may run: what is no step of the flow counts as done, for no store is asked."""
    waits = False
    for name in job.depends_on:
        status = ended[name].status if name in ended else JobStatus.COMPLETED
        policy = policy_of(job, name)
        if status is JobStatus.COMPLETED or (status.final and policy == "ignore"):
            continue
        if status.final and policy == "stop":
            return JobStatus.UNSCHEDULED
        waits = True
    return JobStatus.WAITING_CHILDREN if waits else JobStatus.INITIAL_PENDING


class FinishedFlow:
    """A flow that ran where it was enqueued; its handle asks here."""

    def __init__(self, steps: Sequence[Job], read: Callable[[str, bytes | None], Any]) -> None:
        self._steps = list(steps)
        self.read = read

    async def steps(self, _: str) -> list[Job]:
        """As they ended."""
        return self._steps

    async def settled(self, _: str, __: float | None) -> list[Job]:
        """At once."""
        return self._steps

    async def cancel(self, _: str) -> list[str]:
        """It is over already."""
        return []

    async def retry(self, flow_id: str, _: str) -> list[str]:
        """Nothing was stored that could be tried again."""
        raise InvalidArgument("flow", f"{flow_id} ran in eager mode, where nothing is tried again; enqueue it anew")

    async def store(self, jobs: Sequence[Job], _: object = None) -> None:
        """Like `retry`."""
        await self.retry(str(jobs[0].parent_id), "")

    def handle(self, job: Job) -> JobHandle[Any]:
        """The handle of a step."""
        (record,) = [step for step in self._steps if step.id == job.id]
        return JobHandle(job.id, Finished(record), lambda stored: self.read(job.type, stored))
