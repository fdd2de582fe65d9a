"""Enqueues calls of tasks: creates jobs, runs the middleware and stores them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from longshore.app.eager import EagerMode
from longshore.app.middleware import Middleware, Wait, blocking, enqueue_within, on_this_loop, run_sync
from longshore.app.results import JobHandle, ResultWaiter
from longshore.app.task import Call, Task
from longshore.core.errors import DuplicateJob
from longshore.core.job import Job
from longshore.runtime.queue import Queue

R = TypeVar("R")
Enqueue = Callable[[Sequence[Job]], Awaitable[list[str]]]


class Enqueuer:
    """Enqueues calls of tasks, from an event loop or from a thread without one."""

    def __init__(self, queue: Queue, layers: Sequence[Middleware]) -> None:
        self.layers = layers
        self.eager = EagerMode(layers)
        self.queue = queue
        self.results = ResultWaiter(queue)

    def use(self, queue: Queue) -> None:
        """Use this queue from now on: a harbor that is entered again opens a new one."""
        self.queue = self.results.queue = queue

    async def send(
        self, calls: Sequence[Call[R]], connection: object = None, wait: Wait = on_this_loop
    ) -> list[JobHandle[R]]:
        """Store all or none."""
        jobs = [call.job() for call in calls]
        if self.eager.on:
            return [await self.eager.run(call.task, job, wait) for call, job in zip(calls, jobs, strict=True)]
        enqueue = partial(self.queue.enqueue_jobs, connection=connection)
        store = partial(_store, enqueue if wait is on_this_loop else self.enqueue_by(connection, wait))
        stored = await (enqueue_within(self.layers, jobs, store, wait) if self.layers else store(jobs))
        return [
            JobHandle(job_id, self.results, call.task.signature.result.read, replayed=replayed)
            for call, (job_id, replayed) in zip(calls, stored, strict=True)
        ]

    def send_sync(self, calls: Sequence[Call[R]], connection: object = None) -> list[JobHandle[R]]:
        """Like `send`, but block the calling thread, which alone uses the connection."""
        return run_sync(self.send(calls, connection, blocking))

    def enqueue_by(self, connection: object, wait: Wait) -> Enqueue:
        """Return the function that stores jobs: awaited on this event loop, or blocking the thread."""

        async def enqueue(jobs: Sequence[Job]) -> list[str]:
            return self.queue.sync.enqueue_jobs(jobs, connection=connection)

        return enqueue if wait is blocking else partial(self.queue.enqueue_jobs, connection=connection)

    def handle(self, task: Task[..., R], job_id: str) -> JobHandle[R]:
        """Return the handle of a stored job."""
        return JobHandle(job_id, self.results, task.signature.result.read)


async def _store(enqueue: Enqueue, jobs: Sequence[Job]) -> list[tuple[str, bool]]:
    """Store all or none; return the id of each, and whether that job existed before.

    An id in use returns the existing job, as `Queue.add` does.
    """
    fresh: dict[str, Job] = {}
    for job in jobs:
        fresh.setdefault(job.id, job)
    known: set[str] = set()
    stored: list[str] = []
    while fresh:
        try:
            stored = await enqueue(list(fresh.values()))
            break
        except DuplicateJob as error:
            taken = fresh.keys() & set(error.job_ids)
            if not taken:
                raise
            known |= taken
            for job_id in taken:
                del fresh[job_id]
    ids = dict(zip(fresh, stored, strict=True))
    answers = []
    for job in jobs:
        stored_id = ids.get(job.id, job.id)
        answers.append((stored_id, job.id in known or stored_id != job.id))
        known.add(job.id)  # a later job of this batch with the same id repeats it
    return answers
