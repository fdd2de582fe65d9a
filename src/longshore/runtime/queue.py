"""`Queue`: a backend seen from one queue or all, with streams and listeners; and `queue.sync`, its blocking form."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property, wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from longshore.backends.base import Backend, Outcome
from longshore.core.dependencies import Dependencies, DependencyPolicy
from longshore.core.errors import InvalidArgument, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import DEFAULT_QUEUE, Job, JobEvent
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment
from longshore.runtime import background, job_listing, job_options
from longshore.runtime.events import EventListener, Follower, check_event, place_now
from longshore.runtime.job_listing import StatusLike
from longshore.runtime.job_options import AddOptions, AnySpec, BackoffLike
from longshore.runtime.queue_operations import ScheduleOperations
from longshore.runtime.streams import JobStream

_CLOSING = "the queue was closed before the job was handed over"


class RegisteredWorker(Protocol):
    """A Worker, as its queue sees it."""

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Ends it."""
        ...


class Queue(ScheduleOperations):
    """Where jobs are put, looked at and streamed from. With a name it sees its own jobs, without one all of them.

    A job of another queue is refused with InvalidArgument, and a job that names no queue takes this one's name. Every
    verb may be called from any thread's event loop; `queue.sync` has the same verbs for code without one. The last
    open Queue on a backend closes it.
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
        """The same verbs for code without an event loop: each call waits until it is done."""

        return SyncQueue(self)

    # -- a job comes in

    @overload
    async def add(
        self,
        type: str,
        data: Any = None,
        *,
        repeat: None = None,
        connection: object = None,
        **options: Unpack[AddOptions],
    ) -> Job: ...

    @overload
    async def add(self, type: str, data: Any = None, *, repeat: Repeat, **options: Unpack[AddOptions]) -> Schedule: ...

    async def add(
        self,
        type: str,
        data: Any = None,
        *,
        priority: int = 0,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        expires_at: Moment | None = None,
        attempts: int = 1,
        backoff: BackoffLike | None = None,
        retry_strategy: str | None = None,
        lifo: bool = False,
        job_id: str | None = None,
        idempotency_key: str | None = None,
        tags: Sequence[str] = (),
        timeout: Duration | None = None,
        depends_on: Dependencies = (),
        on_dependency_failure: DependencyPolicy = "wait",
        parent_id: str | None = None,
        remove_on_complete: bool | int = False,
        remove_on_fail: bool | int = False,
        repeat: Repeat | None = None,
        concurrency_key: str | None = None,
        max_crashes: int | None = 3,
        hold: bool = False,
        connection: object = None,
    ) -> Job | Schedule:
        """Stores one job whose data is JSON, and returns it as stored.

        A `job_id` or `idempotency_key` that is in use returns the job that has it, and changes nothing. `run_at` wins
        over `delay`. `attempts` are tries in all (0: no limit), with `backoff` or the worker's `retry_strategy` between
        them. `remove_on_complete` and `remove_on_fail` take True, or how many to keep. With `hold` it waits for
        `accept_jobs`. With `repeat` a schedule is stored in its place and returned: a new one, or the one of this
        `job_id` as told now, still paused if somebody paused it. With `connection` the job is stored inside the
        caller's own open transaction, and exists if and only if that commits.
        """
        job = job_options.job_from(
            type,
            data,
            priority=priority,
            delay=delay,
            run_at=run_at,
            expires_at=expires_at,
            attempts=attempts,
            backoff=backoff,
            retry_strategy=retry_strategy,
            lifo=lifo,
            job_id=job_id,
            idempotency_key=idempotency_key,
            tags=tags,
            timeout=timeout,
            depends_on=depends_on,
            on_dependency_failure=on_dependency_failure,
            parent_id=parent_id,
            remove_on_complete=remove_on_complete,
            remove_on_fail=remove_on_fail,
            concurrency_key=concurrency_key,
            max_crashes=max_crashes,
            hold=hold,
            queue=self.name,
        )
        backend = await self._open()
        if repeat is not None:
            if connection is not None:
                raise InvalidArgument("connection", "cannot be given with repeat: a schedule is stored on its own")
            schedule = job_options.schedule_from(job, repeat, job_id)
            with job_options.in_words_of_its_job("job_id"):
                return await self.put_schedule(schedule, keep_pause=True)
        (stored,) = await job_options.store(backend, [job], connection)
        return self._scope.seen(stored)  # one of another queue has this id: then nothing was stored

    async def add_bulk(self, specs: Iterable[AnySpec], *, connection: object = None) -> list[Job]:
        """Stores many jobs in one transaction, all of them or none, and returns them in the order given.

        A spec is a dict with `type`, `data` and the options of `add` but `repeat`, or `(type, data, options)`.
        """
        jobs, chosen = job_options.jobs_from(specs, self.name)
        backend = await self._open()
        if chosen:
            await self._scope.check_all(chosen)
        return await job_options.store(backend, jobs, connection, named="specs")

    # -- a worker takes it and keeps it

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
        self._refuse_if_closed()
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
        """Has a worker closed with this queue; every Worker asks for it."""
        self._refuse_if_closed()
        self._workers.add(worker)

    # -- somebody looks

    async def get_jobs(
        self, statuses: StatusLike | Iterable[StatusLike], start: int = 0, end: int = -1, asc: bool = False
    ) -> list[Job]:
        """Jobs in these statuses (JobStatus, or BullMQ's words), from `start` to `end`, both included; -1 is the last.

        LRU first, or with `asc` oldest first.
        """
        backend = await self._open()
        wanted = job_listing.standings("statuses", statuses)
        return await job_listing.jobs_in_range(backend, self.name, wanted, start, end, asc=asc)

    async def get_job_counts(self) -> dict[str, int]:
        """How many jobs there are by each of BullMQ's words, and `waiting` for PENDING once more."""
        return await job_listing.count_by_word(await self._open(), self.name)

    def on(self, event: str, listener: EventListener) -> Callable[[], None]:
        """Calls the listener with every event of this name ("*": of any) from now on, whichever process it happens in.

        When it returns, the listener gets every event committed after that. Raises BackendUnavailable if the store does
        not answer within a second. The listener is called in the running event loop, and may be a plain or an async
        function. All listeners of this queue get one job's events in order. Returns a function that ends it.
        """
        self._check_listener(event, listener)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("on() needs a running event loop to call the listener in; use queue.sync.on()") from None
        return self._listen_from(place_now(self.backend), event, listener)

    def _listen_from(self, place: str, event: str, listener: EventListener) -> Callable[[], None]:
        """As `on`, from the given end of the log."""
        loop = asyncio.get_running_loop()
        self._followers = [follower for follower in self._followers if not follower.over]
        follower = next((follower for follower in self._followers if follower.loop is loop), None)
        if follower is None:
            follower = Follower(self.backend, self.name, place)
            self._followers.append(follower)
        listening = follower.listen(event, listener, place)
        return lambda: follower.leave(listening)

    def _check_listener(self, event: str, listener: EventListener) -> None:
        self._refuse_if_closed()
        check_event(event)
        if not callable(listener):
            raise InvalidArgument("listener", f"must be a function that takes a JobEvent, not {listener!r}")

    # -- an operator acts

    async def retry_jobs(
        self, filter: JobFilter | None = None, *, dry_run: bool = False, reset: bool = True, actor: str = ""
    ) -> int:
        """Retries all dead jobs that match, or all there are; returns how many. With `dry_run` it only counts."""
        backend = await self._open()
        wanted = self._scope.filter(filter or JobFilter())
        return await job_listing.retry_jobs(backend, wanted, dry_run=dry_run, reset=reset, actor=actor)

    async def remove_job(self, job_id: str) -> None:
        """Removes the job for good, be it waiting or over. One that a worker has is refused, an unknown one is none."""
        try:
            job = await self.get_job(job_id)
        except JobNotFound:
            return
        await job_listing.remove_job(self.backend, job)

    async def clean(self, grace: Duration, status: StatusLike = JobStatus.COMPLETED, limit: int = 0) -> list[str]:
        """Removes jobs of this status that ended at least `grace` ago (or were made, if they have not ended).

        The oldest first, at most `limit` (0: all). Returns their ids. What a worker holds is refused.
        """
        return await job_listing.clean(await self._open(), self.name, grace, status, limit)

    async def empty(self) -> None:
        """Removes every job that waits; what runs and what has ended stays, and so do schedules."""
        await job_listing.empty(await self._open(), self.name)

    async def pause(self) -> None:
        """Nothing of this queue starts until it is resumed, in any process; without a name, of all there are."""
        for queue in await self._all_queues():
            await self.backend.pause_queue(queue)

    async def resume(self) -> None:
        """Undoes `pause`."""
        for queue in await self._all_queues():
            await self.backend.resume_queue(queue)

    async def _all_queues(self) -> list[str]:
        backend = await self._open()
        if self.name is not None:
            return [self.name]
        return sorted({str(DEFAULT_QUEUE), *(queue.name for queue in await backend.list_queues())})

    # -- it is over

    async def close(self) -> None:
        """Refuses new calls, ends its workers, streams and listeners, and closes the backend if it is the last queue.

        Workers hand back what they run, uncharged; close them first to let it finish. Safe to call twice: whoever
        comes later waits for the first. Whoever stops waiting for it does not stop it.
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
            await self._drop_listeners()
            if self._registry.closed(self):
                await self.backend.close()
        except asyncio.CancelledError:  # its loop ends in the midst of it: the next one begins anew
            ended.cancel()
            raise
        finally:
            if not ended.cancelled():
                ended.set_result(None)
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    async def _drop_listeners(self) -> None:
        followers, self._followers = self._followers, []
        for follower in followers:
            await follower.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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
