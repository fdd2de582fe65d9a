"""The backend contract: every operation of a store, in the order in which a job meets them, and the records they use.

To add an operation: declare it in `Backend`, and follow the recipe in CONTRIBUTING.md. `RemoteBackend`, `Queue` and
`queue.sync` take their signatures from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, Self, cast, runtime_checkable

from longshore.core.errors import BackendUnavailable, LongshoreError
from longshore.core.explain import Facts
from longshore.core.filters import JobFilter
from longshore.core.health import Condition
from longshore.core.job import Job, JobEvent, JobStats, Lease, LogEntry
from longshore.core.limits import Rate
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment, check_duration
from longshore.core.validation import check_name, check_names, check_number, check_tags

Freed = dict[str, int]
"""The number of released slots, by worker id."""

OutcomeVerb = Literal["complete", "fail", "bury", "stop", "release", "crash"]

WorkerEvent = Literal["worker.error", "worker.drained"]


class Unchanged(Enum):
    """The default of a setting that stays as it is; None means no limit."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Optional features of a store, by which the conformance kit skips tests. See docs/write-a-backend.md."""

    durable: bool = False
    """An acknowledged write survives the process."""
    shared: bool = False
    """A second backend on the same URL sees the same jobs."""
    joins_transactions: bool = False
    """`enqueue_jobs(connection=…)` writes inside the caller's own transaction."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a worker's job ended, for `settle_jobs`. See docs/backend.md."""

    job_id: str
    lease: Lease | None
    verb: OutcomeVerb = "complete"
    result: bytes | None = None
    error: str = ""
    retry_at: Moment | None = None


@dataclass(slots=True)
class _MutableOutcome:
    """`Outcome` without `frozen`: filled, then turned into an `Outcome`, in a third of the time."""

    job_id: str
    lease: Lease | None
    verb: OutcomeVerb
    result: bytes | None
    error: str
    retry_at: Moment | None


def completed(job_id: str, lease: Lease | None, result: bytes | None = None) -> Outcome:
    """`Outcome(job_id, lease, result=result)`, created faster: workers create one for nearly every job."""
    outcome: Any = _MutableOutcome(job_id, lease, "complete", result, "", None)
    outcome.__class__ = Outcome
    return cast(Outcome, outcome)


@dataclass(frozen=True, slots=True)
class SettleReport:
    """The result of a batch of outcomes. Stale outcomes are refused, each with its reason; the others are settled."""

    settled: dict[str, JobStatus] = field(default_factory=dict)
    refused: dict[str, LongshoreError] = field(default_factory=dict)
    freed: Freed = field(default_factory=dict)


class ClaimFailed(BackendUnavailable):
    """The outcomes in `report` are settled, but the claim after them failed, or its answer was lost."""

    def __init__(self, report: SettleReport, error: Exception) -> None:
        super().__init__(f"{len(report.settled)} jobs are settled, but the claim after them failed: {error}")
        self.report = report


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing; `next_cursor` is None on the last."""

    items: list[Job]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue's settings and its exact counts."""

    name: str
    paused: bool
    running: int | None
    per_key: int | None
    rate: Rate | None
    rate_per_key: Rate | None
    counts: Mapping[JobStatus, int]

    @property
    def waiting(self) -> int:
        """Jobs in a status from which they can be started, due or not."""
        return sum(number for status, number in self.counts.items() if status.eligible)

    @property
    def held(self) -> int:
        """Jobs that hold a slot: RUNNING and CANCELLING ones. `running` is their limit."""
        return sum(number for status, number in self.counts.items() if status.holds_capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker reports with every heartbeat. It is for people; leases do not depend on it."""

    id: str
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    concurrency: int = 1
    running: int = 0
    host: str = ""
    pid: int = 0
    version: str = ""
    state: str = "running"
    started_at: datetime | None = None
    seen_at: datetime | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[str, ...] | None = None
    """The job types that it claims; None means all."""


@runtime_checkable
class SupportsBackup(Protocol):
    """A store that can be copied to a file while it is in use."""

    async def backup(self, target: str | Path) -> None:
        """Write a complete copy to a new file."""
        ...


@runtime_checkable
class HasSchema(Protocol):
    """A store whose schema is migrated when it is opened."""

    async def schema_version(self) -> int:
        """Return the number of the last migration applied."""
        ...


@runtime_checkable
class ReportsHealth(Protocol):
    """A store that reports its own condition, for the doctor."""

    async def condition(self) -> Condition:
        """Return the facts as they are now; the doctor judges them."""
        ...


class Backend(ABC):
    """A store of jobs. It performs one legal transition atomically, and never decides policy.

    Every operation may be called from any thread and any event loop. With a lease the write is fenced, and checked in
    this order: JobNotFound; JobNotInflight unless the job is RUNNING or CANCELLING; LeaseLost("expired") if the stored
    lease has ended; LeaseLost("mismatch"). With `lease=None` it is not fenced. `queue=None` means all queues. A refused
    call changes nothing. After `close` every operation raises QueueClosed. See docs/write-a-backend.md.
    """

    capabilities: Capabilities = Capabilities()

    @property
    def unusable_because(self) -> str:
        """Why the store cannot be used until the process restarts; empty if it can."""
        return ""

    # -- enqueue

    @abstractmethod
    async def enqueue_job(self, job: Job) -> str:
        """Store one new job and return its id, or the id of the job that has its idempotency key."""

    @abstractmethod
    async def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        """Store all jobs or none, and return their ids in input order. DuplicateJob names every id that is in use."""

    @abstractmethod
    async def enqueue_new_jobs(self, jobs: Sequence[Job]) -> list[str]:
        """Like `enqueue_jobs`, but an idempotency key in use raises DuplicateJob as well, with the job that has it."""

    @abstractmethod
    async def add_jobs(self, jobs: Sequence[Job], *, connection: object = None, same_only: bool = False) -> list[Job]:
        """Store all jobs or none, and return them as stored, in input order. An existing job is not an error.

        A job whose idempotency key or id is in use, or came earlier in the batch, is not stored: the existing job is
        returned. The key of a removed job returns what is kept of it: id, uid, queue, type and status. With `same_only`
        an existing job must be the same, by the fingerprint of its request or else by its payload. If it differs,
        KeyReused or DuplicateJob is raised, and nothing is stored. A job found by its id differs if the given key is
        not its own.
        """

    @abstractmethod
    async def accept_jobs(self, job_ids: Sequence[str]) -> None:
        """Make CREATED jobs claimable, or let them wait for their dependencies; all or none."""

    # -- claim and renew

    @abstractmethod
    async def dequeue_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        queues: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        lease: Duration | None = 30,
    ) -> list[Job]:
        """Claim up to `limit` jobs that have all `tags`: by priority, then LIFO jobs, then the longest eligible.

        `queues=None` means all queues, `types=None` all types, `lease=None` a lease that never ends. An empty list of
        types claims nothing. The claim ends jobs past their `expires_at` that it finds.
        """

    @abstractmethod
    async def extend_leases(self, leases: Mapping[str, Lease], duration: Duration) -> dict[str, Lease]:
        """Renew many leases at once, from now. A job that is missing in the answer is lost: stop working on it.

        The new lease says whether a cancellation was requested. A lease that never ends stays so.
        """

    @abstractmethod
    async def release_lease(
        self, job_id: str, lease: Lease, *, run_at: Moment | None = None, reason: str = ""
    ) -> Freed:
        """Return a RUNNING job to its queue; count no failure and no crash."""

    @abstractmethod
    async def set_progress(self, job_id: str, value: Any, *, lease: Lease | None = None) -> None:
        """Store the progress of the job: any JSON value."""

    @abstractmethod
    async def append_log(self, job_id: str, message: str, level: str = "info", *, lease: Lease | None = None) -> None:
        """Append an entry to the job's log."""

    @abstractmethod
    async def save_checkpoint(self, job_id: str, data: Any, *, lease: Lease | None = None) -> None:
        """Store what the job needs to continue after a crash: JSON or bytes."""

    # -- settle

    @abstractmethod
    async def complete_job(self, job_id: str, result: bytes | None = None, *, lease: Lease | None = None) -> Freed:
        """Move the job to COMPLETED, with its result."""

    @abstractmethod
    async def fail_job(
        self, job_id: str, error: str, *, retry_at: Moment | None = None, lease: Lease | None = None
    ) -> Freed:
        """Move the job to FAILED_RETRY and count the failure. It is eligible again at once, or at `retry_at`."""

    @abstractmethod
    async def bury_job(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        """Move the job to DEAD, the dead letters."""

    @abstractmethod
    async def stop_job(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        """Move the job to STOPPED."""

    @abstractmethod
    async def stop_job_with_retry(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        """Move a CANCELLING job that failed to STOPPED, and count the failure."""

    @abstractmethod
    async def mark_job_unknown_stopped(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        """Move the job to UNKNOWN_STOPPED: it has ended, and how far it got is unknown."""

    @abstractmethod
    async def update_job_status(
        self, job_id: str, status: JobStatus, result: bytes | None = None, error: str = ""
    ) -> Freed:
        """Move the job by hand along the transition table; change no counter. The same status again changes nothing.

        A move to RUNNING sets a lease of 30 seconds without an owner, so that the sweep finds the job. It may start a
        job early, in a paused queue or beyond a rate limit, but never beyond a concurrency limit.
        """

    @abstractmethod
    async def settle_jobs(self, outcomes: Sequence[Outcome]) -> SettleReport:
        """Settle many jobs in one transaction. An outcome that is stale or malformed is refused alone.

        If a job became CANCELLING under a live lease, `fail` settles it as `stop_job_with_retry` does, and `bury` and
        `release` as an acknowledged cancellation. `crash` means that the process which ran the job died, with the
        reason in `error`; it counts as a lost lease.
        """

    async def settle_and_dequeue(
        self,
        outcomes: Sequence[Outcome],
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        queues: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        lease: Duration | None = 30,
    ) -> tuple[SettleReport, list[Job]]:
        """`settle_jobs`, then `dequeue_jobs`: one transaction for both where the store can.

        A refused outcome does not prevent the claim. With `limit=0` nothing is claimed. If the claim fails after the
        outcomes are settled, ClaimFailed has their report.
        """
        check_name("assignee_id", assignee_id)
        wanted = check_tags("tags", tags)
        most = check_number("limit", limit)
        names = None if queues is None else check_names("queues", queues)
        known = None if types is None else check_names("types", types)
        if lease is not None:
            check_duration("lease", lease)
        report = await self.settle_jobs(outcomes)
        if not most:
            return report, []
        return report, await self.dequeue_jobs(assignee_id, wanted, most, queues=names, lease=lease, types=known)

    # -- cancel and recover

    @abstractmethod
    async def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, queue: str | None = None, held: bool = True
    ) -> tuple[list[str], list[str]]:
        """Cancel jobs that have all `tags`, and jobs by id. Return the cancelled ids, and the unknown or final ones.

        With `held=False` jobs that a worker holds stay as they are, and are listed with the unknown.
        """

    @abstractmethod
    async def acknowledge_cancellation(self, job_id: str, was_executing: bool, *, lease: Lease | None = None) -> None:
        """Move a CANCELLING job to STOPPED, or to UNKNOWN_STOPPED if the worker was not executing it."""

    @abstractmethod
    async def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """Count every job of this worker as crashed: it returns to its queue, or ends if it was being cancelled."""

    @abstractmethod
    async def reclaim_expired_leases(self, limit: int = 1000) -> list[Job]:
        """Sweep all queues: count jobs with an expired lease as crashed and return them; end expired jobs."""

    @abstractmethod
    async def time_out_cancellations(self, timeout: Duration, limit: int = 1000) -> list[Job]:
        """End jobs whose cancellation was not acknowledged for at least this long, and return them.

        They become UNKNOWN_STOPPED, even with an open lease: a worker that still runs one learns it from the fence.
        """

    @abstractmethod
    async def reset_running_jobs(self, *, queue: str | None = None) -> None:
        """Count every held job as crashed: for a restart after which no worker can be alive."""

    # -- read

    @abstractmethod
    async def now(self) -> datetime:
        """Return the time of the store's own clock, which decides on leases and due times."""

    @abstractmethod
    async def get_job(self, job_id: str) -> Job:
        """Return the whole record, or raise JobNotFound."""

    @abstractmethod
    async def facts_about(self, job_id: str) -> Facts:
        """Return the facts for `explanation_of` in one read, or raise JobNotFound."""

    @abstractmethod
    async def list_jobs(
        self,
        filter: JobFilter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        due: bool | None = None,
    ) -> Page:
        """List jobs that match, newest first or oldest first. A cursor stays valid while jobs are added and removed.

        Of jobs in an eligible status, `due=True` lists only those that are due, `due=False` only delayed ones. Jobs in
        other statuses are listed in both cases.
        """

    @abstractmethod
    async def get_job_stats(self, tags: Sequence[str] = (), *, queue: str | None = None) -> JobStats:
        """Count the jobs that have all `tags`."""

    @abstractmethod
    async def count_jobs(self, queue: str | None = None) -> dict[JobStatus, int]:
        """Return the exact count for every status; the store maintains it and scans nothing."""

    @abstractmethod
    async def count_delayed(self, queue: str | None = None) -> int:
        """Count the delayed jobs: in an eligible status and not yet due."""

    @abstractmethod
    async def next_due(self, queues: Sequence[str] | None = None, *, after: datetime | None = None) -> datetime | None:
        """Return when the first delayed job of these queues is due, or a rate limit's window ends; None if neither.

        A caller that waits for work reads again then. `after` is the time of its last read (None: now), so that it
        misses no job in between. LIFO jobs are not included: the index does not find them by time. Tags, limits and
        pauses are not considered. A queue's rate counts if its window is used up, a key's if it is used.
        """

    @abstractmethod
    async def read_logs(self, job_id: str, after: int = 0) -> list[LogEntry]:
        """Return the job's log entries after the given number."""

    @abstractmethod
    async def read_events(
        self, after: str | None = None, limit: int = 1000, *, queue: str | None = None, job_id: str | None = None
    ) -> list[JobEvent]:
        """Read the event log after a cursor (None: from its start). It never skips an event that commits late."""

    @abstractmethod
    async def end_of_events(self) -> str:
        """Return a cursor at the end of the event log: reading from it gives every event committed later."""

    @abstractmethod
    async def wait_for_change(self, timeout: Duration, after: str | None = None) -> bool:
        """Wait until the store changed, or `timeout` passed (False). True may be spurious: read, then wait again.

        With a cursor it returns at once if the event log has more after it.
        """

    # -- operate

    @abstractmethod
    async def retry_job(self, job_id: str, *, reset: bool = True, actor: str = "") -> None:
        """Return a DEAD job to its queue, recorded with the actor. Counters restart at 0 unless `reset=False`."""

    @abstractmethod
    async def promote_job(self, job_id: str) -> None:
        """Make a delayed job due now."""

    @abstractmethod
    async def delete_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, queue: str | None = None
    ) -> None:
        """Remove final jobs permanently. If any target is not final, none is removed; unknown ids are ignored."""

    @abstractmethod
    async def pause_queue(self, queue: str) -> None:
        """Stop claims from this queue until it is resumed. Running jobs continue."""

    @abstractmethod
    async def resume_queue(self, queue: str) -> None:
        """Undo `pause_queue`."""

    @abstractmethod
    async def set_limits(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """Limit how many jobs run at once (per queue, per concurrency key) and start per window; None means no limit.

        A limit that is not given does not change. Lowering a limit stops no running job.
        """

    @abstractmethod
    async def list_queues(self) -> list[QueueInfo]:
        """List every queue that has jobs or settings, by name."""

    # -- schedules, retention and workers

    @abstractmethod
    async def put_schedule(self, schedule: Schedule, *, keep_pause: bool = False) -> Schedule:
        """Store a schedule, or change the one with its id (its run count and last run stay). Return it as stored.

        If its times are the same, its next run stays; otherwise it is planned from now. With `keep_pause` a paused
        schedule stays paused: for programs that store their schedules at each start.
        """

    @abstractmethod
    async def get_schedules(self) -> list[Schedule]:
        """List all schedules, by id."""

    @abstractmethod
    async def get_schedule(self, schedule_id: str) -> Schedule:
        """Return the schedule, or raise ScheduleNotFound."""

    @abstractmethod
    async def pause_schedule(self, schedule_id: str) -> Schedule:
        """Pause the schedule until it is resumed; its jobs stay. Return it as stored."""

    @abstractmethod
    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """Resume it with the next planned time after now; occurrences during the pause are skipped."""

    @abstractmethod
    async def run_schedule(self, schedule_id: str) -> Job:
        """Enqueue one more of its jobs now, with a new id, even if the schedule is paused or has ended.

        Its plan does not change: the run is not counted, and it uses up no planned time.
        """

    @abstractmethod
    async def remove_schedule(self, schedule_id: str) -> bool:
        """Remove the schedule; return False if there was none. Its jobs stay."""

    @abstractmethod
    async def next_firing(self) -> datetime | None:
        """Return the earliest planned time of all schedules that are not paused; a time in the past is overdue."""

    @abstractmethod
    async def fire_due_schedules(self, limit: int = 100) -> list[Job]:
        """Enqueue the jobs of up to `limit` due schedules: punctual ones first, then the most overdue.

        One call enqueues at most some hundred jobs and a few megabytes; the next call continues. There is at most one
        job for each schedule and planned time, also if several processes fire. A schedule whose jobs can no longer be
        created is paused, with the reason in its `error`.
        """

    @abstractmethod
    async def announce_due_jobs(self, limit: int = 1000) -> list[str]:
        """Write `job.promoted` for delayed jobs that are now due, and return their ids; the longest due first.

        Each delay is announced once, also if several processes do it. No claim waits for it: a due job can be claimed
        before it is announced, and is then not announced.
        """

    @abstractmethod
    async def cleanup_expired_jobs(self, ttl: Duration, *, queue: str | None = None) -> int:
        """Remove COMPLETED jobs that ended at least `ttl` ago, and return how many."""

    @abstractmethod
    async def set_retention(
        self,
        queue: str,
        *,
        finished: Duration | Unchanged | None = UNCHANGED,
        dead: Duration | Unchanged | None = UNCHANGED,
        events: Duration | Unchanged | None = UNCHANGED,
    ) -> None:
        """Set how long this queue keeps finished jobs (7 days), dead jobs (30) and events (30); None means forever."""

    @abstractmethod
    async def apply_retention(self, limit: int = 1000) -> int:
        """Remove up to `limit` jobs and events past their retention, in all queues. Return how many; 0 when done."""

    @abstractmethod
    async def heartbeat_worker(self, worker: WorkerInfo) -> None:
        """Store what a worker reports, with the time."""

    @abstractmethod
    async def list_workers(self) -> list[WorkerInfo]:
        """List the workers seen in the last day, of all queues, by id."""

    @abstractmethod
    async def record_worker_event(
        self, event: WorkerEvent, worker_id: str, *, queue: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        """Write an event of a worker to the event log, with the worker as `assignee_id`.

        `queue=""` means no queue in particular. Text in the detail is cut and cleaned, not refused.
        """

    # -- close

    @abstractmethod
    async def close(self) -> None:
        """Release connections and threads; safe to call twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
