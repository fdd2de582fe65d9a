"""Handles: the state and the result of a job or flow that was enqueued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from longshore.app.step import Step
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
from longshore.runtime.queue import Queue

_POLL = 1.0
"""Seconds after which a change that no hint told of is found by looking."""
_SHORTEST_PAUSE = 0.005
"""Seconds between two looks at a store that is busy with other jobs."""
_FIRST_PAUSE = 0.05
"""Seconds between two looks at a store that cannot be used; they double up to a poll's."""
_LOOKED_AT_ONCE = 500


class ResultWaiter:
    """Who waits for which job of a store. It reads jobs, never the event log, whose end may lag behind."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[Job]]] = {}
        self._looking = False

    async def ended(self, job_id: str, timeout: float | None) -> Job:
        """The job once it is final, or TimeoutError. A store that cannot be used for a while is waited for, too."""
        turn: Future[Job] = Future()
        with self._lock:  # before the first look, so that no end falls between the two
            self._waiting.setdefault(job_id, []).append(turn)
        try:
            with suppress(BackendUnavailable):
                job = await self._queue.get_job(job_id)
                if job.status in FINAL:
                    return job
            self._begin_to_look()
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(turn)
        finally:
            self._leave(job_id, turn)

    def _leave(self, job_id: str, turn: Future[Job]) -> None:
        with self._lock:
            turns = self._waiting.get(job_id, [])
            with suppress(ValueError):
                turns.remove(turn)
            if not turns:
                self._waiting.pop(job_id, None)

    def _begin_to_look(self) -> None:
        with self._lock:
            if not self._looking:
                self._looking = True
                background.submit(self._look_until_nobody_waits())

    async def _look_until_nobody_waits(self) -> None:
        looked_for_removed = monotonic()
        pause = _FIRST_PAUSE
        while ids := self._awaited():
            began = monotonic()
            removed_too = began - looked_for_removed >= _POLL
            changed = asyncio.ensure_future(self._queue.backend.wait_for_change(_POLL))
            await asyncio.sleep(0)  # it listens from here on: what changes during the look is not missed
            try:
                for first in range(0, len(ids), _LOOKED_AT_ONCE):
                    await self._look(ids[first : first + _LOOKED_AT_ONCE], removed_too=removed_too)
                took = monotonic() - began
                if removed_too:
                    looked_for_removed = monotonic()
                await changed
            except Exception as error:
                changed.cancel()
                await asyncio.gather(changed, return_exceptions=True)
                if isinstance(error, BackendUnavailable):  # it may be back before they have waited enough
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _POLL)
                else:  # whoever waits must hear of it, whatever it is
                    self._tell_all(error)
            else:  # a busy store is looked at for no more than half of the time
                pause = _FIRST_PAUSE
                await asyncio.sleep(began + max(_SHORTEST_PAUSE, 2 * took) - monotonic())

    def _awaited(self) -> list[str]:
        with self._lock:
            self._looking = bool(self._waiting)
            return list(self._waiting)

    async def _look(self, ids: list[str], *, removed_too: bool) -> None:
        wanted = JobFilter(ids=ids) if removed_too else JobFilter(ids=ids, statuses=tuple(FINAL))
        found = {job.id: job for job in (await self._queue.backend.list_jobs(wanted, limit=len(ids))).items}
        for job in found.values():
            if job.status in FINAL:
                self._tell(job.id, job)
        if removed_too:
            for job_id in ids:
                if job_id not in found:
                    self._tell(job_id, JobNotFound(job_id))

    def _tell(self, job_id: str, news: Job | Exception) -> None:
        with self._lock:
            turns = self._waiting.pop(job_id, [])
        for turn in turns:
            if not turn.set_running_or_notify_cancel():
                continue
            if isinstance(news, Job):
                turn.set_result(news)
            else:
                turn.set_exception(news)

    def _tell_all(self, error: Exception) -> None:
        for job_id in list(self._waiting):
            self._tell(job_id, error)


R_co = TypeVar("R_co", covariant=True)

RESULT_TIMEOUT = 60.0
"""Seconds that `result()` waits unless told otherwise: a job that no worker takes must not hold its caller for ever."""


class Inquiry(Protocol):
    """Where a handle asks."""

    async def job(self, job_id: str) -> Job:
        """The job as it stands, or JobNotFound."""
        ...

    async def ended(self, job_id: str, timeout: float | None) -> Job:
        """The job once it is final, or TimeoutError."""
        ...

    async def explain(self, job_id: str) -> Explanation:
        """Why it is not running now, or JobNotFound."""
        ...

    async def cancel(self, job_id: str) -> bool:
        """Asks for its end; False if it is over already."""
        ...


class JobHandle(Generic[R_co]):
    """A job that was enqueued. Every question is asked of the store anew; the `…_sync` forms block."""

    __slots__ = ("_inquiry", "_read", "id", "replayed")

    def __init__(
        self, job_id: str, inquiry: Inquiry, read: Callable[[bytes | None], Any], *, replayed: bool = False
    ) -> None:
        self.id = job_id
        self.replayed = replayed
        """Whether the job was there already when this was enqueued, by its key or id: with its own arguments."""
        self._inquiry = inquiry
        self._read = read

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    async def result(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Waits until the job has ended, and returns what it gave back, as the type its task is annotated with.

        Raises JobFailed if it failed for good, JobCancelled if it was called off, and TimeoutError after `timeout`
        seconds (None: never), which leaves the job as it is: ask again at any time.
        """
        seconds = None if timeout is None else check_duration("timeout", timeout, positive=False) / SECOND
        try:
            job = await self._inquiry.ended(self.id, seconds)
        except TimeoutError:
            raise TimeoutError(_job_timeout(await self._inquiry.job(self.id), seconds)) from None
        if job.status is JobStatus.COMPLETED:
            return self._read(job.result)  # type: ignore[no-any-return]  # read as the task's own return annotation
        if job.status is JobStatus.DEAD:
            raise JobFailed(job.id, job.error_message)
        raise JobCancelled(job.id, job.status, job.error_message)

    async def job(self) -> Job:
        """The whole record as it stands now."""
        return await self._inquiry.job(self.id)

    async def status(self) -> JobStatus:
        """Where it is now."""
        return (await self.job()).status

    async def explain(self) -> Explanation:
        """Why it is not running now: who or what is in its way, each reason with its way out."""
        return await self._inquiry.explain(self.id)

    async def cancel(self) -> bool:
        """Asks for its end, and returns at once; False if it had ended already."""
        return await self._inquiry.cancel(self.id)

    def result_sync(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Like `result`, for code without an event loop."""
        return background.run(self.result(timeout))

    def job_sync(self) -> Job:
        """Like `job`, for code without an event loop."""
        return background.run(self.job())

    def status_sync(self) -> JobStatus:
        """Like `status`, for code without an event loop."""
        return background.run(self.status())

    def explain_sync(self) -> Explanation:
        """Like `explain`, for code without an event loop."""
        return background.run(self.explain())

    def cancel_sync(self) -> bool:
        """Like `cancel`, for code without an event loop."""
        return background.run(self.cancel())


def _job_timeout(job: Job, seconds: float | None) -> str:
    told = f"job {job.id} ({job.type}) is {job.status} still after {seconds:g} seconds"
    if job.executions == 0:
        return f"{told} and was never started; does a worker run for the queue {str(job.queue)!r}?"
    error = job.error_message.partition("\n")[0]
    return f"{told}, at its execution number {job.executions}{f'; the last one failed with {error}' if error else ''}"


R = TypeVar("R")


class FlowInquiry(Protocol):
    """Where a flow's handle asks."""

    async def steps(self, flow_id: str, /) -> list[Job]:
        """All of them, in the order in which they were added, or JobNotFound."""
        ...

    async def settled(self, flow_id: str, timeout: float | None, /) -> list[Job]:
        """All of them, once the flow is over or cannot go on by itself, or TimeoutError."""
        ...

    async def cancel(self, flow_id: str, /) -> list[str]:
        """Calls off whatever is not over."""
        ...

    async def retry(self, flow_id: str, actor: str, /) -> list[str]:
        """Dead steps go back to their queues."""
        ...

    async def store(self, jobs: Sequence[Job], connection: object = None, /) -> None:
        """Stores another flow."""
        ...

    def handle(self, job: Job, /) -> JobHandle[Any]:
        """The handle of a step."""
        ...

    def read(self, job_type: str, stored: bytes | None, /) -> Any:
        """A stored result as its task is annotated."""
        ...


class FlowHandle(Generic[R_co]):
    """A flow by its id. Every question is asked of the store anew; the `…_sync` forms block."""

    __slots__ = ("_inquiry", "id")

    def __init__(self, flow_id: str, inquiry: FlowInquiry) -> None:
        self.id = flow_id
        self._inquiry = inquiry

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id}>"

    async def result(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Waits for the flow's last step, and returns what that gave back; of several last steps a list.

        Raises JobFailed or JobCancelled with the step because of which there is none: at once, also where the flow
        waits for that step to be retried. JobNotFound if a last step was removed since.
        TimeoutError after `timeout` seconds (None: never) leaves it as it is.
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
            return results[0]  # type: ignore[no-any-return]  # read as the task's own return annotation
        return results  # type: ignore[no-any-return]  # the same, of each

    async def steps(self) -> list[Job]:
        """The records of its steps, in the order in which they were added."""
        return await self._inquiry.steps(self.id)

    async def status(self) -> FlowStatus:
        """How far it is: each step, and how many are in which status."""
        return status_of_flow(self.id, await self.steps())

    async def step(self, name: str) -> JobHandle[Any]:
        """The handle of the first step with this name; `handle[step]` is the one of a step at hand."""
        steps = await self.steps()
        for step in steps:
            if step_name(step) == name:
                return self._inquiry.handle(step)
        known = ", ".join(sorted({step_name(step) for step in steps})[:20])
        raise InvalidArgument("name", f"no step of the flow is named {name!r}; it has {known}")

    def __getitem__(self, step: Step[R]) -> JobHandle[R]:
        """The handle of one of the steps that were added to the flow."""
        if step.flow_id != self.id:
            raise InvalidArgument("step", f"{step!r} is a step of another flow")
        return self._inquiry.handle(Job(id=step.id, type=step.task))

    async def cancel(self) -> list[str]:
        """Calls off every step that is not over, in one transaction; returns their ids.

        Running steps are asked to end, as by any cancellation; those that wait become UNSCHEDULED.
        """
        return await self._inquiry.cancel(self.id)

    async def retry(self, *, actor: str = "") -> list[str]:
        """Sends the steps that are DEAD back to their queues; returns their ids. Whoever waited for them goes on.

        What was called off, or stopped by a policy, cannot come back: `rerun` makes a copy of it.
        """
        return await self._inquiry.retry(self.id, actor)

    async def rerun(self) -> FlowHandle[R_co]:
        """A new flow of those steps that did not complete; the results of those that did are taken from here.

        For a flow that is over: one that goes on is cancelled first, one that waits can be retried as well.
        """
        return await self._copied(completed_too=False)

    async def rerun_whole(self) -> FlowHandle[R_co]:
        """A new flow of all its steps."""
        return await self._copied(completed_too=True)

    async def drawing(self) -> str:
        """The flow with its statuses as a Mermaid chart."""
        return drawing(await self.steps())

    async def _copied(self, *, completed_too: bool) -> FlowHandle[R_co]:
        copied = copy_of_flow(self.id, await self.steps(), completed_too=completed_too)
        await self._inquiry.store(copied)
        return FlowHandle(str(copied[0].parent_id), self._inquiry)

    async def _with_former(self, steps: Sequence[Job], last: Sequence[Job]) -> list[Job]:
        """The last steps, and of a copy those that completed in the flow it was made of, in their order."""
        found = {_number(step): step for step in last}
        former = about(steps[0], "of")
        while former and last and about(last[0], "last") == "listed":
            steps = await self._inquiry.steps(former)
            for step in last_steps(steps):
                if step.status is JobStatus.COMPLETED:
                    found.setdefault(_number(step), step)
            former = about(steps[0], "of")
        return [found[number] for number in sorted(found)]

    # -- for code without an event loop

    def result_sync(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Like `result`."""
        return background.run(self.result(timeout))

    def steps_sync(self) -> list[Job]:
        """Like `steps`."""
        return background.run(self.steps())

    def status_sync(self) -> FlowStatus:
        """Like `status`."""
        return background.run(self.status())

    def step_sync(self, name: str) -> JobHandle[Any]:
        """Like `step`."""
        return background.run(self.step(name))

    def drawing_sync(self) -> str:
        """Like `drawing`."""
        return background.run(self.drawing())

    def cancel_sync(self) -> list[str]:
        """Like `cancel`."""
        return background.run(self.cancel())

    def retry_sync(self, *, actor: str = "") -> list[str]:
        """Like `retry`."""
        return background.run(self.retry(actor=actor))

    def rerun_sync(self) -> FlowHandle[R_co]:
        """Like `rerun`."""
        return background.run(self.rerun())

    def rerun_whole_sync(self) -> FlowHandle[R_co]:
        """Like `rerun_whole`."""
        return background.run(self.rerun_whole())


def _number(step: Job) -> int:
    """Which step of its flow it is; a copy has the number of its original."""
    number = step.id.rpartition(".")[2]
    return int(number) if number.isdecimal() else step.uid


def _why(failed: Job) -> JobFailed | JobCancelled:
    error: JobFailed | JobCancelled = JobCancelled(failed.id, failed.status, failed.error_message)
    if failed.status is JobStatus.DEAD:
        error = JobFailed(failed.id, failed.error_message)
    told = str(error).removeprefix(f"job {failed.id!r}")
    error.args = (f"step {step_name(failed)} (job {failed.id!r}){told}",)
    return error


def _removed(flow_id: str) -> JobNotFound:
    missing = JobNotFound(flow_id)
    missing.args = (
        f"the flow {flow_id!r} has no result any more: a last step of it was removed, by retention or by hand, "
        "and its result with it",
    )
    return missing


def _flow_timeout(status: FlowStatus, seconds: float | None) -> str:
    counted = ", ".join(f"{count} {name}" for name, count in sorted(status.counts.items()))
    return f"flow {status.name} ({status.id}) is {status.state} still after {seconds:g} seconds; its steps: {counted}"
