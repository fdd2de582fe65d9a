"""Eager mode for tests: a task or flow runs where it is enqueued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from longshore.app.middleware import Middleware, Wait, blocking, enqueue_within, run_within
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


class EagerMode:
    """Runs jobs where they are enqueued, without a store, retries or delays."""

    def __init__(self, layers: Sequence[Middleware]) -> None:
        self._layers = layers
        self._lock = threading.Lock()
        self._depth = 0
        self.on = False
        """Whether it is on, in any thread."""

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """Enable it inside the block."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            self._depth += by
            self.on = self._depth > 0

    async def run(self, task: Task[..., R], job: Job, wait: Wait) -> JobHandle[R]:
        """Run the job as a worker would: an `async def` on the loop, a `def` in a thread.

        With `blocking` it runs in the calling thread, whose open transactions it can use.
        """
        finished = await self._run(task, job, {}, wait)
        return JobHandle(finished.record.id, finished, task.signature.result.read)

    async def run_steps(self, tasks: Mapping[str, Task[..., Any]], jobs: Sequence[Job], wait: Wait) -> list[Job]:
        """Run the steps of a flow in order and return them as they ended; skip a step with a failed dependency."""
        ended: dict[str, Job] = {}
        for job in jobs:
            status = _status_before_run(job, ended)
            if status is not JobStatus.INITIAL_PENDING:
                ended[job.id] = job.replace(status=status)
                continue
            stored = {
                name: ended[name].result
                for name in job.depends_on
                if name in ended and ended[name].status is JobStatus.COMPLETED
            }
            results = {name: None if kept is None else read_json("result", kept) for name, kept in stored.items()}
            ready = job.replace(payload=filled(job, stored)) if INPUTS in job.options else job
            ended[job.id] = (await self._run(tasks[job.type], ready, results, wait)).record
        return list(ended.values())

    async def _run(self, task: Task[..., Any], job: Job, results: Mapping[str, Any], wait: Wait) -> Finished:
        """Run it once; `results` are those of the steps it depends on."""
        passed: list[Job] = []

        async def keep(jobs: Sequence[Job]) -> list[str]:
            for job in jobs:
                record_of(job, 0)  # refuse what a store would refuse
            passed.extend(jobs)
            return [job.id for job in jobs]

        async def perform() -> Any:
            with running(active):
                if task.is_async:
                    return active.returned(await wait(task.run_async(active)))
                if wait is blocking:
                    return active.returned(task.run_here(active))
                return active.returned(await asyncio.to_thread(task.run_here, active))

        await enqueue_within(self._layers, [job], keep, wait)
        notes = EagerReporter(results)
        active = RunningJob(passed[0].replace(executions=1), notes)
        ending: dict[str, Any] = {"status": JobStatus.COMPLETED}
        failure: Exception | None = None
        try:
            value = await run_within(self._layers, active, perform, wait)
            ending["result"] = None if value is None else check_json("result", value)
        except Exception as error:
            failure = error
            ending = {"status": JobStatus.DEAD, "error_message": describe(error)}
        record = active.record.replace(progress=notes.progress, checkpoint=active.checkpoint, **ending)
        return Finished(record, failure)


class Finished:
    """A job that ended before its handle was created."""

    def __init__(self, record: Job, error: Exception | None = None) -> None:
        self.record = record
        self._error = error

    async def job(self, _: str) -> Job:
        """Return the job as it ended."""
        return self.record

    async def ended(self, job_id: str, _: float | None) -> Job:
        """Return the job at once; a failure keeps its cause."""
        if self._error is not None:
            raise JobFailed(job_id, self.record.error_message) from self._error
        return self.record

    async def explain(self, _: str) -> Explanation:
        """Explain that it has ended."""
        now = self.record.finalized_at or self.record.created_at or from_micros(0)
        return explanation_of(Facts(now, self.record, now))

    async def cancel(self, _: str) -> bool:
        """Return False: the job has ended."""
        return False


class EagerReporter:
    """Keeps what a job reports; there is no store."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.progress: Any = None
        self._results = results

    def set_progress(self, _: Job, value: Any) -> Written:
        """Keep the progress for the record."""
        check_json("progress", value)
        self.progress = value
        return Written()

    def append_log(self, _: Job, message: str, level: str) -> Written:
        """Write to the log of the program."""
        _log.info("%s: %s", level, message)
        return Written()

    def save_checkpoint(self, _: Job, data: Any) -> Written:
        """Do nothing: the running job itself keeps it."""
        pack("data", data)
        return Written()

    def dependency_results(self, _: Job) -> Results:
        """Return the results of steps of the same flow; other jobs are not stored."""
        return Results(self._results)


def _status_before_run(job: Job, ended: Mapping[str, Job]) -> JobStatus:
    """Return the status that decides whether it runs; a job outside the flow counts as completed."""
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
    """A flow that ran where it was enqueued."""

    def __init__(self, steps: Sequence[Job], read: Callable[[str, bytes | None], Any]) -> None:
        self._steps = list(steps)
        self.read = read

    async def steps(self, _: str) -> list[Job]:
        """Return the steps as they ended."""
        return self._steps

    async def settled(self, _: str, __: float | None) -> list[Job]:
        """Return the steps at once."""
        return self._steps

    async def cancel(self, _: str) -> list[str]:
        """Return no ids: all steps have ended."""
        return []

    async def retry(self, flow_id: str, _: str) -> list[str]:
        """Refuse: no step is stored."""
        raise InvalidArgument("flow", f"{flow_id} ran in eager mode, without retries; enqueue the flow again")

    async def store(self, jobs: Sequence[Job], _: object = None) -> None:
        """Refuse, like `retry`."""
        await self.retry(str(jobs[0].parent_id), "")

    def handle(self, job: Job) -> JobHandle[Any]:
        """Return the handle of a step."""
        (record,) = [step for step in self._steps if step.id == job.id]
        return JobHandle(job.id, Finished(record), lambda stored: self.read(job.type, stored))
