"""Renews leases in batches from a thread of its own, and ends the attempts whose lease is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from longshore.backends.base import Backend
from longshore.core.errors import QueueClosed
from longshore.core.filters import JobFilter
from longshore.core.job import Job, Lease
from longshore.core.status import HOLDS_CAPACITY, JobStatus
from longshore.runtime import background
from longshore.safe_logging import logger

_AT_ONCE = 5_000
"""Leases renewed by one call: enough for any worker, and never so many that other writers wait long."""
_LOOKED_AT_ONCE = 1_000
_COMPARED = 20
"""Lost leases that are compared with the store: an older copy shows in any of them."""
_BETWEEN_LOOKS = 0.1
"""Seconds: a cancellation that somebody else asks for is noticed this soon, however busy the store is."""
_SOONEST = 0.02
_BEAT = 15.0
_RETRY_SHARE, _RETRY_LONGEST = 0.2, 1.0
_NEVER = float("inf")

_log = logger("longshore.worker")


def renew_every(duration: float) -> float:
    """The default seconds between renewals of leases of this duration.

    A quarter, so that a frozen process keeps its jobs if it resumes within three quarters of the lease.
    """
    return min(_BEAT, duration / 4)


class _Kept(NamedTuple):
    lease: Lease
    deadline: float
    """By our own monotonic clock, counted from before the store was asked: never later than the store's."""


class LeaseKeeper:
    """Renews every lease it keeps, and tells which were lost and which jobs were called off.

    `lost` and `cancelled` are called in the background thread. A lease that cannot be renewed counts as lost at its
    deadline, whatever keeps the store from answering.
    """

    def __init__(
        self,
        backend: Backend,
        duration: float | None,
        interval: float | None,
        *,
        lost: Callable[[list[str]], None],
        cancelled: Callable[[list[str]], None],
        thorough: Callable[[], bool] = lambda: False,
        beat: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`duration` None is a lease without an end; `interval` None is no renewal at all.

        `thorough` tells whether a look between two beats should also find jobs that somebody else ended.
        """
        self._backend = backend
        self._duration = duration
        self._interval = interval
        self._lost = lost
        self._cancelled = cancelled
        self._thorough = thorough
        self._beat = beat
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._called_off: set[str] = set()
        self._failed = False
        self._owner: asyncio.AbstractEventLoop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poke = asyncio.Event()
        self._hurry = asyncio.Event()
        self._wakes_at = 0.0
        """When the next renewal is planned, by the monotonic clock."""
        self._margin = 0.0 if duration is None or interval is None else (duration - interval) / 2
        """Seconds before its deadline by which a lease should be renewed: a job just claimed never is that near."""
        self._work: asyncio.Task[None]
        self._started = False
        self._end: Future[None] | None = None

    def start(self) -> None:
        """Begins to renew, for as long as the running loop is not closed."""
        self._owner = asyncio.get_running_loop()
        self._started = True
        background.submit(self._work_for_ever())

    async def stop(self) -> None:
        """Renews no longer; returns when nothing is under way."""
        self.abandon()
        if self._end is not None:
            await asyncio.wait([asyncio.wrap_future(self._end)])

    def abandon(self) -> None:
        """Renews no longer; waits for nothing."""
        with self._lock:
            self._kept.clear()
        if self._started and self._end is None:
            self._end = background.submit(self._end_work())

    async def _end_work(self) -> None:
        self._work.cancel()  # it has begun: the background takes things in the order they are submitted
        await asyncio.wait([self._work])

    def keep(self, jobs: Iterable[Job], asked_at: float) -> None:
        """Keeps the leases of jobs claimed by a call that began at `asked_at`."""
        deadline = _NEVER if self._duration is None else asked_at + self._duration
        with self._lock:
            kept: _Kept | None = None
            for job in jobs:
                if job.lease is not None:
                    if kept is None or kept.lease is not job.lease:  # jobs of one claim mostly share theirs
                        kept = _Kept(job.lease, deadline)
                    self._kept[job.id] = kept
                    if self._called_off:
                        self._called_off.discard(job.id)
            if deadline - self._margin < self._wakes_at and self._loop is not None:  # the answer took long to come
                self._loop.call_soon_threadsafe(self._hurry.set)

    def keeps(self, job_id: str) -> bool:
        """Whether it keeps a lease of this job: not after it was lost, unless the job was claimed again."""
        return job_id in self._kept

    def drop(self, job_ids: Iterable[str]) -> None:
        """The jobs have ended: their leases need no keeping."""
        with self._lock:
            for job_id in job_ids:
                self._kept.pop(job_id, None)
                if self._called_off:
                    self._called_off.discard(job_id)

    def look_now(self) -> None:
        """The store has changed: somebody may have been cancelled. Looks soon, not at every change."""
        if not self._kept:
            return
        with self._lock:
            if self._loop is None:
                self._poke.set()  # nobody waits for it yet
            else:
                self._loop.call_soon_threadsafe(self._poke.set)

    async def _work_for_ever(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._work = task
        with self._lock:
            self._loop = asyncio.get_running_loop()
        while True:
            if await self._work_to_the_end():
                return
            await asyncio.sleep(_RETRY_LONGEST)

    async def _work_to_the_end(self) -> bool:
        """True if there is nothing left to renew, False if something went wrong that nobody thought of."""
        over = True
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._look_for_ever())]
                if self._beat is not None:  # apart from the renewals: it may hang, and they must not
                    beside.append(group.create_task(self._tell_of_us_for_ever(self._beat)))
                await self._renew_while_somebody_is_there()
                for task in beside:
                    task.cancel()
        except* QueueClosed:
            pass
        except* Exception:
            _log.exception("the heartbeat broke, and begins anew")
            over = False
        return over

    async def _renew_while_somebody_is_there(self) -> None:
        while not self._owner.is_closed():
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._hurry.wait()
            self._give_up_overdue()
            await self._renew()

    async def _look_for_ever(self) -> None:
        while True:
            await self._poke.wait()
            self._poke.clear()
            try:
                await self._look()
            except QueueClosed:
                raise
            except Exception as error:  # the next beat tells as much
                _log.debug("a look for cancellations failed: %r", error)
            await asyncio.sleep(_BETWEEN_LOOKS)

    async def _look(self) -> None:
        """Asks, without writing, who was cancelled; and, if it should be thorough, who was ended by somebody else."""
        if not self._thorough() and not (await self._backend.count_jobs())[JobStatus.CANCELLING]:
            return
        everything = self._everything()
        for first in range(0, len(everything), _LOOKED_AT_ONCE):
            batch = dict(everything[first : first + _LOOKED_AT_ONCE])
            held = JobFilter(ids=list(batch), statuses=sorted(HOLDS_CAPACITY))
            found = {job.id: job for job in (await self._backend.list_jobs(held, limit=len(batch))).items}
            lost = self._learn(batch, {job_id: job.lease for job_id, job in found.items() if job.lease is not None})
            await self._compare(lost)

    def _pause(self) -> float:
        """Until the next renewal, or until the first lease needs it, or ends."""
        pause = min(_BEAT, self._duration or _BEAT) if self._interval is None else self._interval
        if self._failed:
            pause = min(pause * _RETRY_SHARE, _RETRY_LONGEST)
        with self._lock:  # so that whatever is kept from now on is compared with this plan
            now = monotonic()
            deadline = min((kept.deadline for kept in self._kept.values()), default=_NEVER)
            if not self._failed:
                deadline -= self._margin
            self._wakes_at = now + min(pause, max(deadline - now, _SOONEST))
            return self._wakes_at - now

    def _give_up_overdue(self) -> None:
        now = monotonic()
        with self._lock:
            lost = self._let_go([job_id for job_id, kept in self._kept.items() if kept.deadline <= now])
        if lost:
            self._lost(lost)

    def _let_go(self, job_ids: list[str]) -> list[str]:
        for job_id in job_ids:
            del self._kept[job_id]
        self._called_off.difference_update(job_ids)
        return job_ids

    def _everything(self) -> list[tuple[str, _Kept]]:
        with self._lock:
            return list(self._kept.items())

    async def _renew(self) -> None:
        everything = self._everything() if self._interval is not None else []
        failed = False
        for first in range(0, len(everything), _AT_ONCE):
            failed = not await self._renew_batch(dict(everything[first : first + _AT_ONCE])) or failed
        self._failed = failed

    async def _renew_batch(self, batch: dict[str, _Kept]) -> bool:
        """Whether the store answered."""
        asked_at = monotonic()
        leases = {job_id: kept.lease for job_id, kept in batch.items()}
        earliest = min(kept.deadline for kept in batch.values())
        duration = self._duration if self._duration is not None else 1.0  # one without an end stays without
        try:
            async with asyncio.timeout(None if earliest == _NEVER else max(earliest - asked_at, _SOONEST)):
                renewed = await self._backend.extend_leases(leases, duration)
        except QueueClosed:
            raise
        except Exception as error:  # whatever it is, the deadline decides
            if not self._failed:
                _log.warning("%d leases could not be renewed, trying again: %s", len(batch), str(error) or "no answer")
            return False
        lost = self._learn(batch, renewed, _NEVER if self._duration is None else asked_at + self._duration)
        try:
            await self._compare(lost)
        except QueueClosed:
            raise
        except Exception as error:  # the leases were renewed; only the reason for the loss of some is unknown
            _log.debug("lost leases could not be compared with the store: %r", error)
        return True

    async def _compare(self, lost: Mapping[str, Lease]) -> None:
        """Logs an error if the store knows a lost job only by an earlier claim, or by another one of the same epoch.

        Epochs of a job never go back. Only an older copy of the store has lower ones, and uses them again.
        """
        if not lost:
            return
        some = JobFilter(ids=sorted(lost)[:_COMPARED])
        for job in (await self._backend.list_jobs(some, limit=_COMPARED)).items:
            held = lost[job.id]
            used_again = job.epoch == held.epoch and job.lease is not None and job.lease.token != held.token
            if job.epoch < held.epoch or used_again:
                _log.error(
                    "the store went back: job %s was claimed here with epoch %d, and the store has %s epoch %d. An "
                    "older copy of the store was restored. %d leases of this worker are refused, and nothing is "
                    "written for them; the worker goes on with the copy",
                    job.id,
                    held.epoch,
                    "another claim of" if used_again else "only",
                    job.epoch,
                    len(lost),
                )
                return

    def _learn(
        self, asked: Mapping[str, _Kept], found: Mapping[str, Lease], deadline: float | None = None
    ) -> dict[str, Lease]:
        """Takes in what the store knows of the leases it was asked about: all as before, or good until `deadline`.

        Returns the leases that are lost.
        """
        lost: list[str] = []
        called_off: list[str] = []
        with self._lock:
            for job_id, kept in asked.items():
                now = self._kept.get(job_id)
                if now is None or not _same(now.lease, kept.lease):
                    continue  # dropped since, or claimed again: not the lease that was asked about
                lease = found.get(job_id)
                if lease is None or not _same(lease, kept.lease):
                    lost.append(job_id)
                    continue
                if deadline is not None:
                    self._kept[job_id] = _Kept(kept.lease, deadline)
                if lease.cancel_requested and job_id not in self._called_off:
                    called_off.append(job_id)
            self._let_go(lost)
            self._called_off.update(called_off)
        if lost:
            self._lost(lost)
        if called_off:
            self._cancelled(called_off)
        return {job_id: asked[job_id].lease for job_id in lost}

    async def _tell_of_us_for_ever(self, beat: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                async with asyncio.timeout(_BEAT):
                    await beat()
            except QueueClosed:
                raise
            except Exception as error:  # for people only: no job depends on it
                _log.debug("the heartbeat was not recorded: %r", error)
            await asyncio.sleep(self._interval or _BEAT)


def _same(one: Lease, other: Lease) -> bool:
    """Whether both are of the same claim; a restored store uses an epoch again, with another token."""
    return one.epoch == other.epoch and one.token == other.token
