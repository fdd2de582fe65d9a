"""A stream of jobs: it claims whenever it has room, renews what it holds, and hands over batches as they are taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Self

from longshore.backends.contract import Backend, Outcome
from longshore.core.errors import BackendUnavailable, LongshoreError
from longshore.core.job import Job
from longshore.core.moments import SECOND, Duration, check_duration
from longshore.core.names import check_name, check_names
from longshore.core.numbers import check_number
from longshore.runtime.alarm import Alarm
from longshore.runtime.dock import Dock
from longshore.runtime.heartbeat import LeaseKeeper

POLL_SECONDS = 0.5
"""How often a stream with room looks for jobs whose time has come, and for hints that were lost."""
_TRIES, _PAUSE = 5, 0.1
"""For a store that is busy: X-28 wants a silent stall no more than an end at the first hiccup."""

_log = logging.getLogger("longshore.stream")

CancelListener = Callable[[str], None]


class JobStream:
    """Batches of jobs, RUNNING and leased to one assignee, never more than its capacity at a time.

    A slot is taken when a job is claimed, and free again when the job ends, whoever ends it. Use it with `async with`:
    at the end, jobs that were not handed over yet go back to the queue.
    """

    def __init__(
        self,
        backend: Backend,
        dock: Dock,
        assignee_id: str,
        tags: Sequence[str] = (),
        max_assigned_jobs: int = 10,
        *,
        lease: Duration | None = 30,
        queues: Sequence[str] | None = None,
    ) -> None:
        self.assignee_id = check_name("assignee_id", assignee_id)
        self._tags = check_names("tags", tags)
        self._capacity = check_number("max_assigned_jobs", max_assigned_jobs, least=1)
        self._lease = None if lease is None else check_duration("lease", lease) / SECOND
        self._queues = queues
        self._backend = backend
        self._dock = dock
        self._held: dict[str, Job] = {}
        self._outbox: list[Job] = []
        self._recalled: list[str] = []
        self._listeners: list[CancelListener] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._ending = ""
        self._over = False
        self._error: LongshoreError | None = None

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
            if self._over:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        batch, self._outbox = self._outbox, []
        return batch

    def on_cancel(self, listener: CancelListener) -> Callable[[], None]:
        """Calls the listener with the id of each job of this stream whose end is asked for; returns its unsubscribe.

        A job that was not handed over yet is ended by the stream itself, and not told.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def start(self) -> None:
        """Begins to claim, in the running event loop; done by the first use."""
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._alarm = Alarm(self._backend, POLL_SECONDS)
        self._keeper = LeaseKeeper(
            self._backend,
            self._lease,
            POLL_SECONDS if self._lease is None else self._lease / 3,
            lost=lambda ids: self._in_loop(self._forget, ids),
            cancelled=lambda ids: self._in_loop(self._tell_cancelled, ids),
            thorough=lambda: len(self._held) == self._capacity,
        )
        self._work = self._loop.create_task(self._run())

    async def end(self, reason: str = "the stream ended before the job was handed over") -> None:
        """Claims no more, and gives back what was not handed over; safe to call twice and from any loop."""
        if self._loop is None or self._work is None:
            self._over = True
            return
        self._ending = self._ending or reason
        if asyncio.get_running_loop() is self._loop:
            self._alarm.ring()
            await asyncio.shield(self._work)
        elif not self._loop.is_closed():
            elsewhere = asyncio.run_coroutine_threadsafe(self.end(reason), self._loop)
            await asyncio.wrap_future(elsewhere)

    # -- for the dock, from any thread

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Their slots are free."""
        self._in_loop(self._forget, job_ids)

    def jobs_disowned(self, job_ids: list[str]) -> None:
        """They are over, and their slots stay taken until the worker is declared unresponsive or the stream ends."""
        self._in_loop(self._disown, job_ids)

    def jobs_freed_where(self, chosen: Callable[[Job], bool]) -> None:
        """Their slots are free."""
        self._in_loop(self._forget_where, chosen)

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Their consumer is told."""
        self._in_loop(self._tell_cancelled, job_ids)

    def _in_loop(self, call: Callable[..., None], *args: object) -> None:
        assert self._loop is not None  # nobody holds a job before it is started
        try:
            if asyncio.get_running_loop() is self._loop:
                call(*args)
                return
        except RuntimeError:
            pass  # no loop runs in this thread
        with suppress(RuntimeError):  # the stream's loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(call, *args)

    # -- slots

    def _forget(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self._held.pop(job_id, None)
            self._keeper.drop(job_id)
        gone = set(job_ids)
        self._outbox = [job for job in self._outbox if job.id not in gone]
        self._dock.let_go(self, job_ids)
        self._alarm.ring()

    def _forget_where(self, chosen: Callable[[Job], bool]) -> None:
        self._forget([job.id for job in self._held.values() if chosen(job)])

    def _disown(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self._keeper.drop(job_id)

    def _tell_cancelled(self, job_ids: Sequence[str]) -> None:
        waiting = {job.id for job in self._outbox}
        for job_id in job_ids:
            if job_id in waiting:
                self._recalled.append(job_id)
                self._alarm.ring()
            elif job_id in self._held:
                for listener in list(self._listeners):
                    try:
                        listener(job_id)
                    except Exception:
                        _log.exception("a listener for cancellations failed on job %s", job_id)

    # -- the work

    async def _run(self) -> None:
        self._dock.joined(self, self._backend, sweep=True)
        self._alarm.start()
        self._keeper.start()
        try:
            while not self._ending:
                await self._alarm.wait()
                if self._alarm.changed:
                    self._alarm.changed = False
                    self._keeper.look_now()
                await self._end_recalled()
                await self._claim_while_there_is_room()
        except LongshoreError as error:
            self._error = error
            self._ending = self._ending or str(error)
        finally:
            await self._alarm.stop()
            await self._give_back()
            await self._keeper.stop()
            self._dock.left(self)
            self._over = True
            self._news.set()

    async def _claim_while_there_is_room(self) -> None:
        while not self._ending and (room := self._capacity - len(self._held)) > 0:
            asked_at = monotonic()
            jobs = await self._claim(room)
            self._alarm.found(len(jobs))
            if not jobs:
                return
            self._held.update((job.id, job) for job in jobs)
            self._dock.holds(self, jobs)
            self._keeper.keep(jobs, asked_at)
            self._outbox += jobs
            self._news.set()

    async def _claim(self, room: int) -> list[Job]:
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._backend.dequeue_jobs(
                    self.assignee_id, self._tags, room, queues=self._queues, lease=self._lease
                )
            except BackendUnavailable as error:
                if attempt == _TRIES:
                    raise
                _log.warning("the store cannot be used now, trying again: %s", error)
                await asyncio.sleep(_PAUSE * 2**attempt)
        raise AssertionError("the last try returns or raises")

    async def _end_recalled(self) -> None:
        """Ends jobs that were called off before they were handed over."""
        recalled, self._recalled = set(self._recalled), []
        jobs = [job for job in self._outbox if job.id in recalled]
        if jobs:
            self._outbox = [job for job in self._outbox if job.id not in recalled]
            await self._backend.settle_jobs([Outcome(job.id, job.lease, "stop", error="cancelled") for job in jobs])
            self._forget([job.id for job in jobs])

    async def _give_back(self) -> None:
        """What nobody was handed is failed, as the document of the Queue has it: counted, and eligible at once."""
        undelivered, self._outbox = self._outbox, []
        if not undelivered:
            return
        outcomes = [Outcome(job.id, job.lease, "fail", error=self._ending or "the stream broke") for job in undelivered]
        try:
            await self._backend.settle_jobs(outcomes)
        except LongshoreError as error:  # their leases run out, and the sweep finds them
            _log.warning("%d jobs that were not handed over could not be given back: %s", len(outcomes), error)
