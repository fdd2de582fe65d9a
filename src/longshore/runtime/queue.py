"""`Queue`: a backend seen from one queue or all, with streams and listeners; and `queue.sync`, its blocking form."""

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
from longshore.runtime.events import EventListener, Follower, check_event, place_now
from longshore.runtime.job_listing import StatusLike
from longshore.runtime.queue_operations import QueueOperations
from longshore.runtime.streams import JobStream

_POSITION = re.compile(r"jobs(\[\d+\])(\..*)")
"""The field of a refused job in a batch, as the store names it."""
_CLOSING = "the queue was closed before the job was delivered"


class RegisteredWorker(Protocol):
    """A Worker, as its queue sees it."""

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Ends it."""
        ...


class Queue(QueueOperations):
    """Adds, reads and streams jobs. With a name it sees its own jobs, without one all of them.

    A job of another queue is refused with InvalidArgument, and a job that names no queue takes this one's name. Every
    operation may be called from the event loop of any thread; `queue.sync` has the same operations for code without
    one. The last open Queue on a backend closes it.
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
        """The same operations for code without an event loop: each call waits until it is done."""
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
        """Stores one job whose data is JSON, and returns it as stored.

        A `job_id` or `idempotency_key` that is in use returns the job that has it, and changes nothing. `run_at` wins
        over `delay`. `attempts` are attempts in all (0: no limit), with `backoff` or the worker's `retry_strategy`
        between them. `remove_on_complete` and `remove_on_fail` take True, or how many to keep. With `hold` the job
        waits for `accept_jobs`. With `repeat` a schedule is stored instead and returned: a new one, or the one with
        this `job_id`, changed, and still paused if it was. With `connection` the job is stored inside the caller's
        own open transaction, and exists if and only if that commits.
        """
        job = job_from(type, data, queue=self.name, **options)
        if repeat is None:
            (stored,) = await self._store([job], connection, "")
            return self._scope.seen(stored)  # a job of another queue has this id: then nothing was stored
        self._open()
        if connection is not None:
            raise InvalidArgument("connection", "cannot be given with repeat: a schedule is stored on its own")
        schedule = schedule_from(job, repeat, options.get("job_id"))
        with schedule_errors("job_id"):
            return await self.put_schedule(schedule, keep_pause=True)

    async def add_bulk(self, specs: Iterable[AnySpec], *, connection: object = None) -> list[Job]:
        """Stores many jobs in one transaction, all of them or none, and returns them in the order given.

        A spec is a dict with `type`, `data` and the options of `add` but `repeat`, or `(type, data, options)`.
        """
        jobs, chosen = jobs_from(specs, self.name)
        self._open()
        if chosen:
            await self._scope.check_all(chosen)
        return await self._store(jobs, connection, "specs")

    async def _store(self, jobs: Sequence[Job], connection: object, field: str) -> list[Job]:
        """Stores all or none; returns each as stored, or the job that has its key or id. `field` names the batch."""
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
        """Batches of jobs, pushed as they come: `async with` it, then `async for` over it.

        It never holds more than `max_assigned_jobs`, renews what it holds until that is settled, and gives back what
        was not handed over when it ends. `acknowledge_cancellation(job_id, False)` keeps the slot of the job taken
        until its worker is declared unresponsive or the stream ends; `free_disowned` frees the slot at once.
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
        """Closes this worker with the queue; every Worker registers itself."""
        self._open()
        self._workers.add(worker)

    # -- read

    async def get_jobs(
        self, statuses: StatusLike | Iterable[StatusLike], start: int = 0, end: int = -1, asc: bool = False
    ) -> list[Job]:
        """Jobs in these statuses (JobStatus, or BullMQ's words), from `start` to `end`, both included; -1 is the last.

        Newest first, or with `asc` oldest first.
        """
        backend = self._open()
        wanted = job_listing.standings("statuses", statuses)
        return await job_listing.jobs_in_range(backend, self.name, wanted, start, end, asc=asc)

    async def get_job_counts(self) -> dict[str, int]:
        """Counts the jobs by each of BullMQ's words; `waiting` repeats PENDING."""
        return await job_listing.count_by_word(self._open(), self.name)

    def on(self, event: str, listener: EventListener) -> Callable[[], None]:
        """Calls the listener with every event of this name ("*": of any) from now on, whichever process it happens in.

        When it returns, the listener gets every event committed after that. Raises BackendUnavailable if the store does
        not answer within a second. The listener is called in the running event loop, and may be a plain or an async
        function. All listeners of this queue get one job's events in order. Returns a function that ends it.
        """
        self._check_listener(event, listener)
        if background.running_loop() is None:
            raise RuntimeError("on() needs a running event loop to call the listener in; use queue.sync.on()")
        return self._listen_from(place_now(self.backend), event, listener)

    def _listen_from(self, place: str, event: str, listener: EventListener) -> Callable[[], None]:
        """Like `on`, from this cursor in the event log."""
        loop = asyncio.get_running_loop()
        self._followers = [follower for follower in self._followers if not follower.over]
        follower = next((follower for follower in self._followers if follower.loop is loop), None)
        if follower is None:
            follower = Follower(self.backend, self.name, place)
            self._followers.append(follower)
        listening = follower.listen(event, listener, place)
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
        """Retries all dead jobs that match, by default all, and returns how many. With `dry_run` it only counts."""
        backend = self._open()
        wanted = self._scope.filter(filter or JobFilter())
        return await job_listing.retry_jobs(backend, wanted, dry_run=dry_run, reset=reset, actor=actor)

    async def remove_job(self, job_id: str) -> None:
        """Removes a waiting or final job for good. A job that a worker holds is refused; an unknown id is ignored."""
        try:
            job = await self.get_job(job_id)
        except JobNotFound:
            return
        await job_listing.remove_job(self.backend, job)

    async def clean(self, grace: Duration, status: StatusLike = JobStatus.COMPLETED, limit: int = 0) -> list[str]:
        """Removes jobs of this status that ended at least `grace` ago (or were made, if they have not ended).

        The oldest first, at most `limit` (0: all). Returns their ids. A status that a worker holds is refused.
        """
        return await job_listing.clean(self._open(), self.name, grace, status, limit)

    async def empty(self) -> None:
        """Removes every waiting job. Running and final jobs stay, and so do schedules."""
        await job_listing.empty(self._open(), self.name)

    async def pause(self) -> None:
        """Stops claims from this queue in every process until it is resumed; without a name, from all queues."""
        for queue in await self._all_queues():
            await self.backend.pause_queue(queue)

    async def resume(self) -> None:
        """Undoes `pause`."""
        for queue in await self._all_queues():
            await self.backend.resume_queue(queue)

    async def _all_queues(self) -> list[str]:
        backend = self._open()
        if self.name is not None:
            return [self.name]
        return sorted({str(DEFAULT_QUEUE), *(queue.name for queue in await backend.list_queues())})

    # -- close

    async def close(self) -> None:
        """Refuses new calls, ends its workers, streams and listeners, and closes the backend if it is the last queue.

        Workers return the jobs they run, uncounted; close the workers first to let jobs finish. Safe to call twice: a
        second call waits for the first. Cancelling the caller does not stop the closing.
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
        except asyncio.CancelledError:  # its loop ended meanwhile: the next call closes
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
    """Makes the blocking form of an operation of `Queue`, with the same arguments."""

    @wraps(operation)
    def waiting(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return background.run(operation(self.queue, *args, **kwargs))

    return waiting


class SyncQueue:
    """The operations of a Queue, blocking: for Django, Flask and scripts. Inside an event loop use the Queue itself."""

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
        """Stores one job and returns it as stored; see `Queue.add`. A connection given is used in this thread only."""
        given: Any = {"repeat": repeat, "connection": connection, **options}
        adding: Coroutine[Any, Any, Job | Schedule] = self.queue.add(type, data, **given)
        return _run_with(connection, adding)

    def add_bulk(self, specs: Iterable[AnySpec], *, connection: object = None) -> list[Job]:
        """Stores many jobs in one transaction, all of them or none; see `Queue.add_bulk`."""
        return _run_with(connection, self.queue.add_bulk(specs, connection=connection))

    def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        """Stores all of them or none, and returns the ids in input order."""
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
        """Batches of jobs, pushed as they come: use it in a `with`, then in a `for`."""
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
        """Calls the listener, a plain function, with every event of this name, in another thread; see `Queue.on`."""
        if inspect.iscoroutinefunction(listener):
            raise InvalidArgument("listener", "must be a plain function here; an async one goes with queue.on()")

        self.queue._check_listener(event, listener)
        place = place_now(self.queue.backend)

        async def listening() -> Callable[[], None]:
            return self.queue._listen_from(place, event, _ListenerThread(listener))

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
    """A listener in a thread of its own, which ends when this object is collected."""

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
            except BaseException as raised:  # the thread and the listener continue
                error = RuntimeError(f"the listener raised {type(raised).__name__}")
            loop.call_soon_threadsafe(_settle, heard, error)

        self._calls.put(call)
        await heard


def _call_each(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it refers to its event, which may be large


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
        """A batch that was requested by a thread that was interrupted before it took it."""

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
        """Stops claiming, and returns the jobs that were not handed over."""
        background.run(self._end())

    async def _end(self) -> None:
        await self._stream.end()
        coming, self._coming = self._coming, None
        if coming is not None and (batch := await asyncio.wrap_future(coming)):
            reason = "the stream ended before the job was delivered"
            await self._backend.settle_jobs([Outcome(job.id, job.lease, "fail", error=reason) for job in batch])


def _run_with(connection: object, work: Coroutine[Any, Any, R]) -> R:
    """Runs the work in the background; with a connection of the caller, in the caller's own thread."""
    if connection is None:
        return background.run(work)
    if inspect.iscoroutinefunction(getattr(connection, "commit", None)):
        work.close()
        raise InvalidArgument(
            "connection", f"is asynchronous ({type(connection).__name__}): await queue.add(…) where it was opened"
        )
    background.refuse_in_event_loop(work)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # leaves the thread's own loop, if any, alone
        return runner.run(work)
