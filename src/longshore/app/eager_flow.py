"""Flows in eager mode: the steps run one after the other, and are judged as a store would judge them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longshore.app.at_once import at_once
from longshore.app.eager import Eagerness, Finished
from longshore.app.handing_on import filled
from longshore.app.handles import JobHandle
from longshore.app.task import Task
from longshore.core.dependencies import INPUTS
from longshore.core.errors import InvalidArgument
from longshore.core.flows import policy_of
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.validation import read_json

if TYPE_CHECKING:
    from longshore.app.flow_office import FlowOffice

Run = Callable[[Task[..., Any], Job, Mapping[str, Any]], Awaitable[Job]]


async def run_steps(eagerness: Eagerness, tasks: Mapping[str, Task[..., Any]], jobs: Sequence[Job]) -> list[Job]:
    """The steps as they ended; one that waits for another that failed is not run."""

    async def run(task: Task[..., Any], job: Job, results: Mapping[str, Any]) -> Job:
        return await (await eagerness.run(task, job, results)).job()

    return await _run_steps(tasks, jobs, run)


def run_steps_sync(eagerness: Eagerness, tasks: Mapping[str, Task[..., Any]], jobs: Sequence[Job]) -> list[Job]:
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

    def __init__(self, steps: Sequence[Job], office: FlowOffice) -> None:
        self._steps = list(steps)
        self._office = office

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

    def read(self, job_type: str, stored: bytes | None) -> Any:
        """As any flow does."""
        return self._office.read(job_type, stored)
