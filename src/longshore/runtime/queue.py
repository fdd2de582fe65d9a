"""`Queue`: the jobs of one queue or of all, with streams and listeners; and `queue.sync`, its blocking form."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property, wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from longshore.backends.base import Backend, Outcome
from longshore.core.errors import InvalidArgument, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import DEFAULT_QUEUE, Job, JobEvent
from longshore.core.job_options import AnySpec, JobOptions, job_from, jobs_from, with_options
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule, schedule_errors, schedule_from
from longshore.core.status import JobStatus
from longshore.core.times import Duration
from longshore.runtime import background, job_listing
from longshore.runtime.events import EventListener, Follower, check_event, end_of_log
from longshore.runtime.job_listing import StatusLike
from longshore.runtime.queue_operations import QueueOperations
from longshore.runtime.streams import JobStream

_POSITION = re.compile(r"jobs(\[\d+\])(\..*)")
"""The field of a refused job in a batch, as the store names it."""
_CLOSING = "the queue was closed before the job was delivered"


class RegisteredWorker(Protocol):
    """A Worker as its queue uses it."""

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Stop the worker."""
        ...


class Queue(QueueOperations):
    """Adds, reads and streams the jobs of one queue; without a name, of all queues. See docs/queue.md.

    `queue = Queue(connect("sqlite:///jobs.db"), "mail")`. A job of another queue is refused with InvalidArgument, and a
    job without a queue takes this one's name. Every operation may be called from the event loop of any thread;
    `queue.sync` has the same operations for code without one. The last open Queue on a backend closes it.
    """

    def __init__(self, backend: Backend, name: str | None = None) -> None:
        super().__init__(backend, name)
        self._streams: WeakSet[JobStream] = WeakSet()
        self._workers: WeakSet[RegisteredWorker] = WeakSet()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Queue {self.name or 'of all jobs'}{', closed' if self.closed else ''}>"

    @cached_property
    def sync(self) -> SyncQueue:
        """The same operations for code without an event loop: each call blocks until it is done."""
        return SyncQueue(self)

    # -- enqueue

    @overload
    async def add(
        self,
        type: str,
        data: Any = None,
        *,
        repeat: None = None,
        connection: object = None,
        **options: Unpack[JobOptions],
    ) -> Job: ...

    @overload
    async def add(self, type: str, data: Any = None, *, repeat: Repeat, **options: Unpack[JobOptions]) -> Schedule: ...

    @with_options(JobOptions)
    async def add(
        self,
        type: str,
        data: Any = None,
        *,
        repeat: Repeat | None = None,
        connection: object = None,
        **options: Unpack[JobOptions],
    ) -> Job | Schedule:
        """Store one job whose data is JSON, and return it as stored.

        A `job_id` or `idempotency_key` that is in use returns the existing job unchanged. `run_at` overrides `delay`.
        `attempts` is the total number of attempts (0: no limit), with `backoff` or the worker's `retry_strategy`
        between them. `remove_on_complete` and `remove_on_fail` take True, or how many to keep. With `hold`, the job
        waits for `accept_jobs`. With `repeat`, a schedule is stored and returned instead. An existing schedule with
        this `job_id` is changed, and stays paused if it was. With `connection`, the job is stored in the caller's open
        transaction, and exists only if that commits.
        """
        job = job_from(type, data, queue=self.name, **options)
        if repeat is None:
            (stored,) = await self._store([job], connection, "")
            return self._scope.seen(stored)  # a job of another queue has this id: nothing was stored
        self._open()
        if connection is not None:
            raise InvalidArgument("connection", "cannot be combined with repeat, which stores a schedule")
        schedule = schedule_from(job, repeat, options.get("job_id"))
        with schedule_errors("job_id"):
            return await self.put_schedule(schedule, keep_pause=True)

    async def add_bulk(self, specs: Iterable[AnySpec], *, connection: object = None) -> list[Job]:
        """Store many jobs in one transaction, all or none, and return them in the order given.

        A spec is a dict with `type`, `data` and the options of `add` except `repeat`, or `(type, data, options)`.
        """
        jobs, chosen = jobs_from(specs, self.name)
        self._open()
        if chosen:
            await self._scope.check_all(chosen)
        return await self._store(jobs, connection, "specs")

    async def _store(self, jobs: Sequence[Job], connection: object, field: str) -> list[Job]:
        """Store all or none; return each as stored, or the existing job with its key or id. `field` names the batch."""
        try:
            return await self._open().add_jobs(jobs, connection=connection)
        except InvalidArgument as error:
            found = _POSITION.match(error.field)
            if found is None:
                raise
            named = f"{field}{found[1]}{found[2]}" if field else found[2].removeprefix(".")
            raise InvalidArgument(named, error.problem) from None

    # -- claim and renew

    def stream_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        max_assigned_jobs: int = 10,
        *,
        lease: Duration | None = 30,
        free_disowned: bool = False,
    ) -> JobStream:
        """Return a stream of job batches: `async with` it, then `async for` over it.

        It never holds more than `max_assigned_jobs`, renews their leases until they are settled, and releases
        undelivered jobs at its end. `acknowledge_cancellation(job_id, False)` keeps the job's slot taken until its
        worker is declared unresponsive or the stream ends; `free_disowned` frees the slot at once.
        """
        self._open()
        stream = JobStream(
            self.backend,
            self._registry,
            assignee_id,
            tags,
            max_assigned_jobs,
            lease=lease,
            queues=self._scope.queues(None),
            free_disowned=free_disowned,
        )
        self._streams.add(stream)
        return stream

    def register_worker(self, worker: RegisteredWorker) -> None:
        """Close this worker with the queue; every Worker registers itself."""
        self._open()
        self._workers.add(worker)

    # -- read

    async def get_jobs(
        self, statuses: StatusLike | Iterable[StatusLike], start: int = 0, end: int = -1, asc: bool = False
    ) -> list[Job]:
        """Return the jobs in these statuses (JobStatus, or BullMQ's words) from `start` to `end`; -1 is the last.

        Newest first, or with `asc` oldest first.
        """
        backend = self._open()
        wanted = job_listing.requested_statuses("statuses", statuses)
        return await job_listing.jobs_in_range(backend, self.name, wanted, start, end, asc=asc)

    async def get_job_counts(self) -> dict[str, int]:
        """Count the jobs by each of BullMQ's words; `waiting` repeats PENDING."""
        return await job_listing.count_by_word(self._open(), self.name)

    def on(self, event: str, listener: EventListener) -> Callable[[], None]:
        """Call the listener with every event of this name ("*": any) from now on; return a function that ends it.

        The listener gets every event committed after this call returns. It runs in the running event loop, and may be a
        plain or an async function. All listeners of this queue get one job's events in order. Raises BackendUnavailable
        if the store does not answer within a second.
        """
        self._check_listener(event, listener)
        if background.running_loop() is None:
            raise RuntimeError("on() needs a running event loop; without one, use queue.sync.on()")
        return self._listen_from(end_of_log(self.backend), event, listener)

    def _listen_from(self, cursor: str, event: str, listener: EventListener) -> Callable[[], None]:
        """Like `on`, from this cursor in the event log."""
        loop = asyncio.get_running_loop()
        self._followers = [follower for follower in self._followers if not follower.stopped]
        follower = next((follower for follower in self._followers if follower.loop is loop), None)
        if follower is None:
            follower = Follower(self.backend, self.name, cursor)
            self._followers.append(follower)
        listening = follower.listen(event, listener, cursor)
        return lambda: follower.leave(listening)

    def _check_listener(self, event: str, listener: EventListener) -> None:
        self._open()
        check_event(event)
        if not callable(listener):
            raise InvalidArgument("listener", f"must be a function that takes a JobEvent, not {listener!r}")

    # -- operate

    async def retry_jobs(
        self, filter: JobFilter | None = None, *, dry_run: bool = False, reset: bool = True, actor: str = ""
    ) -> int:
        """Retry the matching dead jobs, by default all, and return how many; with `dry_run` only count them."""
        backend = self._open()
        wanted = self._scope.filter(filter or JobFilter())
        return await job_listing.retry_jobs(backend, wanted, dry_run=dry_run, reset=reset, actor=actor)

    async def remove_job(self, job_id: str) -> None:
        """Remove a waiting or final job permanently. A running job is refused; an unknown id is ignored."""
        try:
            job = await self.get_job(job_id)
        except JobNotFound:
            return
        await job_listing.remove_job(self.backend, job)

    async def clean(self, grace: Duration, status: StatusLike = JobStatus.COMPLETED, limit: int = 0) -> list[str]:
        """Remove jobs of this status that ended (or were created, if not final) at least `grace` ago; return the ids.

        The oldest first, at most `limit` (0: all). A status of running jobs is refused.
        """
        return await job_listing.clean(self._open(), self.name, grace, status, limit)

    async def empty(self) -> None:
        """Remove every waiting job. Running jobs, final jobs and schedules stay."""
        await job_listing.empty(self._open(), self.name)

    async def pause(self) -> None:
        """Stop claims from this queue in every process until it is resumed; without a name, from all queues."""
        for queue in await self._all_queues():
            await self.backend.pause_queue(queue)

    async def resume(self) -> None:
        """Undo `pause`."""
        for queue in await self._all_queues():
            await self.backend.resume_queue(queue)

    async def _all_queues(self) -> list[str]:
        backend = self._open()
        if self.name is not None:
            return [self.name]
        return sorted({str(DEFAULT_QUEUE), *(queue.name for queue in await backend.list_queues())})

    # -- close

    async def close(self) -> None:
        """Refuse new calls, close its workers, streams and listeners, and close the backend with the last queue.

        Workers release their running jobs and the attempt is not counted; close the workers first to let jobs finish.
        You can call it twice: the second call waits for the first. Cancelling the caller does not stop the closing.
        """
        while (ended := self._ended) is not None:
            await asyncio.wait([asyncio.wrap_future(ended)])
            if not ended.cancelled():
                return
            if self._ended is ended:
                break
        self._ended = Future()
        self._closing = asyncio.create_task(self._end(self._ended))
        await asyncio.shield(self._closing)

    async def _end(self, ended: Future[None]) -> None:
        try:
            workers = [worker.close(grace=0) for worker in list(self._workers)]
            streams = [stream.end(_CLOSING) for stream in list(self._streams)]
            ends = await asyncio.gather(*workers, *streams, return_exceptions=True)
            followers, self._followers = self._followers, []
            for follower in followers:
                await follower.end()
            if self._registry.closed(self):
                await self.backend.close()
        except asyncio.CancelledError:  # the loop ended meanwhile: the next call closes
            ended.cancel()
            raise
        finally:
            if not ended.cancelled():
                ended.set_result(None)
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    operation: Callable[Concatenate[Queue, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncQueue, P], R]:
    """Return the blocking form of an operation of `Queue`, with the same arguments."""

    @wraps(operation)
    def waiting(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return background.run(operation(self.queue, *args, **kwargs))

    return waiting


class SyncQueue:
    """The blocking operations of a Queue, for Django, Flask and scripts. Inside an event loop use the Queue itself."""

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

    # -- enqueue

    @overload
    def add(
        self,
        type: str,
        data: Any = None,
        *,
        repeat: None = None,
        connection: object = None,
        **options: Unpack[JobOptions],
    ) -> Job: ...

    @overload
    def add(self, type: str, data: Any = None, *, repeat: Repeat, **options: Unpack[JobOptions]) -> Schedule: ...

    @with_options(JobOptions)
    def add(
        self,
        type: str,
        data: Any = None,
        *,
        repeat: Repeat | None = None,
        connection: object = None,
        **options: Unpack[JobOptions],
    ) -> Job | Schedule:
        """Store one job and return it as stored; see `Queue.add`. A connection is used in the calling thread only."""
        given: Any = {"repeat": repeat, "connection": connection, **options}
        adding: Coroutine[Any, Any, Job | Schedule] = self.queue.add(type, data, **given)
        return _run_with(connection, adding)

    def add_bulk(self, specs: Iterable[AnySpec], *, connection: object = None) -> list[Job]:
        """Store many jobs in one transaction, all or none; see `Queue.add_bulk`."""
        return _run_with(connection, self.queue.add_bulk(specs, connection=connection))

    def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        """Store all or none, and return the ids in input order."""
        return _run_with(connection, self.queue.enqueue_jobs(jobs, connection=connection))

    enqueue_job = _blocking(Queue.enqueue_job)
    accept_jobs = _blocking(Queue.accept_jobs)

    # -- claim and renew

    def stream_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        max_assigned_jobs: int = 10,
        *,
        lease: Duration | None = 30,
        free_disowned: bool = False,
    ) -> SyncStream:
        """Return a stream of job batches: use it in a `with`, then in a `for`."""
        stream = self.queue.stream_jobs(assignee_id, tags, max_assigned_jobs, lease=lease, free_disowned=free_disowned)
        return SyncStream(stream, self.queue.backend)

    dequeue_jobs = _blocking(Queue.dequeue_jobs)
    extend_leases = _blocking(Queue.extend_leases)
    release_lease = _blocking(Queue.release_lease)
    set_progress = _blocking(Queue.set_progress)
    append_log = _blocking(Queue.append_log)
    save_checkpoint = _blocking(Queue.save_checkpoint)

    # -- settle

    complete_job = _blocking(Queue.complete_job)
    fail_job = _blocking(Queue.fail_job)
    bury_job = _blocking(Queue.bury_job)
    stop_job = _blocking(Queue.stop_job)
    stop_job_with_retry = _blocking(Queue.stop_job_with_retry)
    mark_job_unknown_stopped = _blocking(Queue.mark_job_unknown_stopped)
    update_job_status = _blocking(Queue.update_job_status)
    settle_jobs = _blocking(Queue.settle_jobs)

    # -- cancel and recover

    cancel_jobs = _blocking(Queue.cancel_jobs)
    acknowledge_cancellation = _blocking(Queue.acknowledge_cancellation)
    mark_worker_unresponsive = _blocking(Queue.mark_worker_unresponsive)
    reclaim_expired_leases = _blocking(Queue.reclaim_expired_leases)
    time_out_cancellations = _blocking(Queue.time_out_cancellations)
    reset_running_jobs = _blocking(Queue.reset_running_jobs)

    # -- read

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
        """Call the listener, a plain function, with every event of this name in another thread; see `Queue.on`."""
        if inspect.iscoroutinefunction(listener):
            raise InvalidArgument("listener", "must be a plain function here; pass an async one to queue.on()")

        self.queue._check_listener(event, listener)
        cursor = end_of_log(self.queue.backend)

        async def listening() -> Callable[[], None]:
            return self.queue._listen_from(cursor, event, _ListenerThread(listener))

        return background.run(listening())

    # -- operate

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

    # -- schedules, retention and workers

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

    # -- close

    close = _blocking(Queue.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ListenerThread:
    """A listener with a thread, which ends when this object is collected."""

    def __init__(self, listener: EventListener) -> None:
        self._listener = listener
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        weakref.finalize(self, self._calls.put, None).atexit = False
        threading.Thread(target=_call_each, args=(self._calls,), name="longshore-listener", daemon=True).start()

    async def __call__(self, event: JobEvent) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        listener = self._listener

        def call() -> None:
            error: Exception | None = None
            try:
                listener(event)
            except Exception as raised:
                error = raised
            except BaseException as raised:  # the thread and the listener continue
                error = RuntimeError(f"the listener raised {type(raised).__name__}")
            loop.call_soon_threadsafe(_settle, done, error)

        self._calls.put(call)
        await done


def _call_each(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it refers to its event, which may be large


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class SyncStream:
    """A JobStream for code without an event loop; it claims and renews in the background."""

    def __init__(self, stream: JobStream, backend: Backend) -> None:
        self._stream = stream
        self._backend = backend
        self._lock = threading.Lock()
        self._pending: Future[list[Job] | None] | None = None
        """A batch requested by a thread that was interrupted before it received it."""

    def __enter__(self) -> Self:
        background.run(self._stream.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __iter__(self) -> Iterator[list[Job]]:
        return self

    def __next__(self) -> list[Job]:
        with self._lock:
            pending, self._pending = self._pending or background.begin(self._next()), None
            try:
                batch = pending.result()
            except BaseException:
                # raised into this thread, for example by a signal handler: the batch is kept for the next call
                if not (pending.done() and pending.exception()):
                    self._pending = pending
                raise
        if batch is None:
            raise StopIteration
        return batch

    async def _next(self) -> list[Job] | None:
        """Return the next batch, or None at the end: StopAsyncIteration does not pass through a future."""
        return await anext(self._stream, None)

    def end(self) -> None:
        """Stop claiming, and release the jobs that were not delivered."""
        background.run(self._end())

    async def _end(self) -> None:
        await self._stream.end()
        pending, self._pending = self._pending, None
        if pending is not None and (batch := await asyncio.wrap_future(pending)):
            reason = "the stream ended before the job was delivered"
            await self._backend.settle_jobs([Outcome(job.id, job.lease, "fail", error=reason) for job in batch])


def _run_with(connection: object, work: Coroutine[Any, Any, R]) -> R:
    """Run the work in the background; with a connection of the caller, in the calling thread."""
    if connection is None:
        return background.run(work)
    if inspect.iscoroutinefunction(getattr(connection, "commit", None)):
        work.close()
        raise InvalidArgument(
            "connection", f"is asynchronous ({type(connection).__name__}); await queue.add(…) on its event loop instead"
        )
    background.refuse_in_event_loop(work)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # does not touch the thread's own loop
        return runner.run(work)
