"""Waiting for jobs to end: one look at the store for all who wait, however many they are."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic

from longshore.core.errors import BackendUnavailable, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import FINAL
from longshore.runtime import background
from longshore.runtime.job_queue import Queue

_POLL = 1.0
"""Seconds after which a change that no hint told of is found by looking."""
_SHORTEST_PAUSE = 0.005
"""Seconds between two looks at a store that is busy with other jobs."""
_FIRST_PAUSE = 0.05
"""Seconds between two looks at a store that cannot be used; they double up to a poll's."""
_LOOKED_AT_ONCE = 500


class WaitingRoom:
    """Who waits for which job of a store. It reads jobs, never the event log, whose end may lag behind."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[Job]]] = {}
        self._looking = False

    async def ended(self, job_id: str, timeout: float | None) -> Job:
        """The job once it is final, or TimeoutError. A store that cannot be used for a while is waited for, too."""
        turn: Future[Job] = Future()
        with self._lock:  # before the first look, so that no end falls between the two
            self._waiting.setdefault(job_id, []).append(turn)
        try:
            with suppress(BackendUnavailable):
                job = await self._queue.get_job(job_id)
                if job.status in FINAL:
                    return job
            self._begin_to_look()
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(turn)
        finally:
            self._leave(job_id, turn)

    def _leave(self, job_id: str, turn: Future[Job]) -> None:
        with self._lock:
            turns = self._waiting.get(job_id, [])
            with suppress(ValueError):
                turns.remove(turn)
            if not turns:
                self._waiting.pop(job_id, None)

    def _begin_to_look(self) -> None:
        with self._lock:
            if not self._looking:
                self._looking = True
                background.submit(self._look_until_nobody_waits())

    async def _look_until_nobody_waits(self) -> None:
        looked_for_removed = monotonic()
        pause = _FIRST_PAUSE
        while ids := self._awaited():
            began = monotonic()
            removed_too = began - looked_for_removed >= _POLL
            changed = asyncio.ensure_future(self._queue.backend.wait_for_change(_POLL))
            await asyncio.sleep(0)  # it listens from here on: what changes during the look is not missed
            try:
                for first in range(0, len(ids), _LOOKED_AT_ONCE):
                    await self._look(ids[first : first + _LOOKED_AT_ONCE], removed_too=removed_too)
                took = monotonic() - began
                if removed_too:
                    looked_for_removed = monotonic()
                await changed
            except Exception as error:
                changed.cancel()
                await asyncio.gather(changed, return_exceptions=True)
                if isinstance(error, BackendUnavailable):  # it may be back before they have waited enough
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _POLL)
                else:  # whoever waits must hear of it, whatever it is
                    self._tell_all(error)
            else:  # a busy store is looked at for no more than half of the time
                pause = _FIRST_PAUSE
                await asyncio.sleep(began + max(_SHORTEST_PAUSE, 2 * took) - monotonic())

    def _awaited(self) -> list[str]:
        with self._lock:
            self._looking = bool(self._waiting)
            return list(self._waiting)

    async def _look(self, ids: list[str], *, removed_too: bool) -> None:
        wanted = JobFilter(ids=ids) if removed_too else JobFilter(ids=ids, statuses=tuple(FINAL))
        found = {job.id: job for job in (await self._queue.backend.list_jobs(wanted, limit=len(ids))).items}
        for job in found.values():
            if job.status in FINAL:
                self._tell(job.id, job)
        if removed_too:
            for job_id in ids:
                if job_id not in found:
                    self._tell(job_id, JobNotFound(job_id))

    def _tell(self, job_id: str, news: Job | Exception) -> None:
        with self._lock:
            turns = self._waiting.pop(job_id, [])
        for turn in turns:
            if not turn.set_running_or_notify_cancel():
                continue
            if isinstance(news, Job):
                turn.set_result(news)
            else:
                turn.set_exception(news)

    def _tell_all(self, error: Exception) -> None:
        for job_id in list(self._waiting):
            self._tell(job_id, error)
