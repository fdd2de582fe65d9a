"""The public records: a job, its lease, its numbers, its events. Immutable, with no storage inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from longshore.core.dependencies import DependencyPolicy
from longshore.core.status import HOLDS_CAPACITY, JobStatus
from longshore.core.times import Duration, Moment
from longshore.core.validation import new_id, read_json


class _Unnamed(str):
    """The name of the default queue where the caller gave none: equal to "default", but a distinct object."""

    __slots__ = ()


DEFAULT_QUEUE: str = _Unnamed("default")


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job and report on it, until `expires_at` (None: it never ends).

    `epoch` is the job's claim number; it only grows, and a write that carries an older one changes nothing.
    """

    token: str
    epoch: int
    expires_at: datetime | None
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as it stood when it was read. What a caller sets comes first; the rest is the store's to fill in."""

    id: str = field(default_factory=new_id)
    type: str
    payload: bytes = b"null"
    queue: str = DEFAULT_QUEUE
    tags: Sequence[str] = ()
    """A tuple once it is made, whatever was given."""
    status: JobStatus = JobStatus.INITIAL_PENDING
    priority: int = 0
    lifo: bool = False
    run_at: Moment | None = None
    """Do not start before; a duration is counted from the store's clock."""
    delay: Duration | None = None
    """Like `run_at` as a duration, and remembered as given; `run_at` wins where both are given."""
    expires_at: Moment | None = None
    """Do not start after."""
    timeout: Duration | None = None
    """How long one execution may take."""
    max_attempts: int = 0
    """Executions that may fail before the job is buried; 0 is no limit."""
    max_crashes: int | None = None
    """Crashes survived; one more buries the job. None is no limit; 0 means never run again after a crash."""
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    parent_id: str | None = None
    depends_on: Sequence[str] = ()
    on_dependency_failure: DependencyPolicy = "wait"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options as given (backoff, retry strategy, removal ...); JSON."""

    uid: int = 0
    executions: int = 0
    retry_count: int = 0
    crashes: int = 0
    epoch: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    started_at: datetime | None = None
    finalized_at: datetime | None = None
    last_retry_at: datetime | None = None
    assigned_at: datetime | None = None
    assignee_id: str | None = None
    """The worker that had it last; never cleared. `lease` is set while a worker holds it."""
    lease: Lease | None = None
    result: bytes | None = None
    error_message: str = ""
    progress: Any = None
    checkpoint: Any = None
    schedule_id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tags, list | set | frozenset):
            object.__setattr__(self, "tags", tuple(self.tags))
        if isinstance(self.depends_on, list | set | frozenset):
            object.__setattr__(self, "depends_on", tuple(self.depends_on))

    @property
    def data(self) -> Any:
        """The payload decoded from JSON."""
        return read_json("payload", self.payload)

    @property
    def planned_at(self) -> datetime | None:
        """The planned time of a schedule that this job was made for; None if it was made by hand, or by no schedule."""
        return planned_time_in(self.id, self.schedule_id)

    def replace(self, **changes: Any) -> Self:
        """A copy with these fields changed."""
        return dataclasses.replace(self, **changes)


_WORK = ("type", "payload", "tags", "priority", "lifo", "delay", "timeout")
_LIMITS = ("max_attempts", "max_crashes", "concurrency_key")


def new_job_like(job: Job, **fields: Any) -> Job:
    """A new job with the work and the limits of this one; its id, edges and options are among `fields`."""
    kept = {name: getattr(job, name) for name in _WORK + _LIMITS}
    return Job(**{**kept, "queue": str(job.queue), **fields})


def run_id(schedule_id: str, planned: datetime) -> str:
    """The id of a schedule's job for a planned time. It is unique, so several schedulers make the job once."""
    return f"{schedule_id}@{planned.isoformat().replace('+00:00', 'Z')}"


def planned_time_in(job_id: str, schedule_id: str | None) -> datetime | None:
    """The planned time that `run_id` wrote into an id; None for any other id."""
    if schedule_id is None or not job_id.startswith(f"{schedule_id}@"):
        return None
    written = job_id.removeprefix(f"{schedule_id}@").partition("~")[0]  # a number follows where the id was in use
    try:
        planned = datetime.fromisoformat(written)
    except ValueError:
        return None
    return planned if planned.tzinfo is not None else None


@dataclass(frozen=True, slots=True)
class JobStats:
    """Counts over the jobs that carry all of `tags`.

    CANCELLING, CREATED and WAITING_CHILDREN count in the total only; DEAD counts as stopped.
    """

    tags: tuple[str, ...]
    total_jobs: int
    pending_jobs: int
    running_jobs: int
    completed_jobs: int
    stopped_jobs: int
    failed_jobs: int
    total_retries: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of the durable log. One job's events are ordered by `job_seq` (1, 2, 3 …) and by nothing else.

    An event that is no transition has no statuses; an event of a queue or worker has no job.
    """

    cursor: str
    job_uid: int | None
    job_id: str | None
    job_seq: int
    queue: str
    type: str | None
    event: str
    from_status: JobStatus | None
    to_status: JobStatus | None
    epoch: int
    execution: int
    assignee_id: str | None
    actor: str
    occurred_at: datetime
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line a job wrote; `number` counts from 1 within the job, for `read_logs(after=…)`."""

    number: int
    at: datetime
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution; `outcome` is the event that ended it, or `running`."""

    execution: int
    epoch: int
    worker: str | None
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str = "running"
    status: JobStatus | None = None
    """What it left the job in."""
    error: str = ""


def attempts_of(events: Iterable[JobEvent]) -> list[Attempt]:
    """From the events of one job, in any order; attempts whose events were pruned are missing."""
    attempts: list[Attempt] = []
    open_one: Attempt | None = None
    for event in sorted(events, key=lambda one: one.job_seq):
        if event.to_status is None:
            continue
        if event.to_status is JobStatus.RUNNING:
            open_one = Attempt(event.execution, event.epoch, event.assignee_id, event.occurred_at)
            attempts.append(open_one)
        elif open_one is not None and event.to_status not in HOLDS_CAPACITY:
            attempts[-1] = replace(
                open_one,
                ended_at=event.occurred_at,
                outcome=event.event,
                status=event.to_status,
                error=str(event.detail.get("error") or event.detail.get("reason") or ""),
            )
            open_one = None
    return attempts
