"""The worker: start, run and close."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, Self

from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_name, check_names, check_number, check_tags, new_id
from longshore.runtime.executors.base import CANCEL_GRACE, Executor
from longshore.runtime.executors.event_loop import LoopExecutor
from longshore.runtime.executors.thread import ThreadExecutor
from longshore.runtime.leases import renew_interval
from longshore.runtime.queue import Queue
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker_loop import WorkerLoop, WorkerOptions
from longshore.safe_logging import logger

Processor = Callable[[RunningJob], Awaitable[Any]] | Callable[[RunningJob], Any] | Executor

_LAST_EXCHANGE = 10.0
"""Seconds for which a closing worker tries to reach its store after its grace period."""

_log = logger("longshore.worker")

_first_id: str | None = None


def new_worker_id(pid: int) -> str:
    """Return a new worker id for the process with this pid on this machine."""
    return f"{socket.gethostname()[:100]}-{pid}-{new_id()}"


def name_first_worker(worker_id: str) -> None:
    """Give the first worker of a supervised process an id that the supervisor knows."""
    global _first_id
    _first_id = worker_id


def _next_id() -> str:
    global _first_id
    given, _first_id = _first_id, None
    return given or new_worker_id(os.getpid())


def renew_seconds(lock_seconds: float, renew_time: Duration | None) -> float | None:
    """Return the seconds between renewals; None (never) unless 0 < lock_renew_time < lock_duration."""
    if renew_time is None:
        return renew_interval(lock_seconds)
    seconds = check_duration("lock_renew_time", renew_time, positive=False) / SECOND
    if seconds >= lock_seconds:
        _log.warning("lock_renew_time (%g s) is not below lock_duration (%g s); no renewal", seconds, lock_seconds)
    return seconds if 0 < seconds < lock_seconds else None


def _queues_to_claim(queue: Queue, queues: Sequence[str] | None) -> Sequence[str] | None:
    """Return the queues to claim from; None means all."""
    if queues is None:
        return None if queue.name is None else (queue.name,)
    names = check_names("queues", queues)
    if not names:
        raise InvalidArgument("queues", "must name at least one queue; omit it to claim from all queues")
    if queue.name is not None and set(names) != {queue.name}:
        raise InvalidArgument(
            "queues", f"must be [{queue.name!r}], the queue of this Queue; pass Queue(backend) to claim from others"
        )
    return names


def _executor_for(process: Processor, cancel_grace: float) -> Executor:
    """Return the given executor, or the executor that fits the function."""
    if isinstance(process, Executor):
        if process.closed:
            raise InvalidArgument("process", "is an executor that was closed with its worker; create a new one")
        return process
    if not callable(process):
        raise InvalidArgument("process", f"must be a function or an Executor, not {type(process).__name__}")
    if inspect.iscoroutinefunction(process) or inspect.iscoroutinefunction(getattr(process, "__call__", None)):  # noqa: B004  # an object whose call is async
        return LoopExecutor(process)
    return ThreadExecutor(process, cancel_grace=cancel_grace)


class Worker:
    """Run the jobs of a queue, at most `concurrency` at a time. See docs/worker.md.

    `process` is an `async def` (run on this event loop), a `def` (run in threads) or an Executor. With `autorun`, the
    worker starts at once inside an event loop; otherwise `run()` starts it, and returns after `close()`. With
    `until_empty`, the worker closes itself when it runs no job and finds none to claim.
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
        self.id = check_name("id", id if id is not None else _next_id())
        self.concurrency = check_number("concurrency", concurrency, least=1)
        lock_seconds = check_duration("lock_duration", lock_duration) / SECOND
        for name, strategy in (strategies or {}).items():
            if not callable(strategy):
                raise InvalidArgument(f"strategies[{name!r}]", f"must be a function, not {type(strategy).__name__}")
        self._options = WorkerOptions(
            id=self.id,
            unique_id=id is None,
            concurrency=self.concurrency,
            queue=queue.name or "",
            queues=_queues_to_claim(queue, queues),
            tags=check_tags("tags", tags),
            lock_seconds=lock_seconds,
            renew_seconds=renew_seconds(lock_seconds, lock_renew_time),
            cancel_grace=check_duration("cancel_grace", cancel_grace, positive=False) / SECOND,
            poll_seconds=check_duration("poll_interval", poll_interval) / SECOND,
            strategies=dict(strategies or {}),
            sweep=sweep,
            until_empty=until_empty,
        )
        self._executor = _executor_for(process, self._options.cancel_grace)
        self._queue = queue
        queue.register_worker(self)
        self._loop: WorkerLoop | None = None
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        if autorun:
            with suppress(RuntimeError):  # no event loop here: run() starts the worker
                self._begin()

    @property
    def running(self) -> int:
        """The number of jobs that run now."""
        return 0 if self._loop is None else len(self._loop.job_tasks.attempts)

    async def run(self) -> None:
        """Run until the worker is closed. A second call waits for the same end.

        If you cancel this call, the worker closes: running jobs are cancelled and released to their queue.
        """
        self._begin()
        if self._loop is not None:
            try:
                await asyncio.shield(self._loop.work)
            except asyncio.CancelledError:  # the worker must not outlive its caller
                await self.close(grace=0)
                raise

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self) -> None:
        """Start the worker's loop on the running event loop, unless it was started or closed before."""
        if self._loop is None and not self._closed:
            self._loop = WorkerLoop(self._queue.backend, self._executor, self._options, owner=self)

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Stop claiming, let running jobs end and settle them. You can call it twice.

        A job may close its own worker: the call returns at once, and the worker ends after that job.

        After `grace` seconds (None: no limit) running jobs are cancelled and released; the attempt is not counted. With
        `force`, running jobs are dropped at once and nothing is written: their leases expire.
        """
        timeout = None if grace is None else check_duration("grace", grace, positive=False) / SECOND
        self._closed = True
        worker_loop = self._loop
        if worker_loop is None or worker_loop.ended:
            return
        worker_loop.closing = True
        if not worker_loop.loop.is_running():
            worker_loop.forget()
        elif asyncio.get_running_loop() is not worker_loop.loop:
            there = asyncio.run_coroutine_threadsafe(self.close(force, grace=grace), worker_loop.loop)
            await asyncio.wrap_future(there)
        elif worker_loop.job_tasks.runs_the_caller():  # the worker waits for the job, so the job must not wait
            self._ending = worker_loop.loop.create_task(self._end(worker_loop, force, timeout), context=Context())
        else:
            await self._end(worker_loop, force, timeout)

    async def _end(self, worker_loop: WorkerLoop, force: bool, timeout: float | None) -> None:
        if force:
            await worker_loop.abandon()
            return
        worker_loop.wake()
        if timeout is not None:
            await asyncio.wait([worker_loop.work], timeout=timeout)
            worker_loop.job_tasks.stop(list(worker_loop.job_tasks.attempts.values()), "stopping")
            await asyncio.wait([worker_loop.work], timeout=self._options.cancel_grace + _LAST_EXCHANGE)
            if not worker_loop.work.done():  # it could not release them; their leases expire
                await worker_loop.abandon()
        await asyncio.wait([worker_loop.work])
