"""Enqueues calls of tasks: they become jobs, pass the middleware, and are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from longshore.app.eager import EagerMode
from longshore.app.middleware import Middleware, at_once, blocking, enqueue_within, on_this_loop
from longshore.app.results import JobHandle, ResultWaiter
from longshore.app.task import Call, Task
from longshore.core.errors import DuplicateJob
from longshore.core.explain import Explanation
from longshore.core.job import Job
from longshore.runtime.queue import Queue

R = TypeVar("R")
Enqueue = Callable[[list[Job]], Awaitable[list[str]]]


class Enqueuer:
    """Enqueues calls of tasks, from an event loop or from a thread without one."""

    def __init__(self, queue: Queue, layers: Sequence[Middleware], eagerness: EagerMode) -> None:
        self._queue = queue
        self._layers = layers
        self._eagerness = eagerness
        self._waiter = ResultWaiter(queue)

    def use(self, queue: Queue) -> None:
        """Replaces the queue after the harbor was opened again."""
        self._queue = queue
        self._waiter = ResultWaiter(queue)

    async def send(self, calls: Sequence[Call[R]], connection: object = None) -> list[JobHandle[R]]:
        """Stores all of them or none."""
        jobs = [call.job() for call in calls]
        if self._eagerness.on:
            return [await self._eagerness.run(call.task, job) for call, job in zip(calls, jobs, strict=True)]

        async def enqueue(fresh: list[Job]) -> list[str]:
            return await self._queue.enqueue_jobs(fresh, connection=connection)

        stored = await enqueue_within(self._layers, jobs, lambda jobs: _store(jobs, enqueue), on_this_loop)
        return [self.handle(call.task, *one) for call, one in zip(calls, stored, strict=True)]

    def send_sync(self, calls: Sequence[Call[R]], connection: object = None) -> list[JobHandle[R]]:
        """Stores all of them or none; the calling thread is blocked, and its connection used by no other."""
        jobs = [call.job() for call in calls]
        if self._eagerness.on:
            return [self._eagerness.run_sync(call.task, job) for call, job in zip(calls, jobs, strict=True)]

        async def enqueue(fresh: list[Job]) -> list[str]:
            return self._queue.sync.enqueue_jobs(fresh, connection=connection)

        stored = at_once(enqueue_within(self._layers, jobs, lambda jobs: _store(jobs, enqueue), blocking))
        return [self.handle(call.task, *one) for call, one in zip(calls, stored, strict=True)]

    def handle(self, task: Task[..., R], job_id: str, replayed: bool = False) -> JobHandle[R]:
        """The handle of a stored job."""
        return JobHandle(job_id, self, task.signature.result.read, replayed=replayed)

    # -- what handles ask

    async def job(self, job_id: str) -> Job:
        """The job as it stands."""
        return await self._queue.get_job(job_id)

    async def ended(self, job_id: str, timeout: float | None) -> Job:
        """The job once it is final."""
        return await self._waiter.ended(job_id, timeout)

    async def explain(self, job_id: str) -> Explanation:
        """Why it is not running now."""
        return await self._queue.explain(job_id)

    async def cancel(self, job_id: str) -> bool:
        """Asks for its end."""
        cancelled, _ = await self._queue.cancel_jobs(job_ids=[job_id])
        return bool(cancelled)


async def _store(jobs: Sequence[Job], enqueue: Enqueue) -> list[tuple[str, bool]]:
    """Their ids in input order, each with whether that job was there already.

    An id that is taken already is answered by the job that has it, as `Queue.add` does.
    """
    fresh: dict[str, Job] = {}
    for job in jobs:
        fresh.setdefault(job.id, job)
    ids = {job_id: job_id for job_id in fresh}
    there: set[str] = set()
    while fresh:
        try:
            stored = await enqueue(list(fresh.values()))
        except DuplicateJob as error:
            taken = [job_id for job_id in error.job_ids if job_id in fresh]
            if not taken:
                raise
            there.update(taken)
            for job_id in taken:
                del fresh[job_id]
        else:
            ids.update(zip(fresh, stored, strict=True))
            break
    told = []
    for job in jobs:
        told.append((ids[job.id], job.id in there or ids[job.id] != job.id))
        there.add(job.id)  # for one that has the same id further on
    return told
