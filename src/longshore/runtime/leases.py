"""Renews leases in batches from the background thread, and reports lost leases and cancellations."""

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
from longshore.runtime.process_registry import Holder
from longshore.safe_logging import logger

_AT_ONCE = 5_000
"""Leases renewed by one call: enough for most workers, and few enough not to delay other writers."""
_CHECKED_AT_ONCE = 1_000
_COMPARED = 20
"""Lost leases that are compared with the store; any of them reveals an older copy."""
_CHECK_INTERVAL = 0.1
"""Seconds between two checks for cancellations by other processes, even if the store is busy."""
_CHECK_DELAY = 0.02
"""Seconds from a change of the store to a check: a job that ends sooner needs none."""
_SOONEST = 0.02
_LONGEST_INTERVAL = 15.0
_RETRY_SHARE, _RETRY_LONGEST = 0.2, 1.0
_NEVER = float("inf")

_log = logger("longshore.worker")


def renew_interval(duration: float) -> float:
    """Return the default seconds between renewals of leases of this duration.

    A quarter: a frozen process keeps its jobs if it resumes within three quarters of the lease.
    """
    return min(_LONGEST_INTERVAL, duration / 4)


class _Kept(NamedTuple):
    lease: Lease
    deadline: float
    """By the local monotonic clock, counted from before the call: never later than the store's own deadline."""


class LeaseKeeper:
    """Three periodic tasks in the background thread: renew leases, find cancellations, write the heartbeat.

    The thread runs no user code, so a job that blocks the event loop keeps its lease. A lease that cannot be renewed
    counts as lost at its deadline, for whatever reason the store does not answer.
    """

    def __init__(
        self,
        backend: Backend,
        duration: float | None,
        interval: float | None,
        holder: Holder,
        *,
        find_ended: Callable[[], bool] | None = None,
        heartbeat: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`duration` None means a lease that never expires; `interval` None means no renewals.

        `find_ended` decides whether a check for cancellations also finds jobs that another process ended.
        """
        self._backend = backend
        self._duration = duration
        self._interval = interval
        self._holder = holder
        self._find_ended = find_ended
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._cancelled: set[str] = set()
        """Jobs whose cancellation the holder has received."""
        self._failed = False
        self._owner: asyncio.AbstractEventLoop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store_changed = asyncio.Event()
        self._renew_now = asyncio.Event()
        self._renews_at = 0.0
        """When the next renewal is due, by the monotonic clock."""
        self._margin = 0.0 if duration is None or interval is None else (duration - interval) / 2
        """Seconds before its deadline by which a lease should be renewed; a new claim has more left."""
        self._task: asyncio.Task[None]
        self._started = False
        self._end: Future[None] | None = None

    def start(self) -> None:
        """Start the three tasks; they end with the running loop or by `stop`."""
        self._owner = asyncio.get_running_loop()
        self._started = True
        background.submit(self._run())

    async def stop(self) -> None:
        """Stop renewing, and wait until no call is running."""
        self.abandon()
        if self._end is not None:
            await asyncio.wait([asyncio.wrap_future(self._end)])

    def abandon(self) -> None:
        """Stop renewing without waiting."""
        with self._lock:
            self._kept.clear()
        if self._started and self._end is None:
            self._end = background.submit(self._cancel())

    async def _cancel(self) -> None:
        self._task.cancel()  # it has started: the background loop keeps the order of submission
        await asyncio.wait([self._task])

    def keep(self, jobs: Iterable[Job], sent_at: float) -> None:
        """Keep the leases of jobs claimed by a call that was sent at `sent_at`."""
        deadline = _NEVER if self._duration is None else sent_at + self._duration
        with self._lock:
            kept: _Kept | None = None
            for job in jobs:
                if job.lease is not None:
                    if kept is None or kept.lease is not job.lease:  # jobs of one claim mostly share a lease
                        kept = _Kept(job.lease, deadline)
                    self._kept[job.id] = kept
                    if self._cancelled:
                        self._cancelled.discard(job.id)
            if deadline - self._margin < self._renews_at and self._loop is not None:  # the answer arrived late
                self._loop.call_soon_threadsafe(self._renew_now.set)

    def keeps(self, job_id: str) -> bool:
        """Whether it keeps a lease of this job: false after a loss, until the job is claimed again."""
        return job_id in self._kept

    def drop(self, job_ids: Iterable[str]) -> None:
        """Forget the leases of these jobs."""
        with self._lock:
            for job_id in job_ids:
                self._kept.pop(job_id, None)
                if self._cancelled:
                    self._cancelled.discard(job_id)

    def check_soon(self) -> None:
        """Check for cancellations soon after a change of the store; many changes share one check."""
        if not self._kept:
            return
        with self._lock:
            if self._loop is None:
                self._store_changed.set()  # no task waits for it yet
            else:
                self._loop.call_soon_threadsafe(self._store_changed.set)

    # -- the three tasks

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        with self._lock:
            self._loop = asyncio.get_running_loop()
        others = [asyncio.ensure_future(self._repeat(self._find_cancellations))]
        if self._heartbeat is not None:  # separate from the renewals, because it may hang
            others.append(asyncio.ensure_future(self._repeat(self._write_heartbeat)))
        try:
            await self._repeat(self._renew_when_due)
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _repeat(self, job: Callable[[], Awaitable[None]]) -> None:
        while not self._owner.is_closed():
            try:
                await job()
            except QueueClosed:
                return
            except Exception:
                _log.exception("the lease keeper failed; trying again")
                await asyncio.sleep(_RETRY_LONGEST)

    async def _renew_when_due(self) -> None:
        self._renew_now.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause()):
                await self._renew_now.wait()
        now = monotonic()
        with self._lock:
            lost = [job_id for job_id, kept in self._kept.items() if kept.deadline <= now]
            self._forget(lost)
        if lost:
            self._holder.leases_lost(lost)
        everything = self._everything() if self._interval is not None else []
        failed = False
        for first in range(0, len(everything), _AT_ONCE):
            failed = not await self._renew_batch(dict(everything[first : first + _AT_ONCE])) or failed
        self._failed = failed

    async def _find_cancellations(self) -> None:
        """Read which jobs are cancelled and, if requested, which ones another process ended."""
        await self._store_changed.wait()
        await asyncio.sleep(_CHECK_DELAY)
        self._store_changed.clear()
        if not self._kept:
            return
        try:
            find_ended = self._find_ended is not None and self._find_ended()
            if find_ended or (await self._backend.count_jobs())[JobStatus.CANCELLING]:
                everything = self._everything()
                for first in range(0, len(everything), _CHECKED_AT_ONCE):
                    await self._check(dict(everything[first : first + _CHECKED_AT_ONCE]))
        except QueueClosed:
            raise
        except Exception as error:  # the next renewal reports it again
            _log.debug("the check for cancellations failed: %r", error)
        await asyncio.sleep(_CHECK_INTERVAL)

    async def _check(self, batch: dict[str, _Kept]) -> None:
        held = JobFilter(ids=list(batch), statuses=sorted(HOLDS_CAPACITY))
        found = (await self._backend.list_jobs(held, limit=len(batch))).items
        lost = self._compare(batch, {job.id: job.lease for job in found if job.lease is not None})
        await self._report_older_copy(lost)

    async def _write_heartbeat(self) -> None:
        assert self._heartbeat is not None
        try:
            async with asyncio.timeout(_LONGEST_INTERVAL):
                await self._heartbeat()
        except QueueClosed:
            raise
        except Exception as error:  # it is informational: no job depends on it
            _log.debug("the heartbeat was not recorded: %r", error)
        await asyncio.sleep(self._interval or _LONGEST_INTERVAL)

    # -- renewals

    def _pause(self) -> float:
        """Return the seconds until the next renewal, or until the first lease needs one or expires."""
        pause = self._interval
        if pause is None:
            pause = min(_LONGEST_INTERVAL, self._duration or _LONGEST_INTERVAL)
        if self._failed:
            pause = min(pause * _RETRY_SHARE, _RETRY_LONGEST)
        with self._lock:  # a lease kept later is compared with this plan
            now = monotonic()
            deadline = min((kept.deadline for kept in self._kept.values()), default=_NEVER)
            if not self._failed:
                deadline -= self._margin
            self._renews_at = now + min(pause, max(deadline - now, _SOONEST))
            return self._renews_at - now

    def _forget(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            del self._kept[job_id]
        self._cancelled.difference_update(job_ids)

    def _everything(self) -> list[tuple[str, _Kept]]:
        with self._lock:
            return list(self._kept.items())

    async def _renew_batch(self, batch: dict[str, _Kept]) -> bool:
        """Renew these leases; return False if the store did not answer."""
        sent_at = monotonic()
        leases = {job_id: kept.lease for job_id, kept in batch.items()}
        earliest = min(kept.deadline for kept in batch.values())
        duration = self._duration if self._duration is not None else 1.0  # a lease without expiry stays without
        try:
            async with asyncio.timeout(None if earliest == _NEVER else max(earliest - sent_at, _SOONEST)):
                renewed = await self._backend.extend_leases(leases, duration)
        except QueueClosed:
            raise
        except Exception as error:  # the deadline decides, whatever the error is
            if not self._failed:
                _log.warning("cannot renew %d leases; trying again: %s", len(batch), str(error) or "no answer")
            return False
        lost = self._compare(batch, renewed, _NEVER if self._duration is None else sent_at + self._duration)
        try:
            await self._report_older_copy(lost)
        except QueueClosed:
            raise
        except Exception as error:  # the leases were renewed; only the reason of the loss is unknown
            _log.debug("cannot compare lost leases with the store: %r", error)
        return True

    async def _report_older_copy(self, lost: Mapping[str, Lease]) -> None:
        """Log an error if the store knows a lost job only by an earlier claim, or by another claim of the same epoch.

        Epochs of a job only grow. Only an older copy of the store has lower ones and uses them again.
        """
        if not lost:
            return
        some = JobFilter(ids=sorted(lost)[:_COMPARED])
        for job in (await self._backend.list_jobs(some, limit=_COMPARED)).items:
            held = lost[job.id]
            used_again = job.epoch == held.epoch and job.lease is not None and job.lease.token != held.token
            if job.epoch < held.epoch or used_again:
                _log.error(
                    "the store was replaced by an older copy: job %s was claimed here with epoch %d, and it has "
                    "%s epoch %d. The store refuses %d leases of this worker, and the worker drops their jobs. "
                    "It continues with the restored copy",
                    job.id,
                    held.epoch,
                    "another claim of" if used_again else "only",
                    job.epoch,
                    len(lost),
                )
                return

    def _compare(
        self, requested: Mapping[str, _Kept], found: Mapping[str, Lease], deadline: float | None = None
    ) -> dict[str, Lease]:
        """Compare kept leases with those of the store; renewed ones are valid until `deadline`.

        Report lost leases and new cancellations to the holder, and return the lost leases.
        """
        lost: list[str] = []
        cancelled: list[str] = []
        with self._lock:
            for job_id, kept in requested.items():
                now = self._kept.get(job_id)
                if now is None or not _same(now.lease, kept.lease):
                    continue  # dropped or claimed again since the call
                lease = found.get(job_id)
                if lease is None or not _same(lease, kept.lease):
                    lost.append(job_id)
                    continue
                if deadline is not None:
                    self._kept[job_id] = _Kept(kept.lease, deadline)
                if lease.cancel_requested and job_id not in self._cancelled:
                    cancelled.append(job_id)
            self._forget(lost)
            self._cancelled.update(cancelled)
        if lost:
            self._holder.leases_lost(lost)
        if cancelled:
            self._holder.jobs_cancelled(cancelled)
        return {job_id: requested[job_id].lease for job_id in lost}


def _same(one: Lease, other: Lease) -> bool:
    """Whether both are of the same claim; a restored store uses an epoch again with another token."""
    return one.epoch == other.epoch and one.token == other.token
