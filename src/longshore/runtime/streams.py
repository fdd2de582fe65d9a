"""A stream of jobs: claims while it has free slots, renews its leases, and delivers batches to its consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from time import monotonic
from typing import Concatenate, ParamSpec, Self, TypeVar

from longshore.backends.argument_checks import flag
from longshore.backends.base import Backend, Outcome, OutcomeVerb
from longshore.core.errors import BackendUnavailable, CursorExpired, LongshoreError, QueueClosed
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_name, check_number, check_tags
from longshore.runtime import background
from longshore.runtime.leases import LeaseKeeper, renew_interval
from longshore.runtime.process_registry import ProcessRegistry
from longshore.runtime.work_signal import WorkSignal
from longshore.safe_logging import logger

P = ParamSpec("P")
R = TypeVar("R")

POLL_SECONDS = 0.5
"""Seconds between two checks for due jobs, and for changes without a notification."""
_EVENTS_AT_ONCE = 1_000
ALL_WORKERS = "*"
"""The worker id in a `worker.error` event that `reset_running_jobs` records."""
_UNDECIDED_LONGEST = 30.0
"""Seconds after which a vanished lease frees its slot even if the log does not show the job's end yet."""
_TRIES, _PAUSE = 5, 0.1
"""Calls to a busy store: X-28 allows neither a silent stall nor an end at the first error."""

_log = logger("longshore.stream")

CancelListener = Callable[[str], None]


def _in_own_loop(method: Callable[Concatenate[JobStream, P], None]) -> Callable[Concatenate[JobStream, P], None]:
    """Run the method in the loop of its stream, whichever thread calls it."""

    @wraps(method)
    def call(self: JobStream, /, *args: P.args, **kwargs: P.kwargs) -> None:
        assert self._loop is not None  # a stream holds no job before its start
        if background.running_loop() is self._loop:
            method(self, *args, **kwargs)
            return
        with suppress(RuntimeError):  # the stream's loop has closed
            self._loop.call_soon_threadsafe(partial(method, self, *args, **kwargs))

    return call


class JobStream:
    """Batches of claimed jobs for one assignee, never more than its capacity at a time.

    A claimed job takes a slot until any caller ends the job. Use the stream with `async with`: at its end, jobs that
    were not delivered are released to the queue.
    """

    def __init__(
        self,
        backend: Backend,
        registry: ProcessRegistry,
        assignee_id: str,
        tags: Sequence[str] = (),
        max_assigned_jobs: int = 10,
        *,
        lease: Duration | None = 30,
        queues: Sequence[str] | None = None,
        free_disowned: bool = False,
    ) -> None:
        self.assignee_id = check_name("assignee_id", assignee_id)
        self._tags = check_tags("tags", tags)
        self._capacity = check_number("max_assigned_jobs", max_assigned_jobs, least=1)
        self._lease = None if lease is None else check_duration("lease", lease) / SECOND
        self._free_disowned = flag("free_disowned", free_disowned)
        self._queues = queues
        self._backend = backend
        self._registry = registry
        self._held: dict[str, int] = {}
        """Jobs that take a slot, each with the epoch of its claim."""
        self._vanished: dict[str, float] = {}
        """Held jobs without a lease whose end is not in the log yet, and when the lease vanished."""
        self._disowned: dict[str, tuple[str, str]] = {}
        """Ended jobs that still take a slot: the queue of each, and the log cursor read so far."""
        self._outbox: dict[str, Job] = {}
        self._recalled: dict[str, Job] = {}
        self._cancelled: set[str] = set()
        self._listeners: list[CancelListener] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: Future[None] = Future()
        self._ending = ""
        self._ended = False
        self._error: Exception | None = None

    # -- for the consumer

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Job]:
        self.start()
        while not self._outbox:
            if self._ended:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            self._batch_ready.clear()
            await self._batch_ready.wait()
        batch, self._outbox = self._outbox, {}
        return list(batch.values())

    def on_cancel(self, listener: CancelListener) -> Callable[[], None]:
        """Call the listener with the id of each cancelled job of this stream; return a function that removes it.

        The listener gets each job once, including those cancelled before. The stream itself ends a job that was not
        delivered yet; the listener does not get it.
        """
        self._listeners.append(listener)
        for job_id in sorted(self._cancelled):
            self._notify(listener, job_id)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def start(self) -> None:
        """Start claiming in the running event loop; the first use does it."""
        if self._loop is not None or self._ended:
            return
        self._loop = asyncio.get_running_loop()
        self._batch_ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._work_signal = WorkSignal(self._backend, POLL_SECONDS)
        self._keeper = LeaseKeeper(
            self._backend,
            self._lease,
            POLL_SECONDS if self._lease is None else renew_interval(self._lease),
            self,
            find_ended=lambda: len(self._held) >= self._capacity,
        )
        self._work = self._loop.create_task(self._run(), name=f"longshore stream of {self.assignee_id}")
        self._work.add_done_callback(lambda _: self._leave())  # however it ended, even with its loop

    async def end(self, reason: str = "the stream ended before the job was delivered") -> None:
        """Stop claiming, and release what was not delivered. You can call it twice and from any loop."""
        self._ending = self._ending or reason
        if self._loop is None:
            self._ended = True
            return
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._wake_to_stop)
        while not self._done.done() and self._loop.is_running():
            await asyncio.wait([asyncio.wrap_future(self._done)], timeout=1)
        if not self._done.done():  # its loop has stopped
            self._leave()
            await self._fail_undelivered()

    def _wake_to_stop(self) -> None:
        self._stop.set()
        self._work_signal.notify()

    # -- for the registry and the lease keeper, from any thread; the job may have been claimed here again meanwhile

    @_in_own_loop
    def jobs_freed(self, job_ids: list[str]) -> None:
        """Free their slots."""
        self._forget(self._registry.not_held(self, job_ids))

    @_in_own_loop
    def jobs_disowned(self, job_ids: list[str]) -> None:
        """Stop renewing ended jobs; their slots stay taken until the worker is unresponsive or the stream ends."""
        self._keeper.drop(job_ids)
        self.leases_lost(job_ids)

    @_in_own_loop
    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Notify the listeners; take back a job that was not delivered yet."""
        for job_id in job_ids:
            if job_id in self._outbox:
                self._recalled[job_id] = self._outbox.pop(job_id)
                self._work_signal.notify()
            elif job_id in self._held and job_id not in self._cancelled and job_id not in self._recalled:
                self._cancelled.add(job_id)
                for listener in list(self._listeners):
                    self._notify(listener, job_id)

    @_in_own_loop
    def leases_lost(self, job_ids: list[str]) -> None:
        """Free the slots unless the log says that the jobs were disowned; with `free_disowned` always (X-03)."""
        lost = [job_id for job_id in job_ids if job_id in self._held and not self._keeper.keeps(job_id)]
        if self._free_disowned:
            self._forget(lost)
            return
        for job_id in lost:
            self._outbox.pop(job_id, None)
            self._recalled.pop(job_id, None)
            if job_id not in self._disowned:
                self._vanished.setdefault(job_id, monotonic())
        if lost:
            self._work_signal.notify()

    # -- slots

    def _take(self, jobs: Sequence[Job], sent_at: float) -> None:
        for job in jobs:
            self._held[job.id] = job.epoch
            self._vanished.pop(job.id, None)
            self._disowned.pop(job.id, None)
        self._cancelled.difference_update(job.id for job in jobs)
        self._registry.hold(self, jobs)
        self._keeper.keep(jobs, sent_at)
        self._outbox.update((job.id, job) for job in jobs)
        self._batch_ready.set()

    def _forget(self, job_ids: Sequence[str]) -> None:
        if not job_ids:
            return
        for job_id in job_ids:
            self._held.pop(job_id, None)
            self._vanished.pop(job_id, None)
            self._disowned.pop(job_id, None)
            self._cancelled.discard(job_id)
            self._outbox.pop(job_id, None)
            self._recalled.pop(job_id, None)
        self._keeper.drop(job_ids)
        self._registry.release(self, job_ids)
        self._work_signal.notify()

    def _notify(self, listener: CancelListener, job_id: str) -> None:
        try:
            listener(job_id)
        except Exception:
            _log.exception("a listener for cancellations failed on job %s", job_id)

    # -- claim

    async def _run(self) -> None:
        self._registry.start_sweep(self, self._backend)
        self._work_signal.start()
        self._keeper.start()
        try:
            await self._claim_until_the_end()
        except asyncio.CancelledError:  # with its loop
            await self._clean_up()
            raise
        except Exception as error:
            self._error = error
            self._ending = self._ending or str(error) or type(error).__name__
        await self._clean_up()

    async def _clean_up(self) -> None:
        await self._work_signal.stop()
        await self._fail_undelivered()

    def _leave(self) -> None:
        self._ended = True
        self._keeper.abandon()
        self._registry.remove(self)
        self._batch_ready.set()
        if not self._done.done():
            self._done.set_result(None)

    async def _claim_until_the_end(self) -> None:
        while not self._ending:
            await self._work_signal.wait()
            if self._work_signal.changed:
                self._work_signal.changed = False
                self._keeper.check_soon()
            await self._decide_on_vanished()
            await self._check_disowned()
            await self._end_recalled()
            await self._claim_while_slots_are_free()

    async def _claim_while_slots_are_free(self) -> None:
        while not self._ending and (free_slots := self._capacity - len(self._held)) > 0:
            jobs = await self._retry(self._claim, free_slots)
            self._work_signal.found(len(jobs))
            if not jobs:
                self._work_signal.notify_when_due(self._queues)
                return

    async def _claim(self, free_slots: int) -> list[Job]:
        """Claim on the background loop: if this loop ends meanwhile, the claimed jobs still get released."""
        if self._ending:
            return []
        sent_at = monotonic()
        claiming = background.submit(
            self._backend.dequeue_jobs(self.assignee_id, self._tags, free_slots, queues=self._queues, lease=self._lease)
        )
        try:
            jobs = await asyncio.shield(asyncio.wrap_future(claiming))
        except asyncio.CancelledError:
            with suppress(Exception):  # then there is nothing to release
                jobs = await asyncio.wrap_future(claiming)
                self._take(jobs, sent_at)
            raise
        if jobs:
            self._take(jobs, sent_at)
        return jobs

    async def _decide_on_vanished(self) -> None:
        """Free the slots of jobs whose lease vanished, except those the log marks as not executed (Q-ACK-03)."""
        if not self._vanished:
            return
        epochs = {job_id: self._held[job_id] for job_id in self._vanished}
        disowned, undecided = await self._retry(self._disowned_among, epochs)
        now = monotonic()
        free = []
        for job_id, epoch in epochs.items():
            if job_id not in self._vanished or self._held.get(job_id) != epoch:
                continue  # freed or claimed again meanwhile
            if job_id in disowned:
                del self._vanished[job_id]
                self._disowned[job_id] = disowned[job_id].queue, disowned[job_id].cursor
            elif job_id not in undecided or now - self._vanished[job_id] > _UNDECIDED_LONGEST:
                free.append(job_id)
        self._forget(free)

    async def _disowned_among(self, epochs: dict[str, int]) -> tuple[dict[str, JobEvent], set[str]]:
        """Return the events that mark jobs as not executed, and the jobs whose end is not in the log yet."""
        found = (await self._backend.list_jobs(JobFilter(ids=list(epochs)), limit=len(epochs))).items
        unknown = {job.id for job in found if job.status is JobStatus.UNKNOWN_STOPPED and job.epoch == epochs[job.id]}
        removed = epochs.keys() - {job.id for job in found}
        disowned: dict[str, JobEvent] = {}
        undecided: set[str] = set()
        for job_id in sorted(unknown | removed):
            ended = await end_in_log(self._backend, job_id, epochs[job_id])
            if ended is None:
                undecided |= {job_id} & unknown
            elif disowns(ended):
                disowned[job_id] = ended
        return disowned, undecided

    async def _check_disowned(self) -> None:
        """Free the slots of disowned jobs whose worker another process declared unresponsive or reset."""
        for job_id, (queue, cursor) in list(self._disowned.items()):
            try:
                events = await self._backend.read_events(cursor, _EVENTS_AT_ONCE)
            except QueueClosed:
                raise
            except CursorExpired as error:
                _log.warning(
                    "a stream of %s missed events and frees the slot of job %s: %s", self.assignee_id, job_id, error
                )
                self._forget([job_id])  # a restored copy does not know that the job was disowned
                continue
            except LongshoreError as error:  # it is read again at the next change
                _log.debug("cannot read whether the worker was declared unresponsive: %r", error)
                return
            if job_id not in self._disowned:
                continue
            if any(self._declares_ended(event, queue) for event in events):
                self._forget([job_id])
            elif events:
                self._disowned[job_id] = queue, events[-1].cursor
            if len(events) == _EVENTS_AT_ONCE:
                self._work_signal.notify()

    def _declares_ended(self, event: JobEvent, queue: str) -> bool:
        if event.event != "worker.error" or "declared" not in event.detail:
            return False
        return event.assignee_id == self.assignee_id or (
            event.assignee_id == ALL_WORKERS and event.queue in ("", queue)
        )

    async def _end_recalled(self) -> None:
        """End jobs that were cancelled before they were delivered."""
        jobs = list(self._recalled.values())
        if jobs:
            await self._retry(self._settle, jobs, "stop", "cancelled")
            self._forget([job.id for job in jobs])

    async def _fail_undelivered(self) -> None:
        """Fail what was not delivered, as the Queue contract requires: counted, and claimable at once."""
        jobs = [*self._outbox.values(), *self._recalled.values()]
        self._outbox, self._recalled = {}, {}
        if jobs:
            try:
                await self._settle(jobs, "fail", self._ending or "the stream failed before the job was delivered")
            except Exception as error:  # their leases expire, and the sweep finds them
                _log.warning("cannot release %d undelivered jobs; their leases expire: %s", len(jobs), error)

    async def _settle(self, jobs: Sequence[Job], verb: OutcomeVerb, error: str) -> None:
        await self._backend.settle_jobs([Outcome(job.id, job.lease, verb, error=error) for job in jobs])

    async def _retry(self, operation: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call an operation, and retry while the store is unavailable."""
        for attempt in range(1, _TRIES):
            try:
                return await operation(*args, **kwargs)
            except BackendUnavailable as error:
                _log.warning("the store is unavailable; trying again: %s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE * 2**attempt):
                        await self._stop.wait()
        return await operation(*args, **kwargs)


async def end_in_log(backend: Backend, job_id: str, epoch: int) -> JobEvent | None:
    """Return the event by which this claim of the job became UNKNOWN_STOPPED, or None if the log does not show it."""
    cursor: str | None = None
    while True:
        try:
            events = await backend.read_events(cursor, _EVENTS_AT_ONCE, job_id=job_id)
        except (BackendUnavailable, QueueClosed):
            raise
        except LongshoreError:  # a caller bound to some queues may not read the events of a removed job
            return None
        for event in events:
            if event.epoch == epoch and event.to_status is JobStatus.UNKNOWN_STOPPED:
                return event
        if len(events) < _EVENTS_AT_ONCE:
            return None
        cursor = events[-1].cursor


def disowns(event: JobEvent) -> bool:
    """Whether the event says that the worker was not executing the job, so that its slot stays taken (Q-ACK-03)."""
    return event.detail.get("was_executing") is False
