"""What all queues on one backend share in this process: open workers, streams and background threads."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

from longshore.backends.base import Backend
from longshore.core.errors import QueueClosed
from longshore.core.job import Job
from longshore.runtime import background
from longshore.safe_logging import logger

SWEEP_SECONDS = 1.0
_JITTER = 0.2
"""So that many processes do not all sweep at one moment."""
_AT_ONCE = 1_000
_LONGEST_PAUSE = 5.0

_sweep_log = logger("longshore.sweep")


class Sweeper:
    """Sweeps one backend until it is stopped. Any number may do so at once: a sweep is safe to repeat."""

    def __init__(self, backend: Backend, interval: float = SWEEP_SECONDS) -> None:
        self._backend = backend
        self._interval = interval
        self._work = background.submit(self._sweep_for_ever())

    def stop(self) -> None:
        """Sweeps no longer."""
        self._work.cancel()

    async def _sweep_for_ever(self) -> None:
        pause = self._interval
        while True:
            await asyncio.sleep(pause * (1 + random.uniform(-_JITTER, _JITTER)))
            try:
                while len(await self._backend.reclaim_expired_leases(_AT_ONCE)) == _AT_ONCE:
                    pass
            except QueueClosed:
                return
            except Exception as error:  # whatever it is, what runs out meanwhile must be found later
                _sweep_log.warning("the sweep failed and will be repeated: %r", error)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = self._interval


class Holder(Protocol):
    """A stream or worker that holds jobs; each of these may be called from any thread."""

    assignee_id: str

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Somebody ended these jobs, which this one held: their slots are free."""
        ...

    def jobs_disowned(self, job_ids: list[str]) -> None:
        """Somebody said that they were never executed here: they are over, and their slots stay taken."""
        ...

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Somebody asked for the end of these jobs."""
        ...


class _Hold(NamedTuple):
    holder: Holder
    queue: str
    number: int


class ProcessRegistry:
    """One per backend and process. A slot is one entry of the ledger, so that it can never be given back twice.

    A job that was ended may be claimed again before whoever ended it has told so here. Therefore a verb notes `now()`
    before it begins, and frees only what was held by then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakSet[object] = WeakSet()
        self._sweeper: Sweeper | None = None
        self._swept_for: set[Holder] = set()
        self._holds: dict[str, _Hold] = {}
        self._number = 0

    # -- queues

    def opened(self, queue: object) -> None:
        """A queue on this backend was made."""
        with self._lock:
            self._open.add(queue)

    def closed(self, queue: object) -> bool:
        """A queue was closed; True if it was the last one, whose closing closes the backend."""
        with self._lock:
            self._open.discard(queue)
            return not self._open

    # -- holders

    def joined(self, holder: Holder, backend: Backend, *, sweep: bool) -> None:
        """A stream or worker began; while any wants it, expired leases are swept."""
        with self._lock:
            if sweep:
                self._swept_for.add(holder)
                self._sweeper = self._sweeper or Sweeper(backend)

    def left(self, holder: Holder) -> None:
        """A stream or worker is over: whatever it still held frees nothing any more."""
        with self._lock:
            self._swept_for.discard(holder)
            if self._sweeper is not None and not self._swept_for:
                self._sweeper.stop()
                self._sweeper = None
            for job_id in [job_id for job_id, hold in self._holds.items() if hold.holder is holder]:
                del self._holds[job_id]

    def holds(self, holder: Holder, jobs: Iterable[Job]) -> None:
        """The holder has claimed these jobs; whoever held one of them before holds it no longer."""
        before: dict[Holder, list[str]] = defaultdict(list)
        with self._lock:
            self._number += 1
            holds = self._holds
            of_queue: dict[str, _Hold] = {}
            for job in jobs:
                earlier = holds.get(job.id)
                if earlier is not None and earlier.holder is not holder:
                    before[earlier.holder].append(job.id)
                holds[job.id] = of_queue.get(job.queue) or of_queue.setdefault(
                    job.queue, _Hold(holder, job.queue, self._number)
                )
        for other, job_ids in before.items():
            other.jobs_freed(job_ids)

    def let_go(self, holder: Holder, job_ids: Iterable[str]) -> None:
        """The holder has ended these jobs itself."""
        holds = self._holds
        with self._lock:
            for job_id in job_ids:
                hold = holds.get(job_id)
                if hold is not None and hold.holder is holder:
                    del holds[job_id]

    def not_held(self, holder: Holder, job_ids: Iterable[str]) -> list[str]:
        """Which of these the holder does not hold: not any more, nor by a claim that came in the meantime."""
        with self._lock:
            return [job_id for job_id in job_ids if not self._is_held(holder, job_id)]

    def _is_held(self, holder: Holder, job_id: str) -> bool:
        hold = self._holds.get(job_id)
        return hold is not None and hold.holder is holder

    # -- what the verbs of a queue tell

    def now(self) -> int:
        """To be noted before a verb that ends jobs begins."""
        with self._lock:
            return self._number

    def freed(self, job_ids: Iterable[str], since: int | None = None) -> None:
        """These jobs were ended or given back: the slot of the one stream that holds each is free."""
        self._free(job_ids, since)

    def freed_by_worker(self, assignee_id: str, since: int | None = None) -> None:
        """All that this worker held was taken away from it."""
        self._free(lambda hold: hold.holder.assignee_id == assignee_id, since)

    def freed_in_queue(self, queue: str | None, since: int | None = None) -> None:
        """All held jobs of this queue (None: of all) were taken away from whoever held them."""
        self._free(lambda hold: queue in (None, hold.queue), since)

    def disowned(self, job_ids: Iterable[str]) -> None:
        """These cancellations were acknowledged as never executed, which frees no slot."""
        for holder, ids in self._by_holder(job_ids).items():
            holder.jobs_disowned(ids)

    def cancelled(self, job_ids: Iterable[str]) -> None:
        """The end of these jobs was asked for."""
        for holder, ids in self._by_holder(job_ids).items():
            holder.jobs_cancelled(ids)

    def _free(self, chosen: Iterable[str] | Callable[[_Hold], bool], since: int | None) -> None:
        freed: dict[Holder, list[str]] = defaultdict(list)
        with self._lock:
            if callable(chosen):
                chosen = [job_id for job_id, hold in self._holds.items() if chosen(hold)]
            for job_id in chosen:
                hold = self._holds.get(job_id)
                if hold is not None and (since is None or hold.number <= since):
                    freed[hold.holder].append(job_id)
                    del self._holds[job_id]
        for holder, ids in freed.items():
            holder.jobs_freed(ids)

    def _by_holder(self, job_ids: Iterable[str]) -> dict[Holder, list[str]]:
        found: dict[Holder, list[str]] = defaultdict(list)
        with self._lock:
            for job_id in job_ids:
                hold = self._holds.get(job_id)
                if hold is not None:
                    found[hold.holder].append(job_id)
        return found


_registries: WeakKeyDictionary[Backend, ProcessRegistry] = WeakKeyDictionary()
_registries_lock = threading.Lock()


def registry_of(backend: Backend) -> ProcessRegistry:
    """The registry of this backend."""
    with _registries_lock:
        if backend not in _registries:
            _registries[backend] = ProcessRegistry()
        return _registries[backend]
