"""The port for looking: what a store can tell without changing anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from longshore.backends.contract import WorkerInfo
from longshore.backends.transaction import Edge, KeyState, QueueState
from longshore.core.clock import ClockStep
from longshore.core.explain import Holder
from longshore.core.filters import JobFilter
from longshore.core.job import LogEntry
from longshore.core.job_record import Record, Tombstone
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.transitions import EventRow


class Tally(NamedTuple):
    """Jobs in one status, and the failures recorded for them."""

    jobs: int
    retries: int


class LogEnds(NamedTuple):
    """Where the event log stands: which log it is, up to where it is pruned, and its last number.

    A position is one number, whatever the store makes it from; positions only grow.
    """

    log: str
    pruned_through: int
    """The last event pruned of the queue that is followed."""
    pruned_anywhere: int
    """The last event pruned of any queue."""
    last: int
    """The last event a follower may read now."""
    end: int
    """No cursor of this log lies beyond this."""
    certain: int
    """Nothing comes in any more before this: all that was committed up to here can be read."""


class Search(NamedTuple):
    """Which jobs a page shall show."""

    wanted: JobFilter
    past: int | None
    """The uid of the last one on the page before."""
    limit: int
    oldest_first: bool = False
    due: bool | None = None
    """Of eligible jobs only those whose time has come (True) or is still to come (False)."""
    now: int = 0


class View(Protocol):
    """A consistent look at the store."""

    def time(self) -> int:
        """The store's clock, in microseconds."""
        ...

    def clock_step(self) -> ClockStep | None:
        """The last step of the machine's clock, if this store detects them."""
        ...

    def job(self, job_id: str) -> Record | None:
        """The job, if there is one."""
        ...

    def jobs_behind(self, pairs: Sequence[tuple[str, str]], since: int, /) -> dict[tuple[str, str], Record | Tombstone]:
        """The jobs behind (queue, idempotency key): as they are, or what is left of those removed after `since`."""
        ...

    def jobs_seen(self, job_ids: Sequence[str]) -> dict[str, Record]:
        """Those of the ids that exist."""
        ...

    def page(self, search: Search) -> list[Record]:
        """The jobs of one page, in order of uid."""
        ...

    def count_delayed(self, queues: Sequence[str] | None, now: int) -> int:
        """Jobs in line whose time is still to come."""
        ...

    def next_due(self, queues: Sequence[str] | None, after: int) -> int | None:
        """The first time after this one that comes for a job in line, LIFO jobs left out."""
        ...

    def tallies(self, tags: Sequence[str], queue: str | None) -> dict[JobStatus, Tally]:
        """Jobs and retries per status, over jobs that carry all tags."""
        ...

    def counts_by_queue(self) -> dict[str, dict[JobStatus, int]]:
        """Jobs per queue and status, where there are any."""
        ...

    def logs(self, job_id: str, after: int) -> list[LogEntry] | None:
        """The job's log lines after a number; None if there is no such job."""
        ...

    def log_ends(self, queue: str | None) -> LogEnds:
        """Where the event log stands, for a follower of this queue (or of all)."""
        ...

    def events(self, after: int, limit: int, queue: str | None, job_id: str | None) -> list[tuple[int, EventRow]]:
        """Events after a number, with their own numbers."""
        ...

    def queue_states(self, names: Sequence[str] | None) -> dict[str, QueueState]:
        """Settings of queues."""
        ...

    def queues_ever_seen(self) -> list[str]:
        """Queues that have jobs, settings or events, by name."""
        ...

    def schedules(self, ids: Sequence[str] | None) -> list[Schedule]:
        """Those of the ids that exist, or all schedules; by id."""
        ...

    def next_firing(self) -> int | None:
        """When the next run of a schedule that is not paused is planned."""
        ...

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        """What is known of these keys."""
        ...

    def rated_queues(self) -> list[QueueState]:
        """The settings of queues that have a rate, of their own or for their keys."""
        ...

    def next_waking(self, queue: str, now: int) -> int | None:
        """When the first key of the queue that has used up any of its rate has its next window."""
        ...

    def holders(self, queue: str, key: str | None, limit: int) -> list[Holder]:
        """Some of those who run in this queue (of this key, if one is named)."""
        ...

    def ahead_of(self, record: Record, now: int, limit: int) -> int:
        """How many jobs of its queue stand in line before this one, counted no further than the limit."""
        ...

    def recent_ends(self, queue: str, since: int, limit: int) -> list[int]:
        """When jobs of this queue completed after `since`, the newest first; removed jobs do not count."""
        ...

    def edges_from(self, job_id: str) -> list[Edge]:
        """What this job depends on."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """The workers heard of, by id."""
        ...
