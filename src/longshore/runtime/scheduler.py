"""The scheduler: expired leases, schedules, due jobs, cancellation timeouts and retention."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Self

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, QueueClosed
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import new_id
from longshore.runtime.error_text import describe
from longshore.runtime.worker_status import record_error
from longshore.safe_logging import logger

AT_ONCE = 200
"""Jobs per transaction: other writers wait a few milliseconds for it."""
FIRED_AT_ONCE = 500
"""Schedules per transaction, about 50 ms. With smaller batches the last of ten thousand would fire late."""
_CONCURRENT_BATCHES = 2
"""Transactions at a time after a full batch: the next one is prepared while the store writes."""
_BATCHES_IN_A_ROW = 10
"""Batches in a row before it checks whether the schedules due now were due at the start of the pass."""
_QUERY_INTERVAL = timedelta(seconds=30)
_TRY_AGAIN = 0.05
"""Seconds before it retries a due schedule that did not fire: another scheduler is firing it."""
_JITTER = 0.2
"""Spreads the passes of schedulers that started together."""

RETENTION_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SchedulerTask:
    """A periodic task that is safe to repeat and to run in many processes at once."""

    name: str
    batch: Callable[[], Awaitable[int]]
    """Runs one bounded batch and returns its size."""
    more: int
    """A batch of at least this size is followed by the next."""
    interval: float
    """Seconds until the task runs again."""
    pause: Callable[[], Awaitable[float]] | None = None
    """Returns the actual seconds, up to `interval`."""
    rest: float = 0.0
    """The pause between two batches, as a multiple of the time the last one took."""

    async def do(self, stop: asyncio.Event, *, without_rest: bool = False) -> int:
        """Run batches until nothing is left or `stop` is set; return how much was done."""
        done = 0
        while not stop.is_set():
            began = monotonic()
            size = await self.batch()
            done += size
            if size < self.more:
                break
            await wait(stop, 0 if without_rest else self.rest * (monotonic() - began))
        return done


async def wait(stop: asyncio.Event, seconds: float) -> None:
    """Wait until `stop` is set or the seconds have passed."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def jittered(seconds: float) -> float:
    """Return the seconds with jitter."""
    return seconds * (1 + random.uniform(-_JITTER, _JITTER))


def schedules(backend: Backend, interval: float) -> SchedulerTask:
    """Return the task that fires due schedules; it waits for the next planned time, at most `interval`."""
    began: datetime | None = None
    queried_at: datetime | None = None

    async def several() -> int:
        """Fire full batches one after the other, up to a limit."""
        fired = 0
        for _ in range(_BATCHES_IN_A_ROW):
            size = len(await backend.fire_due_schedules(FIRED_AT_ONCE))
            fired += size
            if size < FIRED_AT_ONCE:
                break
        return fired

    async def batch() -> int:
        """Fire what was due at the start of the pass; later ones are left to the next pass, so that each pass ends.

        It also asks the store from time to time when nothing is due, and after its clock went back. A clock that was
        ahead has planned the next times too late, and the store corrects them.
        """
        nonlocal began, queried_at
        planned = await backend.next_firing()
        until, began = began or await backend.now(), None
        queried_recently = queried_at is not None and timedelta() <= until - queried_at < _QUERY_INTERVAL
        if queried_recently and (planned is None or planned > until):
            return 0
        queried_at = until
        fired = len(await backend.fire_due_schedules(FIRED_AT_ONCE))
        if fired >= FIRED_AT_ONCE:
            fired += sum(await asyncio.gather(*(several() for _ in range(_CONCURRENT_BATCHES))))
        began = until if fired else None
        return fired

    async def pause() -> float:
        planned = await backend.next_firing()
        if planned is None:
            return interval
        left = (planned - await backend.now()).total_seconds()
        return min(max(left, _TRY_AGAIN if left <= 0 else 0.0), interval)

    return SchedulerTask("firing of schedules", batch, 1, interval, pause)


def _counted(operation: Callable[[int], Awaitable[Sized]]) -> Callable[[], Awaitable[int]]:
    """Return a batch function for an operation that returns what it changed."""

    async def batch() -> int:
        return len(await operation(AT_ONCE))

    return batch


_LONGEST_PAUSE = 5.0

_log = logger("longshore.scheduler")


@dataclass(frozen=True, slots=True)
class Tick:
    """The results of one pass."""

    reclaimed: int = 0
    """Jobs whose lease had expired."""
    fired: int = 0
    """Jobs created by schedules."""
    announced: int = 0
    """Delayed jobs that became due."""
    timed_out: int = 0
    """Cancellations that no worker acknowledged in time."""
    removed: int = 0
    """Expired jobs, events and other records that were removed."""
    failed: tuple[str, ...] = ()
    """Tasks that failed and will be retried."""


class Scheduler:
    """Run the periodic tasks of one store: schedules, expired leases, due jobs and retention. See docs/scheduler.md.

    Any number may run, in any processes: every task is safe to repeat, and there is no leader. `cancel_timeout` is how
    long a cancellation may stay unacknowledged before the job is ended. None, the default, sets no limit.
    """

    def __init__(self, backend: Backend, *, interval: Duration = 1.0, cancel_timeout: Duration | None = None) -> None:
        if not isinstance(backend, Backend):
            raise InvalidArgument("backend", f"must be a Backend (see connect), not {type(backend).__name__}")
        every = check_duration("interval", interval) / SECOND
        timeout = None if cancel_timeout is None else check_duration("cancel_timeout", cancel_timeout) / SECOND
        self.id = f"scheduler-{socket.gethostname()[:100]}-{os.getpid()}-{new_id()}"
        self._interval = every
        self._tasks: dict[str, SchedulerTask] = {
            "reclaimed": SchedulerTask("sweep", _counted(backend.reclaim_expired_leases), AT_ONCE, every),
            "fired": schedules(backend, every),
            # workers claim due jobs without it, so it yields the store between batches
            "announced": SchedulerTask(
                "announcement of due jobs", _counted(backend.announce_due_jobs), AT_ONCE, every, rest=1.0
            ),
        }
        if timeout is not None:
            time_out = _counted(partial(backend.time_out_cancellations, timeout))
            self._tasks["timed_out"] = SchedulerTask("time-out of cancellations", time_out, AT_ONCE, every)
        retain = partial(backend.apply_retention, AT_ONCE)
        self._tasks["removed"] = SchedulerTask("retention", retain, 1, RETENTION_SECONDS, rest=1.0)
        self._backend = backend
        self._errors: dict[str, str] = {}
        self._unrecorded: dict[str, str] = {}
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._running: list[asyncio.Future[None]] = []

    async def tick(self) -> Tick:
        """Run every task once in the calling task; log those that fail, and continue with the rest."""
        if self._stop.is_set():
            raise QueueClosed("this scheduler was closed; create a new one with Scheduler(backend)")
        done: dict[str, int] = {}
        failed = []
        for kind, task in self._tasks.items():
            count = await self._attempt(task, without_rest=True)
            if count is None:
                failed.append(task.name)
            else:
                done[kind] = count
        return Tick(**done, failed=tuple(failed))

    async def run(self) -> None:
        """Run until the scheduler or its store is closed; a second call waits for the same end."""
        self._begin()
        if self._work is not None:
            try:
                await asyncio.shield(self._work)
            except asyncio.CancelledError:  # it must not outlive its caller
                await self.close(force=True)
                raise

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Finish the running batches, which takes milliseconds. You can call it twice and from any loop.

        With `force`, or after `grace` seconds, running batches are cancelled: the store rolls them back or has
        committed.
        """
        timeout = None if grace is None else check_duration("grace", grace, positive=False) / SECOND
        loop, work = self._loop, self._work
        if loop is None or work is None or work.done() or loop.is_closed() or not loop.is_running():
            self._stop.set()
            return
        if asyncio.get_running_loop() is not loop:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(force, grace=grace), loop))
            return
        self._stop.set()
        await asyncio.wait([work], timeout=0 if force else timeout)
        for task in self._running:
            task.cancel()
        await asyncio.wait([work])

    def _begin(self) -> None:
        if self._work is None and not self._stop.is_set():
            self._loop = asyncio.get_running_loop()
            self._work = self._loop.create_task(self._run_tasks())

    async def _run_tasks(self) -> None:
        _log.info("%s runs", self.id)
        self._running = [asyncio.ensure_future(self._repeat(task)) for task in self._tasks.values()]
        await asyncio.wait(self._running)

    async def _repeat(self, task: SchedulerTask) -> None:
        """Run one task at its own pace: a long retention run delays no schedule, and a failure stops no other task."""
        pause = self._interval
        while not self._stop.is_set():
            try:
                done = await self._attempt(task)
                ended = await self._pause_after(task) if done is not None else None
            except QueueClosed:
                if not self._stop.is_set():
                    _log.info("%s stopped: its store was closed", self.id)
                self._stop.set()
                return
            if ended is None:
                await wait(self._stop, jittered(pause))
                pause = min(2 * pause, max(_LONGEST_PAUSE, self._interval))
            else:
                pause = self._interval
                await wait(self._stop, ended)

    async def _attempt(self, task: SchedulerTask, *, without_rest: bool = False) -> int | None:
        """Run the task; return how much was done, or None if it failed."""
        try:
            done = await task.do(self._stop, without_rest=without_rest)
        except QueueClosed:
            raise
        except Exception as error:  # any error: the task runs again later
            await self._report(task, error)
            return None
        if task.name in self._errors:
            await self._recovered(task)
        return done

    async def _pause_after(self, task: SchedulerTask) -> float | None:
        try:
            return jittered(task.interval) if task.pause is None else await task.pause()
        except QueueClosed:
            raise
        except Exception as error:  # see above
            await self._report(task, error)
            return None

    async def _report(self, task: SchedulerTask, error: Exception) -> None:
        """Log the error, and write it once to the event log, now or as soon as the store accepts it."""
        text = f"the {task.name} failed; trying again: {describe(error).partition(chr(10))[0]}"
        _log.warning("%s: %s", self.id, text)
        if self._errors.get(task.name) != text:
            self._errors[task.name] = text
            if not await record_error(self._backend, self.id, text):
                self._unrecorded[task.name] = text

    async def _recovered(self, task: SchedulerTask) -> None:
        del self._errors[task.name]
        unrecorded = self._unrecorded.pop(task.name, None)
        if unrecorded is not None:
            await record_error(self._backend, self.id, unrecorded)
        _log.info("%s: the %s has recovered", self.id, task.name)
