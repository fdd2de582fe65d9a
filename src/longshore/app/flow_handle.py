"""A flow that was enqueued, as one thing: how far it is, what it gave back, and what can be done about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from longshore.app.handles import RESULT_TIMEOUT, JobHandle
from longshore.app.step import Step
from longshore.core.errors import InvalidArgument, JobCancelled, JobFailed, JobNotFound
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
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, Duration, check_duration
from longshore.runtime import background

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


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
            raise TimeoutError(_still(await self.status(), seconds)) from None
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


def _still(status: FlowStatus, seconds: float | None) -> str:
    counted = ", ".join(f"{count} {name}" for name, count in sorted(status.counts.items()))
    return f"flow {status.name} ({status.id}) is {status.state} still after {seconds:g} seconds; its steps: {counted}"
