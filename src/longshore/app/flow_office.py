"""Where flows are stored and asked after: all steps in one transaction, found again as the jobs of one parent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from longshore.app.at_once import at_once, blocking, on_this_loop
from longshore.app.eager import Eagerness
from longshore.app.eager_flow import FinishedFlow, run_steps, run_steps_sync
from longshore.app.handles import JobHandle
from longshore.app.middleware import Middleware, Wait, enqueue_within
from longshore.app.sending import Sending
from longshore.app.task import Task
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument, InvalidTransition, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.flows import last_steps, step_name, step_of, what_failed, what_is_another
from longshore.core.job import Job
from longshore.core.status import FINAL, JobStatus
from longshore.core.validation import read_json
from longshore.runtime import background
from longshore.runtime.job_queue import Queue

Enqueue = Callable[[Sequence[Job]], Awaitable[list[str]]]
Look = Callable[[Sequence[str]], Awaitable[list[Job]]]

_PAGE = 1_000
_TRIES = 3
"""How often a flow is stored whose ids are in use, and nobody is found who has them."""
_POLL = 1.0
"""Seconds after which a change that no hint told of is found by looking."""
_SHORTEST_PAUSE = 0.02
"""Seconds between two looks at a store that is busy."""
_UNFINISHED = tuple(status for status in JobStatus if status not in FINAL)
_CALLED_OFF = frozenset({JobStatus.STOPPED, JobStatus.UNSCHEDULED, JobStatus.UNKNOWN_STOPPED})
_ENDED_OTHERWISE = tuple(FINAL - {JobStatus.COMPLETED})


class FlowOffice:
    """One for all flows of a harbor."""

    def __init__(
        self,
        queue: Queue,
        layers: Sequence[Middleware],
        eagerness: Eagerness,
        sending: Sending,
        tasks: Mapping[str, Task[..., Any]],
    ) -> None:
        self._queue = queue
        self._layers = layers
        self._eagerness = eagerness
        self._sending = sending
        self._tasks = tasks

    def use(self, queue: Queue) -> None:
        """Replaces the queue after the harbor was opened again."""
        self._queue = queue

    def owns(self, task: Task[..., Any]) -> bool:
        """Whether it is a task of this harbor."""
        return self._tasks.get(task.name) is task

    # -- storing

    async def store(self, jobs: Sequence[Job], connection: object = None) -> None:
        """All of them or none; a flow that is there already is left as it is."""

        async def enqueue(steps: Sequence[Job]) -> list[str]:
            return await self._queue.enqueue_jobs(steps, connection=connection)

        async def look(ids: Sequence[str]) -> list[Job]:
            return await self._having(ids)

        await self._store(jobs, enqueue, look, on_this_loop, joined=connection is not None)

    def store_sync(self, jobs: Sequence[Job], connection: object = None) -> None:
        """Like `store`, with the thread blocked."""

        async def enqueue(steps: Sequence[Job]) -> list[str]:
            return self._queue.sync.enqueue_jobs(steps, connection=connection)

        async def look(ids: Sequence[str]) -> list[Job]:
            return background.run(self._having(ids))

        at_once(self._store(jobs, enqueue, look, blocking, joined=connection is not None))

    async def _store(self, jobs: Sequence[Job], enqueue: Enqueue, look: Look, wait: Wait, *, joined: bool) -> None:
        ids = [job.id for job in jobs]

        async def keep(steps: Sequence[Job]) -> list[str]:
            if [step.id for step in steps] != ids:
                raise InvalidArgument("before_enqueue", "gave a step of a flow another id: nobody waits for that one")
            for tries_left in reversed(range(_TRIES)):
                try:
                    return await enqueue(steps)
                except DuplicateJob as error:
                    known = await look(error.job_ids)
                    _refuse_another(steps, error.job_ids, known)
                    if known or (joined and len(error.job_ids) == len(ids)):  # stored before, or by a call that was
                        break  # lost; nobody sees yet what this very transaction of the caller's stored
                    if not tries_left:  # what had the ids was not removed meanwhile, and cannot be seen
                        raise
            return ids

        await enqueue_within(self._layers, jobs, keep, wait)

    @property
    def eager(self) -> bool:
        """Whether flows are run where they are enqueued."""
        return self._eagerness.on

    async def run_now(self, jobs: Sequence[Job]) -> FinishedFlow:
        """Runs the steps one after the other."""
        return FinishedFlow(await run_steps(self._eagerness, self._tasks, jobs), self)

    def run_now_sync(self, jobs: Sequence[Job]) -> FinishedFlow:
        """Like `run_now`, in this thread."""
        return FinishedFlow(run_steps_sync(self._eagerness, self._tasks, jobs), self)

    # -- what handles ask

    async def steps(self, flow_id: str) -> list[Job]:
        """All of them, in the order in which they were added.

        A job that merely has the flow as its parent is none, unless there are no others: then they are a group.
        """
        found = await self._all(JobFilter(parent_id=flow_id))
        if not found:
            raise no_such_flow(flow_id)
        return [job for job in found if step_of(job)] or found

    async def settled(self, flow_id: str, timeout: float | None) -> list[Job]:
        """All steps, once the flow is over or cannot go on by itself to its end; TimeoutError if that takes longer.

        A store that cannot be used for a while is waited for, too.
        """
        async with asyncio.timeout(timeout):
            known: set[str] = set()
            while True:
                began = monotonic()
                changed = asyncio.ensure_future(self._queue.backend.wait_for_change(_POLL))
                await asyncio.sleep(0)  # it listens from here on: what changes during the look is not missed
                try:
                    if not await self._goes_on(flow_id):
                        return await self.steps(flow_id)
                    ended = await self._all(JobFilter(parent_id=flow_id, statuses=_ENDED_OTHERWISE))
                    if not {job.id for job in ended} <= known:
                        known = {job.id for job in ended}
                        steps = await self.steps(flow_id)
                        if what_failed(steps) is not None:
                            return steps
                    took = monotonic() - began
                    await changed
                except BackendUnavailable:
                    await asyncio.sleep(_POLL)
                else:  # a busy store is looked at for no more than a twentieth of the time: a flow may have many steps
                    await asyncio.sleep(max(_SHORTEST_PAUSE, min(_POLL, 20 * took)) - (monotonic() - began))
                finally:
                    changed.cancel()
                    await asyncio.gather(changed, return_exceptions=True)

    async def cancel(self, flow_id: str) -> list[str]:
        """Calls off whatever is not over, in one transaction."""
        unfinished = [step for step in await self.steps(flow_id) if not step.status.final]
        if not unfinished:
            return []
        cancelled, _ = await self._queue.cancel_jobs(job_ids=[job.id for job in unfinished])
        return cancelled

    async def retry(self, flow_id: str, actor: str) -> list[str]:
        """Dead steps go back to their queues, each by itself; the ids are of those that this call sent there."""
        dead = await self._all(JobFilter(parent_id=flow_id, statuses=(JobStatus.DEAD,)))
        steps = await self.steps(flow_id)
        ids = {step.id for step in steps}
        if dead:
            _refuse_given_up(flow_id, steps)
        retried = []
        for job in dead:
            if job.id not in ids:
                continue
            with suppress(InvalidTransition, JobNotFound):  # somebody else retried it meanwhile, or removed it
                await self._queue.retry_job(job.id, actor=actor)
                retried.append(job.id)
        return retried

    def handle(self, job: Job) -> JobHandle[Any]:
        """The handle of a step."""
        return JobHandle(job.id, self._sending, lambda stored: self.read(job.type, stored))

    def read(self, job_type: str, stored: bytes | None) -> Any:
        """A stored result as its task is annotated; plain JSON where no task here has this name."""
        task = self._tasks.get(job_type)
        if task is not None:
            return task.signature.result.read(stored)
        return None if stored is None else read_json("result", stored)

    async def _goes_on(self, flow_id: str) -> bool:
        """Whether a step is not over yet; nearly always the first job found tells."""
        first = (await self._queue.list_jobs(JobFilter(parent_id=flow_id, statuses=_UNFINISHED), limit=1)).items
        if not first or step_of(first[0]):
            return bool(first)
        return any(not step.status.final for step in await self.steps(flow_id))

    async def _having(self, ids: Sequence[str]) -> list[Job]:
        found: list[Job] = []
        for first in range(0, len(ids), _PAGE):
            page = await self._queue.list_jobs(JobFilter(ids=ids[first : first + _PAGE]), limit=_PAGE)
            found += page.items
        return found

    async def _all(self, wanted: JobFilter) -> list[Job]:
        found: list[Job] = []
        cursor = None
        while True:
            page = await self._queue.list_jobs(wanted, limit=_PAGE, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found[::-1]


def no_such_flow(flow_id: str) -> JobNotFound:
    """In words of flows."""
    missing = JobNotFound(flow_id)
    missing.args = (f"no flow has the id {flow_id!r}; it was never enqueued here, or its steps were removed",)
    return missing


def _refuse_given_up(flow_id: str, steps: Sequence[Job]) -> None:
    """A flow that is over cannot be completed by a retry if a last step was stopped or called off."""
    given_up = [step for step in last_steps(steps) if step.status in _CALLED_OFF]
    if given_up and all(step.status.final for step in steps):
        raise InvalidArgument(
            "flow",
            f"{flow_id}: its step {step_name(given_up[0])} is {given_up[0].status} and cannot come back, so a retry "
            "would not bring the flow to its end; rerun() makes a new flow of what did not complete",
        )


def _refuse_another(steps: Sequence[Job], taken: Sequence[str], known: Sequence[Job]) -> None:
    flow_id = str(steps[0].parent_id)
    problem = what_is_another(flow_id, {step.id: step for step in steps}, known)
    if problem:
        duplicate = DuplicateJob(taken)
        duplicate.args = (f"flow {flow_id!r}: {problem}; nothing was stored. Give the flow another id",)
        raise duplicate
