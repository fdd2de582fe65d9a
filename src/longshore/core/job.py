"""The public records: job, lease, statistics, events. They are immutable and independent of any store."""

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
    """The name of the default queue if the caller gave none: equal to "default", but a distinct object."""

    __slots__ = ()


DEFAULT_QUEUE: str = _Unnamed("default")


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job and to settle it, until `expires_at` (None: no expiry).

    `epoch` is the job's claim number. It only grows, and a write with an older epoch changes nothing.
    """

    token: str
    epoch: int
    expires_at: datetime | None
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as a snapshot. Callers set the first fields; the store fills in the rest. See docs/queue.md."""

    id: str = field(default_factory=new_id)
    type: str
    payload: bytes = b"null"
    queue: str = DEFAULT_QUEUE
    tags: Sequence[str] = ()
    """Stored as a tuple."""
    status: JobStatus = JobStatus.INITIAL_PENDING
    priority: int = 0
    lifo: bool = False
    run_at: Moment | None = None
    """Do not start before. A duration counts from the store's clock."""
    delay: Duration | None = None
    """Like `run_at` as a duration, and stored as given. `run_at` wins if both are set."""
    expires_at: Moment | None = None
    """Do not start after."""
    timeout: Duration | None = None
    """How long one attempt may take."""
    max_attempts: int = 0
    """Attempts that may fail before the job is buried; 0 means no limit."""
    max_crashes: int | None = None
    """Crashes survived; one more buries the job. None means no limit; 0 means never run again after a crash."""
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    parent_id: str | None = None
    depends_on: Sequence[str] = ()
    on_dependency_failure: DependencyPolicy = "wait"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options as given (backoff, retry strategy, removal …), as JSON values."""

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
    """The worker that held it last; never cleared. `lease` is set while a worker holds it."""
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
        """The schedule occurrence that this job was created for; None for any other job."""
        return planned_time_in(self.id, self.schedule_id)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return dataclasses.replace(self, **changes)


_WORK = ("type", "payload", "tags", "priority", "lifo", "delay", "timeout")
_LIMITS = ("max_attempts", "max_crashes", "concurrency_key")


def new_job_like(job: Job, **fields: Any) -> Job:
    """A new job with the work and the limits of this one; `fields` holds its id, dependencies and options."""
    kept = {name: getattr(job, name) for name in _WORK + _LIMITS}
    return Job(**{**kept, "queue": str(job.queue), **fields})


def run_id(schedule_id: str, planned: datetime) -> str:
    """The id of a schedule's job for an occurrence. It is deterministic, so several schedulers create the job once."""
    return f"{schedule_id}@{planned.isoformat().replace('+00:00', 'Z')}"


def planned_time_in(job_id: str, schedule_id: str | None) -> datetime | None:
    """The occurrence encoded by `run_id`; None for any other id."""
    if schedule_id is None or not job_id.startswith(f"{schedule_id}@"):
        return None
    written = job_id.removeprefix(f"{schedule_id}@").partition("~")[0]  # `~number` follows if the id was in use
    try:
        planned = datetime.fromisoformat(written)
    except ValueError:
        return None
    return planned if planned.tzinfo is not None else None


@dataclass(frozen=True, slots=True)
class JobStats:
    """Counts over the jobs that have all of `tags`.

    CANCELLING, CREATED and WAITING_CHILDREN count in the total only; DEAD counts as stopped. See docs/queue.md.
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
    """One event of the event log. `job_seq` (1, 2, 3 …), and nothing else, orders the events of one job.

    An event that is not a transition has no statuses; an event of a queue or worker has no job. See docs/queue.md.
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
    """A line that a job logged; `number` counts from 1 within the job, for `read_logs(after=…)`."""

    number: int
    at: datetime
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt; `outcome` is the event that ended it, or `running`."""

    execution: int
    epoch: int
    worker: str | None
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str = "running"
    status: JobStatus | None = None
    """The job's status after it."""
    error: str = ""


def attempts_of(events: Iterable[JobEvent]) -> list[Attempt]:
    """Build the attempts from the events of one job, in any order. Attempts whose events were pruned are missing."""
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
