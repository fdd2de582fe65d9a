"""`queue.sync`: the operations of a Queue for code without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from longshore.backends.base import Backend, Outcome
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job, JobEvent
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.times import Duration
from longshore.runtime import background
from longshore.runtime.events import EventListener, place_now
from longshore.runtime.job_options import AddOptions, AnySpec
from longshore.runtime.queue import Queue
from longshore.runtime.streams import JobStream

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    verb: Callable[Concatenate[Queue, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncQueue, P], R]:
    """The same verb, with the same arguments, done when it returns."""

    @wraps(verb)
    def waiting(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return background.run(verb(self.queue, *args, **kwargs))

    return waiting


class SyncQueue:
    """The verbs of a Queue, blocking: for Django, Flask and scripts. Inside an event loop use the Queue itself."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    @property
    def name(self) -> str | None:
        """The queue's name; None for all queues."""
        return self.queue.name

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.queue.closed

    # -- a job comes in

    @overload
    def add(
        self,
        type: str,
        data: Any = None,
        *,
        repeat: None = None,
        connection: object = None,
        **options: Unpack[AddOptions],
    ) -> Job: ...

    @overload
    def add(self, type: str, data: Any = None, *, repeat: Repeat, **options: Unpack[AddOptions]) -> Schedule: ...

    def add(self, type: str, data: Any = None, *, connection: object = None, **options: Any) -> Job | Schedule:
        """Stores one job and returns it as stored; see `Queue.add`. A connection given is used in this thread only."""
        adding: Coroutine[Any, Any, Job] = self.queue.add(type, data, connection=connection, **options)
        return _run_with(connection, adding)

    def add_bulk(self, specs: Iterable[AnySpec], *, connection: object = None) -> list[Job]:
        """Stores many jobs in one transaction, all of them or none; see `Queue.add_bulk`."""
        return _run_with(connection, self.queue.add_bulk(specs, connection=connection))

    def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        """Stores all of them or none, and returns the ids in input order."""
        return _run_with(connection, self.queue.enqueue_jobs(jobs, connection=connection))

    enqueue_job = _blocking(Queue.enqueue_job)
    accept_jobs = _blocking(Queue.accept_jobs)

    # -- a worker takes it and keeps it

    def stream_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        max_assigned_jobs: int = 10,
        *,
        lease: Duration | None = 30,
        free_disowned: bool = False,
    ) -> SyncStream:
        """Batches of jobs, pushed as they come: use it in a `with`, then in a `for`."""
        stream = self.queue.stream_jobs(assignee_id, tags, max_assigned_jobs, lease=lease, free_disowned=free_disowned)
        return SyncStream(stream, self.queue.backend)

    dequeue_jobs = _blocking(Queue.dequeue_jobs)
    extend_leases = _blocking(Queue.extend_leases)
    release_lease = _blocking(Queue.release_lease)
    set_progress = _blocking(Queue.set_progress)
    append_log = _blocking(Queue.append_log)
    save_checkpoint = _blocking(Queue.save_checkpoint)

    # -- it ends

    complete_job = _blocking(Queue.complete_job)
    fail_job = _blocking(Queue.fail_job)
    bury_job = _blocking(Queue.bury_job)
    stop_job = _blocking(Queue.stop_job)
    stop_job_with_retry = _blocking(Queue.stop_job_with_retry)
    mark_job_unknown_stopped = _blocking(Queue.mark_job_unknown_stopped)
    update_job_status = _blocking(Queue.update_job_status)
    settle_jobs = _blocking(Queue.settle_jobs)

    # -- somebody calls it off, or its worker vanishes

    cancel_jobs = _blocking(Queue.cancel_jobs)
    acknowledge_cancellation = _blocking(Queue.acknowledge_cancellation)
    mark_worker_unresponsive = _blocking(Queue.mark_worker_unresponsive)
    reclaim_expired_leases = _blocking(Queue.reclaim_expired_leases)
    time_out_cancellations = _blocking(Queue.time_out_cancellations)
    reset_running_jobs = _blocking(Queue.reset_running_jobs)

    # -- somebody looks

    get_job = _blocking(Queue.get_job)
    explain = _blocking(Queue.explain)
    list_jobs = _blocking(Queue.list_jobs)
    get_jobs = _blocking(Queue.get_jobs)
    get_job_counts = _blocking(Queue.get_job_counts)
    get_job_stats = _blocking(Queue.get_job_stats)
    count_jobs = _blocking(Queue.count_jobs)
    read_logs = _blocking(Queue.read_logs)
    read_events = _blocking(Queue.read_events)
    wait_for_change = _blocking(Queue.wait_for_change)

    def on(self, event: str, listener: EventListener) -> Callable[[], None]:
        """Calls the listener, a plain function, with every event of this name, in another thread; see `Queue.on`."""
        if inspect.iscoroutinefunction(listener):
            raise InvalidArgument("listener", "must be a plain function here; an async one goes with queue.on()")

        self.queue._check_listener(event, listener)
        place = place_now(self.queue.backend)

        async def listening() -> Callable[[], None]:
            return self.queue._listen_from(place, event, _Ear(listener))

        return background.run(listening())

    # -- an operator acts

    retry_job = _blocking(Queue.retry_job)
    retry_jobs = _blocking(Queue.retry_jobs)
    promote_job = _blocking(Queue.promote_job)
    remove_job = _blocking(Queue.remove_job)
    clean = _blocking(Queue.clean)
    empty = _blocking(Queue.empty)
    delete_jobs = _blocking(Queue.delete_jobs)
    pause = _blocking(Queue.pause)
    resume = _blocking(Queue.resume)
    pause_queue = _blocking(Queue.pause_queue)
    resume_queue = _blocking(Queue.resume_queue)
    set_limits = _blocking(Queue.set_limits)
    get_limits = _blocking(Queue.get_limits)
    list_queues = _blocking(Queue.list_queues)

    # -- time passes

    put_schedule = _blocking(Queue.put_schedule)
    get_schedules = _blocking(Queue.get_schedules)
    get_schedule = _blocking(Queue.get_schedule)
    preview_schedule = _blocking(Queue.preview_schedule)
    pause_schedule = _blocking(Queue.pause_schedule)
    resume_schedule = _blocking(Queue.resume_schedule)
    run_schedule = _blocking(Queue.run_schedule)
    remove_schedule = _blocking(Queue.remove_schedule)
    fire_due_schedules = _blocking(Queue.fire_due_schedules)
    announce_due_jobs = _blocking(Queue.announce_due_jobs)
    cleanup_expired_jobs = _blocking(Queue.cleanup_expired_jobs)
    set_retention = _blocking(Queue.set_retention)
    apply_retention = _blocking(Queue.apply_retention)
    heartbeat_worker = _blocking(Queue.heartbeat_worker)
    list_workers = _blocking(Queue.list_workers)

    # -- it is over

    close = _blocking(Queue.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Ear:
    """A listener in a thread of its own, which ends when nobody has this object any more."""

    def __init__(self, listener: EventListener) -> None:
        self._listener = listener
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        weakref.finalize(self, self._calls.put, None).atexit = False
        threading.Thread(target=_call_each, args=(self._calls,), name="longshore-listener", daemon=True).start()

    async def __call__(self, event: JobEvent) -> None:
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[None] = loop.create_future()
        listener = self._listener

        def call() -> None:
            error: Exception | None = None
            try:
                listener(event)
            except Exception as raised:
                error = raised
            except BaseException as raised:  # the thread goes on, and the listener, too
                error = RuntimeError(f"the listener raised {type(raised).__name__}")
            loop.call_soon_threadsafe(_settle, heard, error)

        self._calls.put(call)
        await heard


def _call_each(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it knows its event, which may be large


def _settle(heard: asyncio.Future[None], error: Exception | None) -> None:
    if heard.done():
        return
    if error is None:
        heard.set_result(None)
    else:
        heard.set_exception(error)


class SyncStream:
    """A JobStream for code without an event loop; it claims and renews in the background."""

    def __init__(self, stream: JobStream, backend: Backend) -> None:
        self._stream = stream
        self._backend = backend
        self._turn = threading.Lock()
        self._coming: Future[list[Job] | None] | None = None
        """A batch that was asked for, by a thread that did not stay to take it."""

    def __enter__(self) -> Self:
        background.run(self._stream.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __iter__(self) -> Iterator[list[Job]]:
        return self

    def __next__(self) -> list[Job]:
        with self._turn:
            coming, self._coming = self._coming or background.begin(self._next()), None
            try:
                batch = coming.result()
            except BaseException:
                # one raised into this thread, by a signal, say: the batch is left to the next call and not lost
                if not (coming.done() and coming.exception()):
                    self._coming = coming
                raise
        if batch is None:
            raise StopIteration
        return batch

    async def _next(self) -> list[Job] | None:
        """The next batch, or None at the end: StopAsyncIteration would not pass through a future."""
        return await anext(self._stream, None)

    def end(self) -> None:
        """Claims no more, and gives back what was not handed over."""
        background.run(self._end())

    async def _end(self) -> None:
        await self._stream.end()
        coming, self._coming = self._coming, None
        if coming is not None and (batch := await asyncio.wrap_future(coming)):
            reason = "the stream ended before the job was handed over"
            await self._backend.settle_jobs([Outcome(job.id, job.lease, "fail", error=reason) for job in batch])


def _run_with(connection: object, work: Coroutine[Any, Any, R]) -> R:
    """Runs the work in the background, or, if it uses a connection of the caller's, in the caller's own thread."""
    if connection is None:
        return background.run(work)
    if inspect.iscoroutinefunction(getattr(connection, "commit", None)):
        work.close()
        raise InvalidArgument(
            "connection", f"is asynchronous ({type(connection).__name__}): await queue.add(…) where it was opened"
        )
    return _run_here(work)


def _run_here(work: Coroutine[Any, Any, R]) -> R:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with asyncio.Runner(
            loop_factory=asyncio.new_event_loop
        ) as runner:  # leaves the thread's own loop, if any, alone
            return runner.run(work)
    work.close()
    raise RuntimeError("a blocking call inside an event loop would stop it; use the same verb with await")
