"""Keeps leases alive: all of one stream or worker in one batch, from a thread that no processor can block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import NamedTuple

from longshore.backends.contract import Backend
from longshore.core.errors import LongshoreError, QueueClosed
from longshore.core.filtering import JobFilter
from longshore.core.job import Job, Lease
from longshore.core.lifecycle import HOLDS_CAPACITY, JobStatus
from longshore.runtime import background

_AT_ONCE = 5_000
"""Leases renewed by one call: enough for any worker, and never so many that other writers wait long."""
_LOOKED_AT_ONCE = 1_000
_BETWEEN_LOOKS = 0.1
"""Seconds: a cancellation that somebody else asks for is noticed this soon, however busy the store is."""
_SOONEST = 0.02
_BEAT = 15.0
_RETRY_SHARE, _RETRY_LONGEST = 0.2, 1.0
_NEVER = float("inf")

_log = logging.getLogger("longshore.worker")


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
        self._kept: dict[str, _Kept] = {}
        self._called_off: set[str] = set()
        self._failed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poke: asyncio.Event
        self._work: Future[None] | None = None

    def start(self) -> None:
        """Begins to renew."""
        self._work = background.submit(self._work_for_ever())

    async def stop(self) -> None:
        """Renews no longer; returns when nothing is under way."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(asyncio.wrap_future(self._work), return_exceptions=True)

    def abandon(self) -> None:
        """Renews no longer; waits for nothing."""
        self._kept.clear()
        if self._work is not None:
            self._work.cancel()

    def keep(self, jobs: Iterable[Job], asked_at: float) -> None:
        """Keeps the leases of jobs claimed by a call that began at `asked_at`."""
        deadline = _NEVER if self._duration is None else asked_at + self._duration
        for job in jobs:
            if job.lease is not None:
                self._kept[job.id] = _Kept(job.lease, deadline)

    def drop(self, job_id: str) -> None:
        """The job has ended: its lease needs no keeping."""
        self._kept.pop(job_id, None)
        self._called_off.discard(job_id)

    def look_now(self) -> None:
        """The store has changed: somebody may have been cancelled. Looks soon, not at every change."""
        if self._loop is not None and self._kept:
            self._loop.call_soon_threadsafe(self._poke.set)

    async def _work_for_ever(self) -> None:
        self._loop, self._poke = asyncio.get_running_loop(), asyncio.Event()
        try:
            await asyncio.gather(self._renew_for_ever(), self._look_for_ever())
        except QueueClosed:
            return

    async def _renew_for_ever(self) -> None:
        while True:
            if self._beat is not None:
                await self._tell_of_us(self._beat)
            await asyncio.sleep(self._pause())
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
            except LongshoreError as error:  # the next beat tells as much
                _log.debug("a look for cancellations failed: %s", error)
            await asyncio.sleep(_BETWEEN_LOOKS)

    async def _look(self) -> None:
        """Asks, without writing, who was cancelled; and, if it should be thorough, who was ended by somebody else."""
        if not self._thorough() and not (await self._backend.count_jobs())[JobStatus.CANCELLING]:
            return
        everything = list(self._kept.items())
        for first in range(0, len(everything), _LOOKED_AT_ONCE):
            batch = dict(everything[first : first + _LOOKED_AT_ONCE])
            held = JobFilter(ids=list(batch), statuses=sorted(HOLDS_CAPACITY))
            found = {job.id: job for job in (await self._backend.list_jobs(held, limit=len(batch))).items}
            self._learn(batch, {job_id: job.lease for job_id, job in found.items() if job.lease is not None})

    def _pause(self) -> float:
        """Until the next renewal, or the next deadline if that comes first."""
        pause = _BEAT if self._interval is None else self._interval
        if self._failed:
            pause = min(pause * _RETRY_SHARE, _RETRY_LONGEST)
        deadline = min((kept.deadline for kept in list(self._kept.values())), default=_NEVER)
        return min(pause, max(deadline - monotonic(), _SOONEST))

    def _give_up_overdue(self) -> None:
        now = monotonic()
        overdue = [job_id for job_id, kept in list(self._kept.items()) if kept.deadline <= now]
        self._lose(overdue)

    def _lose(self, job_ids: list[str]) -> None:
        lost = [job_id for job_id in job_ids if self._kept.pop(job_id, None) is not None]
        self._called_off.difference_update(lost)
        if lost:
            self._lost(lost)

    async def _renew(self) -> None:
        everything = list(self._kept.items())
        if self._interval is None:
            everything = []
        for first in range(0, len(everything), _AT_ONCE):
            await self._renew_batch(dict(everything[first : first + _AT_ONCE]))

    async def _renew_batch(self, batch: dict[str, _Kept]) -> None:
        asked_at = monotonic()
        leases = {job_id: kept.lease for job_id, kept in batch.items()}
        earliest = min(kept.deadline for kept in batch.values())
        duration = self._duration if self._duration is not None else 1.0  # one without an end stays without
        try:
            async with asyncio.timeout(None if earliest == _NEVER else max(earliest - asked_at, _SOONEST)):
                renewed = await self._backend.extend_leases(leases, duration)
        except QueueClosed:
            raise
        except (LongshoreError, TimeoutError) as error:
            if not self._failed:
                _log.warning("%d leases could not be renewed, trying again: %s", len(batch), str(error) or "no answer")
            self._failed = True
            return
        self._failed = False
        deadline = _NEVER if self._duration is None else asked_at + self._duration
        for job_id in renewed:
            if self._keeps(job_id, batch[job_id]):
                self._kept[job_id] = _Kept(batch[job_id].lease, deadline)
        self._learn(batch, renewed)

    def _learn(self, asked: Mapping[str, _Kept], found: Mapping[str, Lease]) -> None:
        """Takes in what the store knows of the leases it was asked about."""
        lost, called_off = [], []
        for job_id, kept in asked.items():
            if not self._keeps(job_id, kept):
                continue
            lease = found.get(job_id)
            if lease is None or lease.epoch != kept.lease.epoch:
                lost.append(job_id)
            elif lease.cancel_requested and job_id not in self._called_off:
                called_off.append(job_id)
        self._lose(lost)
        if called_off:
            self._called_off.update(called_off)
            self._cancelled(called_off)

    def _keeps(self, job_id: str, kept: _Kept) -> bool:
        """Whether we still keep the very lease that was asked about, and not one of a later claim, or none."""
        now = self._kept.get(job_id)
        return now is not None and now.lease.epoch == kept.lease.epoch

    async def _tell_of_us(self, beat: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._interval or _BEAT):
                await beat()
        except (LongshoreError, TimeoutError) as error:  # for people only: no job depends on it
            _log.debug("the heartbeat was not recorded: %s", error)
