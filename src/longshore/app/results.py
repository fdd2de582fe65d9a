"""Handles: the state and the result of an enqueued job or flow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from longshore.app.step import Step
from longshore.backends.base import Backend
from longshore.core.errors import BackendUnavailable, InvalidArgument, JobCancelled, JobFailed, JobNotFound
from longshore.core.explain import Explanation
from longshore.core.filters import JobFilter
from longshore.core.flows import (
    FlowStatus,
    about,
    copy_of_flow,
    drawing,
    last_steps,
    status_of_flow,
    step_name,
    what_failed,
)
from longshore.core.job import Job
from longshore.core.status import FINAL, JobStatus
from longshore.core.times import SECOND, Duration, check_duration
from longshore.runtime import background
from longshore.runtime.background import blocking
from longshore.runtime.queue import Queue

_POLL = 1.0
"""Seconds between two reads of the jobs without a notification."""
_SHORTEST_PAUSE = 0.005
"""Seconds between two reads of a store that is busy with other jobs."""
_FIRST_PAUSE = 0.05
"""Seconds before the next read of an unavailable store; they double up to the poll interval."""
_LOOKED_AT_ONCE = 500


class ResultWaiter:
    """Reads and waits for the jobs of handles. It waits by reading jobs, because the event log may lag behind."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        """The current queue; a harbor that is opened again replaces it."""
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[Job]]] = {}
        self._watching = False

    async def job(self, job_id: str) -> Job:
        """Return the current job."""
        return await self.queue.get_job(job_id)

    async def explain(self, job_id: str) -> Explanation:
        """Explain why it is not running."""
        return await self.queue.explain(job_id)

    async def cancel(self, job_id: str) -> bool:
        """Request its cancellation; return False if it has already ended."""
        cancelled, _ = await self.queue.cancel_jobs(job_ids=[job_id])
        return bool(cancelled)

    async def ended(self, job_id: str, timeout: float | None) -> Job:
        """Return the job once it is final, or raise TimeoutError. It also waits while the store is unavailable."""
        answer: Future[Job] = Future()
        with self._lock:  # before the first read, so that no end is missed between the two
            self._waiting.setdefault(job_id, []).append(answer)
        try:
            with suppress(BackendUnavailable):
                job = await self.queue.get_job(job_id)
                if job.status in FINAL:
                    return job
            with self._lock:
                watching, self._watching = self._watching, True
            if not watching:
                background.submit(self._watch())
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(answer)
        finally:
            with self._lock:
                answers = self._waiting.get(job_id, [])
                with suppress(ValueError):
                    answers.remove(answer)
                if not answers:
                    self._waiting.pop(job_id, None)

    async def _watch(self) -> None:
        """Read the jobs after each change of the store, until no caller waits."""
        looked_for_removed = monotonic()
        pause = _FIRST_PAUSE
        while True:
            with self._lock:
                ids = list(self._waiting)
                self._watching = bool(ids)
            if not ids:
                return
            backend, began = self.queue.backend, monotonic()
            find_removed = began - looked_for_removed >= _POLL
            changed = asyncio.ensure_future(backend.wait_for_change(_POLL))
            await asyncio.sleep(0)  # the wait has started: a change during the read is not missed
            try:
                for first in range(0, len(ids), _LOOKED_AT_ONCE):
                    await self._find_ended(backend, ids[first : first + _LOOKED_AT_ONCE], find_removed=find_removed)
                took = monotonic() - began
                if find_removed:
                    looked_for_removed = monotonic()
                await changed
            except Exception as error:
                changed.cancel()
                await asyncio.gather(changed, return_exceptions=True)
                if isinstance(error, BackendUnavailable):  # it may be available before the callers' timeouts
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _POLL)
                elif backend is self.queue.backend:  # the harbor was not closed and opened again meanwhile
                    for job_id in list(self._waiting):
                        self._answer(job_id, error)
            else:  # read a busy store for at most half of the time
                pause = _FIRST_PAUSE
                await asyncio.sleep(began + max(_SHORTEST_PAUSE, 2 * took) - monotonic())

    async def _find_ended(self, backend: Backend, ids: list[str], *, find_removed: bool) -> None:
        if len(ids) == 1:  # the usual case, and cheaper than a page
            try:
                found = {ids[0]: await backend.get_job(ids[0])}
            except JobNotFound:
                found, find_removed = {}, True
        else:
            wanted = JobFilter(ids=ids) if find_removed else JobFilter(ids=ids, statuses=tuple(FINAL))
            found = {job.id: job for job in (await backend.list_jobs(wanted, limit=len(ids))).items}
        for job in found.values():
            if job.status in FINAL:
                self._answer(job.id, job)
        if find_removed:
            for job_id in ids:
                if job_id not in found:
                    self._answer(job_id, JobNotFound(job_id))

    def _answer(self, job_id: str, end: Job | Exception) -> None:
        with self._lock:
            answers = self._waiting.pop(job_id, [])
        for answer in answers:
            if not answer.set_running_or_notify_cancel():
                continue
            if isinstance(end, Job):
                answer.set_result(end)
            else:
                answer.set_exception(end)


R_co = TypeVar("R_co", covariant=True)

RESULT_TIMEOUT = 60.0
"""Seconds that `result()` waits by default: a job that no worker claims must not block its caller forever."""


class Inquiry(Protocol):
    """Reads and cancels the job of a handle."""

    async def job(self, job_id: str) -> Job:
        """Return the current job, or raise JobNotFound."""
        ...

    async def ended(self, job_id: str, timeout: float | None) -> Job:
        """Return the job once it is final, or raise TimeoutError."""
        ...

    async def explain(self, job_id: str) -> Explanation:
        """Explain why it is not running, or raise JobNotFound."""
        ...

    async def cancel(self, job_id: str) -> bool:
        """Request its cancellation; return False if it has already ended."""
        ...


class JobHandle(Generic[R_co]):
    """An enqueued job: `await handle.result()`. Methods read the store; `…_sync` forms block. See docs/tasks.md."""

    __slots__ = ("_inquiry", "_read", "id", "replayed")

    def __init__(
        self, job_id: str, inquiry: Inquiry, read: Callable[[bytes | None], Any], *, replayed: bool = False
    ) -> None:
        self.id = job_id
        self.replayed = replayed
        """Whether the job existed before, with its own arguments, by its idempotency key or id."""
        self._inquiry = inquiry
        self._read = read

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    async def result(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Wait until the job has ended, and return its result as the annotated return type of the task.

        Raises JobFailed if it failed permanently, JobCancelled if it was cancelled, and TimeoutError after `timeout`
        seconds (None: never). A timeout does not change the job: you may call `result` again.
        """
        seconds = None if timeout is None else check_duration("timeout", timeout, positive=False) / SECOND
        try:
            job = await self._inquiry.ended(self.id, seconds)
        except TimeoutError:
            raise TimeoutError(_job_timeout(await self._inquiry.job(self.id), seconds)) from None
        if job.status is JobStatus.COMPLETED:
            return self._read(job.result)  # type: ignore[no-any-return]  # read as the return annotation of the task
        if job.status is JobStatus.DEAD:
            raise JobFailed(job.id, job.error_message)
        raise JobCancelled(job.id, job.status, job.error_message)

    async def job(self) -> Job:
        """Return the current record."""
        return await self._inquiry.job(self.id)

    async def status(self) -> JobStatus:
        """Return the current status."""
        return (await self.job()).status

    async def explain(self) -> Explanation:
        """Explain why it is not running: each reason with a remedy."""
        return await self._inquiry.explain(self.id)

    async def cancel(self) -> bool:
        """Request its cancellation and return at once; False if it had already ended."""
        return await self._inquiry.cancel(self.id)

    result_sync = blocking(result)
    job_sync = blocking(job)
    status_sync = blocking(status)
    explain_sync = blocking(explain)
    cancel_sync = blocking(cancel)


def _job_timeout(job: Job, seconds: float | None) -> str:
    text = f"job {job.id} ({job.type}) is still {job.status} after {seconds:g} seconds"
    if job.executions == 0:
        return f"{text}: it has not started. Check that a worker runs for the queue {str(job.queue)!r}, or wait longer"
    error = job.error_message.partition("\n")[0]
    return f"{text}, in execution {job.executions}{f'; the last one failed with {error}' if error else ''}"


R = TypeVar("R")


class FlowInquiry(Protocol):
    """Reads and changes the flow of a handle."""

    async def steps(self, flow_id: str, /) -> list[Job]:
        """Return all steps in the order in which they were added, or raise JobNotFound."""
        ...

    async def settled(self, flow_id: str, timeout: float | None, /) -> list[Job]:
        """Return all steps once the flow has ended or cannot continue by itself, or raise TimeoutError."""
        ...

    async def cancel(self, flow_id: str, /) -> list[str]:
        """Cancel every step that has not ended."""
        ...

    async def retry(self, flow_id: str, actor: str, /) -> list[str]:
        """Retry the dead steps."""
        ...

    async def store(self, jobs: Sequence[Job], connection: object = None, /) -> None:
        """Store another flow."""
        ...

    def handle(self, job: Job, /) -> JobHandle[Any]:
        """Return the handle of a step."""
        ...

    def read(self, job_type: str, stored: bytes | None, /) -> Any:
        """Return a stored result as its task is annotated."""
        ...


class FlowHandle(Generic[R_co]):
    """An enqueued flow: `await handle.result()`. Methods read the store; `…_sync` forms block. See docs/flows.md."""

    __slots__ = ("_inquiry", "id")

    def __init__(self, flow_id: str, inquiry: FlowInquiry) -> None:
        self.id = flow_id
        self._inquiry = inquiry

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id}>"

    async def result(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Wait for the flow's last step and return its result; with several last steps, a list.

        Raises JobFailed or JobCancelled with the step that prevents a result: at once, also while the flow waits for
        that step's retry. Raises JobNotFound if a last step was removed, and TimeoutError after `timeout` seconds
        (None: never).
        """
        seconds = None if timeout is None else check_duration("timeout", timeout, positive=False) / SECOND
        try:
            steps = await self._inquiry.settled(self.id, seconds)
        except TimeoutError:
            raise TimeoutError(_flow_timeout(await self.status(), seconds)) from None
        failed = what_failed(steps)
        if failed is not None:
            raise _why(failed)
        last = await self._with_former(steps, last_steps(steps))
        if not last or len(last) < int(about(last[0], "ends", "1")):
            raise _removed(self.id)
        results: Any = [self._inquiry.read(step.type, step.result) for step in last]
        if about(last[0], "last") == "alone":
            return results[0]  # type: ignore[no-any-return]  # read as the return annotation of the task
        return results  # type: ignore[no-any-return]  # the same, of each

    async def steps(self) -> list[Job]:
        """Return the records of its steps, in the order in which they were added."""
        return await self._inquiry.steps(self.id)

    async def status(self) -> FlowStatus:
        """Return its progress: each step, and how many are in which status."""
        return status_of_flow(self.id, await self.steps())

    async def step(self, name: str) -> JobHandle[Any]:
        """Return the handle of the first step with this name; `handle[step]` is that of a given step."""
        steps = await self.steps()
        for step in steps:
            if step_name(step) == name:
                return self._inquiry.handle(step)
        known = ", ".join(sorted({step_name(step) for step in steps})[:20])
        raise InvalidArgument("name", f"no step of the flow is named {name!r}; use one of {known}")

    def __getitem__(self, step: Step[R]) -> JobHandle[R]:
        """Return the handle of a step that was added to the flow."""
        if step.flow_id != self.id:
            raise InvalidArgument("step", f"{step!r} is a step of another flow")
        return self._inquiry.handle(Job(id=step.id, type=step.task))

    async def cancel(self) -> list[str]:
        """Cancel every step that has not ended, in one transaction; return their ids.

        Running steps are asked to end; waiting steps become UNSCHEDULED.
        """
        return await self._inquiry.cancel(self.id)

    async def retry(self, *, actor: str = "") -> list[str]:
        """Retry the dead steps and return their ids. Steps that wait for them continue.

        Steps that were cancelled, or stopped by a policy, cannot be retried: use `rerun`.
        """
        return await self._inquiry.retry(self.id, actor)

    async def rerun(self) -> FlowHandle[R_co]:
        """Enqueue a new flow of the steps that did not complete; it takes the results of the others from this one.

        Every step must have ended: cancel a flow that still runs first.
        """
        return await self._copied(completed_too=False)

    async def rerun_whole(self) -> FlowHandle[R_co]:
        """Enqueue a new flow of all its steps."""
        return await self._copied(completed_too=True)

    async def drawing(self) -> str:
        """Return the flow and its statuses as a Mermaid chart."""
        return drawing(await self.steps())

    async def _copied(self, *, completed_too: bool) -> FlowHandle[R_co]:
        copied = copy_of_flow(self.id, await self.steps(), completed_too=completed_too)
        await self._inquiry.store(copied)
        return FlowHandle(str(copied[0].parent_id), self._inquiry)

    async def _with_former(self, steps: Sequence[Job], last: Sequence[Job]) -> list[Job]:
        """Return the last steps; for a copied flow with those that completed in the original, in order."""
        found = {_number(step): step for step in last}
        former = about(steps[0], "of")
        while former and last and about(last[0], "last") == "listed":
            steps = await self._inquiry.steps(former)
            for step in last_steps(steps):
                if step.status is JobStatus.COMPLETED:
                    found.setdefault(_number(step), step)
            former = about(steps[0], "of")
        return [found[number] for number in sorted(found)]

    result_sync = blocking(result)
    steps_sync = blocking(steps)
    status_sync = blocking(status)
    step_sync = blocking(step)
    drawing_sync = blocking(drawing)
    cancel_sync = blocking(cancel)
    retry_sync = blocking(retry)
    rerun_sync = blocking(rerun)
    rerun_whole_sync = blocking(rerun_whole)


def _number(step: Job) -> int:
    """Return the number of the step in its flow; a copy has the number of its original."""
    number = step.id.rpartition(".")[2]
    return int(number) if number.isdecimal() else step.uid


def _why(failed: Job) -> JobFailed | JobCancelled:
    error: JobFailed | JobCancelled = JobCancelled(failed.id, failed.status, failed.error_message)
    if failed.status is JobStatus.DEAD:
        error = JobFailed(failed.id, failed.error_message)
    text = str(error).removeprefix(f"job {failed.id!r}")
    error.args = (f"step {step_name(failed)} (job {failed.id!r}){text}",)
    return error


def _removed(flow_id: str) -> JobNotFound:
    missing = JobNotFound(flow_id)
    missing.args = (
        f"the flow {flow_id!r} has no result, because a last step was removed with its result, by retention or a "
        "caller",
    )
    return missing


def _flow_timeout(status: FlowStatus, seconds: float | None) -> str:
    counted = ", ".join(f"{count} {name}" for name, count in sorted(status.counts.items()))
    return f"flow {status.name} ({status.id}) is still {status.state} after {seconds:g} seconds; its steps: {counted}"
