"""What all queues on one backend share in this process: who is open, who holds which job, and the sweep."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from longshore.backends.contract import Backend
from longshore.core.job import Job
from longshore.runtime.maintenance import Sweeper


class Holder(Protocol):
    """A stream or worker that holds jobs; each of these may be called from any thread."""

    assignee_id: str

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Somebody ended these jobs, which this one held: their slots are free."""
        ...

    def jobs_disowned(self, job_ids: list[str]) -> None:
        """Somebody said that they were never executed here: they are over, and their slots stay taken."""
        ...

    def jobs_freed_where(self, chosen: Callable[[Job], bool]) -> None:
        """Somebody took these jobs away from whoever held them."""
        ...

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Somebody asked for the end of these jobs."""
        ...


class Dock:
    """One per backend and process. A slot is one entry of the ledger, so that it can never be given back twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakSet[object] = WeakSet()
        self._sweeper: Sweeper | None = None
        self._swept_for: set[Holder] = set()
        self._holders: dict[str, Holder] = {}
        self._present: set[Holder] = set()

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
            self._present.add(holder)
            if sweep:
                self._swept_for.add(holder)
                self._sweeper = self._sweeper or Sweeper(backend)

    def left(self, holder: Holder) -> None:
        """A stream or worker is over: whatever it still held frees nothing any more."""
        with self._lock:
            self._present.discard(holder)
            self._swept_for.discard(holder)
            if self._sweeper is not None and not self._swept_for:
                self._sweeper.stop()
                self._sweeper = None
            for job_id in [job_id for job_id, other in self._holders.items() if other is holder]:
                del self._holders[job_id]

    def holds(self, holder: Holder, jobs: Iterable[Job]) -> None:
        """The holder has claimed these jobs."""
        with self._lock:
            for job in jobs:
                self._holders[job.id] = holder

    def let_go(self, holder: Holder, job_ids: Iterable[str]) -> None:
        """The holder has ended these jobs itself."""
        with self._lock:
            for job_id in job_ids:
                if self._holders.get(job_id) is holder:
                    del self._holders[job_id]

    # -- what the verbs of a queue tell

    def freed(self, job_ids: Iterable[str]) -> None:
        """These jobs were ended or given back: the slot of the one stream that holds each is free."""
        for holder, ids in self._by_holder(job_ids, forget=True).items():
            holder.jobs_freed(ids)

    def disowned(self, job_ids: Iterable[str]) -> None:
        """These cancellations were acknowledged as never executed, which frees no slot."""
        for holder, ids in self._by_holder(job_ids).items():
            holder.jobs_disowned(ids)

    def cancelled(self, job_ids: Iterable[str]) -> None:
        """The end of these jobs was asked for."""
        for holder, ids in self._by_holder(job_ids).items():
            holder.jobs_cancelled(ids)

    def freed_by_worker(self, assignee_id: str) -> None:
        """All that this worker held was taken away from it."""
        for holder in self._all():
            if holder.assignee_id == assignee_id:
                holder.jobs_freed_where(lambda _: True)

    def freed_in_queue(self, queue: str | None) -> None:
        """All held jobs of this queue (None: of all) were taken away from whoever held them."""
        for holder in self._all():
            holder.jobs_freed_where(lambda job: queue is None or job.queue == queue)

    def _all(self) -> list[Holder]:
        with self._lock:
            return list(self._present)

    def _by_holder(self, job_ids: Iterable[str], *, forget: bool = False) -> dict[Holder, list[str]]:
        found: dict[Holder, list[str]] = defaultdict(list)
        with self._lock:
            for job_id in job_ids:
                holder = self._holders.pop(job_id, None) if forget else self._holders.get(job_id)
                if holder is not None:
                    found[holder].append(job_id)
        return found


_docks: WeakKeyDictionary[Backend, Dock] = WeakKeyDictionary()
_docks_lock = threading.Lock()


def dock_of(backend: Backend) -> Dock:
    """The dock of this backend."""
    with _docks_lock:
        if backend not in _docks:
            _docks[backend] = Dock()
        return _docks[backend]
