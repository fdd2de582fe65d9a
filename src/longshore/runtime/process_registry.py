"""State that all queues of one backend share in this process: open queues, held jobs and the sweep."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

from longshore.backends.base import Backend
from longshore.core.errors import QueueClosed
from longshore.core.job import Job
from longshore.runtime import background
from longshore.safe_logging import logger

SWEEP_SECONDS = 1.0
_JITTER = 0.2
"""Spreads the sweeps of many processes over time."""
_AT_ONCE = 1_000
_LONGEST_PAUSE = 5.0

_sweep_log = logger("longshore.sweep")


async def _sweep(backend: Backend) -> None:
    """Reclaim expired leases until cancelled. A sweep is safe to repeat, so many processes may run one."""
    pause = SWEEP_SECONDS
    while True:
        await asyncio.sleep(pause * (1 + random.uniform(-_JITTER, _JITTER)))
        try:
            while len(await backend.reclaim_expired_leases(_AT_ONCE)) == _AT_ONCE:
                pass
        except QueueClosed:
            return
        except Exception as error:  # leases that expire meanwhile must be found later
            _sweep_log.warning("the sweep for expired leases failed; trying again: %r", error)
            pause = min(pause * 2, _LONGEST_PAUSE)
        else:
            pause = SWEEP_SECONDS


class Holder(Protocol):
    """A stream or worker that holds jobs. Any thread may call these methods."""

    assignee_id: str

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Handle jobs that another caller ended: their slots are free."""
        ...

    def jobs_disowned(self, job_ids: list[str]) -> None:
        """Handle jobs that another caller ended as never executed here: their slots stay taken."""
        ...

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Handle requested cancellations."""
        ...

    def leases_lost(self, job_ids: list[str]) -> None:
        """Handle leases that have ended."""
        ...


class Hold(NamedTuple):
    """A held job: its holder, its queue and the number of the claim."""

    holder: Holder
    queue: str
    number: int


class ProcessRegistry:
    """The registry of one backend in this process. A slot is one entry, so it cannot be freed twice.

    A job may be claimed again before the caller that ended it reports so here. An operation therefore calls `now()`
    before it begins, and frees only what was held by then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakSet[object] = WeakSet()
        self._sweep: Future[None] | None = None
        self._swept_for: set[Holder] = set()
        self._holds: dict[str, Hold] = {}
        self._number = 0

    # -- queues

    def opened(self, queue: object) -> None:
        """Add a queue on this backend."""
        with self._lock:
            self._open.add(queue)

    def closed(self, queue: object) -> bool:
        """Remove a closed queue; return whether it was the last one, which closes the backend."""
        with self._lock:
            self._open.discard(queue)
            return not self._open

    # -- holders

    def start_sweep(self, holder: Holder, backend: Backend) -> None:
        """Sweep expired leases in the background until the last holder that requested it is removed."""
        with self._lock:
            self._swept_for.add(holder)
            self._sweep = self._sweep or background.submit(_sweep(backend))

    def remove(self, holder: Holder) -> None:
        """Remove a stream or worker that has ended, with its jobs."""
        with self._lock:
            self._swept_for.discard(holder)
            if self._sweep is not None and not self._swept_for:
                self._sweep.cancel()
                self._sweep = None
            for job_id in [job_id for job_id, hold in self._holds.items() if hold.holder is holder]:
                del self._holds[job_id]

    def hold(self, holder: Holder, jobs: Iterable[Job]) -> None:
        """Record that the holder claimed these jobs; an earlier holder of one has lost it."""
        before: dict[Holder, list[str]] = defaultdict(list)
        with self._lock:
            self._number += 1
            holds = self._holds
            of_queue: dict[str, Hold] = {}
            for job in jobs:
                earlier = holds.get(job.id)
                if earlier is not None and earlier.holder is not holder:
                    before[earlier.holder].append(job.id)
                holds[job.id] = of_queue.get(job.queue) or of_queue.setdefault(
                    job.queue, Hold(holder, job.queue, self._number)
                )
        for other, job_ids in before.items():
            other.jobs_freed(job_ids)

    def release(self, holder: Holder, job_ids: Iterable[str]) -> None:
        """Record that the holder ended these jobs itself."""
        holds = self._holds
        with self._lock:
            for job_id in job_ids:
                hold = holds.get(job_id)
                if hold is not None and hold.holder is holder:
                    del holds[job_id]

    def not_held(self, holder: Holder, job_ids: Iterable[str]) -> list[str]:
        """Return those of these jobs that the holder does not hold."""
        with self._lock:
            holds = self._holds
            return [each for each in job_ids if (hold := holds.get(each)) is None or hold.holder is not holder]

    # -- for the operations of a queue

    def now(self) -> int:
        """Return the number to note before an operation that ends jobs."""
        with self._lock:
            return self._number

    def freed(self, chosen: Iterable[str] | Callable[[Hold], bool], since: int | None = None) -> None:
        """Free the slots of jobs that were ended or released, given by id or by how they are held."""
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

    def disowned(self, job_ids: Iterable[str]) -> None:
        """Pass on that these jobs were acknowledged as never executed; their slots stay taken."""
        for holder, ids in self._by_holder(job_ids).items():
            holder.jobs_disowned(ids)

    def cancelled(self, job_ids: Iterable[str]) -> None:
        """Pass on that the cancellation of these jobs was requested."""
        for holder, ids in self._by_holder(job_ids).items():
            holder.jobs_cancelled(ids)

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
    """Return the registry of this backend."""
    with _registries_lock:
        if backend not in _registries:
            _registries[backend] = ProcessRegistry()
        return _registries[backend]
