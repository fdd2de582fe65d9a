"""What one look at the store tells of a job and of all that may keep it from running."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from longshore.core.clock import ClockStep
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus
from longshore.core.limits import Rate

MOST_LISTED = 10
"""How many holders, dependencies or workers a look names; of more it says how many there are."""
RECENT = timedelta(minutes=10)
"""The window of completions that measures the throughput of a queue."""
MOST_ENDS = 200
"""The most completions that are read."""
MOST_COUNTED = 1_000
"""How far the line ahead of a job is counted."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that runs, and so takes up room."""

    job_id: str
    worker: str | None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a limit on running jobs, and of a rate, is used up; of a queue, or of one of its keys."""

    limit: int | None = None
    running: int = 0
    holders: tuple[Holder, ...] = ()
    """The first few of those who run, where the limit is reached."""
    rate: Rate | None = None
    started: int = 0
    """How many have started in the present window."""
    window_ends: datetime | None = None

    @property
    def full(self) -> bool:
        """Whether as many run as may."""
        return self.limit is not None and self.running >= self.limit

    @property
    def rate_used_up(self) -> bool:
        """Whether as many have started in the present window as may."""
        return self.rate is not None and self.started >= self.rate.count


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job that is waited for: None if no job has that id."""

    job_id: str
    status: JobStatus | None
    step: str = ""
    """Its name as a step of a flow, if it is one."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker as it last told of itself."""

    id: str
    queues: tuple[str, ...]
    """The queues it works for; none named means all."""
    tags: tuple[str, ...]
    """The tags that every job it takes must have."""
    concurrency: int
    running: int
    state: str
    seen_at: datetime | None
    types: tuple[str, ...] | None = None
    """The types of jobs that it claims; None is all."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One consistent look, by the store's own clock."""

    now: datetime
    job: Job
    eligible_at: datetime
    paused: bool = False
    queue: Usage = field(default_factory=Usage)
    key: Usage = field(default_factory=Usage)
    waits_for: tuple[Dependency, ...] = ()
    """The first few of the dependencies that hold it up."""
    deps_left: int = 0
    ahead: int = 0
    """Jobs before it in the line of its queue, counted no further than `MOST_COUNTED`."""
    workers: tuple[WorkerSeen, ...] = ()
    clock_step: ClockStep | None = None
    """The last step of the machine's clock that the store detected."""
    given_back: str = ""
    """Why the worker that had it last gave it back until later, if one did and said so."""
    recent_ends: tuple[datetime, ...] = ()
    """When jobs of its queue completed in the last `RECENT`, the newest first, `MOST_ENDS` at most."""
