"""The worker: how it starts and how it closes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Self

from longshore.core.errors import InvalidArgument, QueueClosed
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_name, check_number, check_tags, new_id
from longshore.runtime.executors.base import CANCEL_GRACE
from longshore.runtime.queue import Queue
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.worker_loop import WorkerLoop
from longshore.runtime.worker_options import Processor, WorkerOptions, checked, executor_for, queues_of, renewal

_LAST_WORDS = 10.0
"""Seconds a closing worker tries to reach its store after its grace is over."""


_first_id: str | None = None


def new_worker_id(pid: int) -> str:
    """A new id for a worker in the process with this pid on this machine."""
    return f"{socket.gethostname()[:100]}-{pid}-{new_id()}"


def name_first_worker(worker_id: str) -> None:
    """For a supervised process: gives its first worker an id that the supervisor knows."""
    global _first_id
    _first_id = worker_id


def _next_id() -> str:
    global _first_id
    given, _first_id = _first_id, None
    return given or new_worker_id(os.getpid())


class Worker:
    """Runs the jobs of a queue, at most `concurrency` at a time.

    `process` is an `async def` (run on this event loop), a `def` (run in threads) or an Executor. With `autorun` it
    begins at once where an event loop runs; `run()` begins it otherwise, and returns when it was closed. With
    `until_empty` it closes itself as soon as it finds nothing to claim and runs nothing any more.
    """

    def __init__(
        self,
        queue: Queue,
        process: Processor,
        *,
        concurrency: int = 1,
        lock_duration: Duration = 30,
        lock_renew_time: Duration | None = None,
        autorun: bool = True,
        tags: Sequence[str] = (),
        strategies: Mapping[str, Strategy] | None = None,
        sweep: bool = True,
        queues: Sequence[str] | None = None,
        id: str | None = None,
        cancel_grace: Duration = CANCEL_GRACE,
        poll_interval: Duration = 0.5,
        until_empty: bool = False,
    ) -> None:
        if not isinstance(queue, Queue):
            raise InvalidArgument("queue", f"must be a Queue, not {type(queue).__name__}")
        if queue.closed:
            raise QueueClosed(queue.words_when_closed)
        self.id = check_name("id", id if id is not None else _next_id())
        self.concurrency = check_number("concurrency", concurrency, least=1)
        lock_seconds = check_duration("lock_duration", lock_duration) / SECOND
        self._options = WorkerOptions(
            id=self.id,
            alone_with_its_id=id is None,
            concurrency=self.concurrency,
            queue=queue.name or "",
            queues=queues_of(queue, queues),
            tags=check_tags("tags", tags),
            lock_seconds=lock_seconds,
            renew_seconds=renewal(lock_seconds, lock_renew_time),
            cancel_grace=check_duration("cancel_grace", cancel_grace, positive=False) / SECOND,
            poll_seconds=check_duration("poll_interval", poll_interval) / SECOND,
            strategies=checked(strategies or {}),
            sweep=sweep,
            until_empty=until_empty,
        )
        self._executor = executor_for(process, self._options.cancel_grace)
        self._queue = queue
        queue.register_worker(self)
        self._loop: WorkerLoop | None = None
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        if autorun:
            with suppress(RuntimeError):  # no loop runs here: run() will begin it
                self._begin()

    @property
    def running(self) -> int:
        """How many jobs it runs now."""
        return 0 if self._loop is None else len(self._loop.job_tasks)

    async def run(self) -> None:
        """Works until it is closed; a second call waits for the same end, and one after the end returns at once.

        Cancelled, it closes the worker: running jobs are called off and handed back.
        """
        self._begin()
        if self._loop is not None:
            try:
                await asyncio.shield(self._loop.work)
            except asyncio.CancelledError:  # whoever no longer waits for it wants no worker that nobody waits for
                await self.close(grace=0)
                raise

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self) -> None:
        """On the loop that runs here, unless it has begun or was closed."""
        if self._loop is None and not self._closed:
            self._loop = WorkerLoop(self._queue.backend, self._executor, self._options)
            # by this, too, the work holds on to its worker, and to the queue that closes it, if nobody else does
            self._loop.work.add_done_callback(self._is_over)

    def _is_over(self, _: asyncio.Task[None]) -> None:
        self._closed = True

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Claims no more, lets running jobs end and records their outcomes; safe to call twice.

        Called by a job that it runs itself, it returns at once: the worker ends after that job.

        After `grace` seconds (None: however long it takes) running jobs are called off and handed back uncharged. With
        `force` they are dropped at once, and nothing is written any more: their leases run out.
        """
        patience = None if grace is None else check_duration("grace", grace, positive=False) / SECOND
        self._closed = True
        worker_loop = self._loop
        if worker_loop is None or worker_loop.over:
            return
        worker_loop.closing = True
        if not worker_loop.loop.is_running():
            worker_loop.forget()
        elif asyncio.get_running_loop() is not worker_loop.loop:
            there = asyncio.run_coroutine_threadsafe(self.close(force, grace=grace), worker_loop.loop)
            await asyncio.wrap_future(there)
        elif worker_loop.job_tasks.runs_the_caller():  # which ends before we do: it must not wait for us
            self._ending = worker_loop.loop.create_task(self._end(worker_loop, force, patience), context=Context())
        else:
            await self._end(worker_loop, force, patience)

    async def _end(self, worker_loop: WorkerLoop, force: bool, patience: float | None) -> None:
        if force:
            await worker_loop.abandon()
            return
        worker_loop.wake()
        if patience is not None:
            await asyncio.wait([worker_loop.work], timeout=patience)
            worker_loop.job_tasks.call_off(worker_loop.job_tasks.runs_where(lambda _: True), "stopping")
            await asyncio.wait([worker_loop.work], timeout=self._options.cancel_grace + _LAST_WORDS)
            if not worker_loop.work.done():  # it cannot even say that it gives them back: their leases run out
                await worker_loop.abandon()
        await asyncio.wait([worker_loop.work])
