"""The backend contract: every operation a store offers, in the order a job meets them, and the records they use."""

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
"""Which workers got capacity back, and how many jobs' worth."""

OutcomeVerb = Literal["complete", "fail", "bury", "stop", "release", "crash"]

WorkerEvent = Literal["worker.error", "worker.drained"]


class Unchanged(Enum):
    """The default of a setting that is left as it is; None is a value of its own (no limit)."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond the contract; the conformance kit asks these, never a backend's name."""

    durable: bool = False
    """An acknowledged write survives the process."""
    shared: bool = False
    """A second backend on the same URL sees the same jobs."""
    joins_transactions: bool = False
    """`enqueue_jobs(connection=…)` writes inside the caller's own transaction."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a worker's job ended, for `settle_jobs`."""

    job_id: str
    lease: Lease | None
    verb: OutcomeVerb = "complete"
    result: bytes | None = None
    error: str = ""
    retry_at: Moment | None = None


@dataclass(slots=True)
class _OutcomeInTheMaking:
    """A twin of `Outcome` that is not frozen: filled in one go and then turned into one, at a third of the price."""

    job_id: str
    lease: Lease | None
    verb: OutcomeVerb
    result: bytes | None
    error: str
    retry_at: Moment | None


def completed(job_id: str, lease: Lease | None, result: bytes | None = None) -> Outcome:
    """What `Outcome(job_id, lease, result=result)` gives: for workers, as nearly every job ends so."""
    outcome: Any = _OutcomeInTheMaking(job_id, lease, "complete", result, "", None)
    outcome.__class__ = Outcome
    return cast(Outcome, outcome)


@dataclass(frozen=True, slots=True)
class SettleReport:
    """What became of a batch of outcomes: a stale one is refused with its reason, the rest stand."""

    settled: dict[str, JobStatus] = field(default_factory=dict)
    refused: dict[str, LongshoreError] = field(default_factory=dict)
    freed: Freed = field(default_factory=dict)


class ClaimFailed(BackendUnavailable):
    """A turn has settled what its `report` says, but not claimed, or what it claimed was not heard of."""

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
        """Jobs that somebody has: those that run, and those that are being cancelled. `running` is their limit."""
        return sum(number for status, number in self.counts.items() if status.holds_capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker says of itself with every heartbeat; for people, never for judging a job's lease."""

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
    """The types of jobs that it claims; None is all."""


@runtime_checkable
class SupportsBackup(Protocol):
    """A store that can be copied to a file while it is in use."""

    async def backup(self, target: str | Path) -> None:
        """Writes a complete copy to a file that does not exist yet."""
        ...


@runtime_checkable
class HasSchema(Protocol):
    """A store whose tables are brought up to date by numbered migrations, whenever it is opened."""

    async def schema_version(self) -> int:
        """The number of the last migration that was applied."""
        ...


@runtime_checkable
class ReportsHealth(Protocol):
    """A store that can be looked over: what it runs on, and what it drags along."""

    async def condition(self) -> Condition:
        """The facts, as they are now; they are judged elsewhere."""
        ...


class Backend(ABC):
    """A store of jobs: it keeps them, and performs one legal transition atomically. It never decides policy.

    Every verb may be called from any thread and any event loop. `lease=None` means "whoever calls"; with a lease the
    write is fenced and checked in this order: JobNotFound; JobNotInflight unless the job is RUNNING or CANCELLING;
    LeaseLost("expired") if the stored lease has ended; LeaseLost("mismatch"). `queue=None` means all queues. A refused
    call changes nothing. After `close` every verb raises QueueClosed.
    """

    capabilities: Capabilities = Capabilities()

    @property
    def unusable_because(self) -> str:
        """Why the store cannot be used until the process is restarted; empty if it can be used."""
        return ""

    # -- a job comes in

    @abstractmethod
    async def enqueue_job(self, job: Job) -> str:
        """Stores one new job and returns its id; with an idempotency key in use, the id of the job that has it."""

    @abstractmethod
    async def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        """Stores all of them or none, and returns the ids in input order. DuplicateJob names every id in the way."""

    @abstractmethod
    async def enqueue_new_jobs(self, jobs: Sequence[Job]) -> list[str]:
        """As `enqueue_jobs`, but an idempotency key in use is in the way as an id is: DuplicateJob names its job."""

    @abstractmethod
    async def add_jobs(self, jobs: Sequence[Job], *, connection: object = None, same_only: bool = False) -> list[Job]:
        """Stores all of them or none, and returns them as stored, in input order; one that is known is no error.

        Whose idempotency key or else id is in use, or came before in the batch, is not stored: the answer is the job
        that has it. Of a job since removed its key brings back what is remembered: id, uid, queue, type and status.
        With `same_only` a job that is known must be the one that is given, by the fingerprint of its request where it
        has one and else by its payload: KeyReused or DuplicateJob if it is another, and nothing is stored. One that is
        known by its id is another if a key is given that it does not have.
        """

    @abstractmethod
    async def accept_jobs(self, job_ids: Sequence[str]) -> None:
        """CREATED jobs become claimable (or wait for their dependencies); all of them or none."""

    # -- a worker takes it and keeps it

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
        """Claims up to `limit` jobs that carry all `tags`: by priority, then LIFO jobs, then the longest eligible.

        `queues=None` means all queues, `types=None` all types, `lease=None` a lease that never ends. With `types` only
        jobs of these types are claimed; an empty list claims nothing. Jobs it meets past their `expires_at` are ended.
        """

    @abstractmethod
    async def extend_leases(self, leases: Mapping[str, Lease], duration: Duration) -> dict[str, Lease]:
        """Renews many leases at once, from now. A job absent from the answer is lost; drop it.

        The new lease tells whether a cancellation was asked for. One without an end stays without.
        """

    @abstractmethod
    async def release_lease(
        self, job_id: str, lease: Lease, *, run_at: Moment | None = None, reason: str = ""
    ) -> Freed:
        """Gives a RUNNING job back to the queue with nothing counted."""

    @abstractmethod
    async def set_progress(self, job_id: str, value: Any, *, lease: Lease | None = None) -> None:
        """Keeps how far the job is: any JSON value."""

    @abstractmethod
    async def append_log(self, job_id: str, message: str, level: str = "info", *, lease: Lease | None = None) -> None:
        """Adds a line to the job's log."""

    @abstractmethod
    async def save_checkpoint(self, job_id: str, data: Any, *, lease: Lease | None = None) -> None:
        """Keeps what the job needs to go on after a crash: JSON or bytes."""

    # -- it ends

    @abstractmethod
    async def complete_job(self, job_id: str, result: bytes | None = None, *, lease: Lease | None = None) -> Freed:
        """To COMPLETED, with its result."""

    @abstractmethod
    async def fail_job(
        self, job_id: str, error: str, *, retry_at: Moment | None = None, lease: Lease | None = None
    ) -> Freed:
        """To FAILED_RETRY: counted, and eligible again at once or at `retry_at`."""

    @abstractmethod
    async def bury_job(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        """To DEAD, the dead-letter queue."""

    @abstractmethod
    async def stop_job(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        """To STOPPED."""

    @abstractmethod
    async def stop_job_with_retry(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        """CANCELLING to STOPPED for a job that failed while being cancelled; the failure is counted."""

    @abstractmethod
    async def mark_job_unknown_stopped(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        """To UNKNOWN_STOPPED: over, and nobody knows how far it got."""

    @abstractmethod
    async def update_job_status(
        self, job_id: str, status: JobStatus, result: bytes | None = None, error: str = ""
    ) -> Freed:
        """A move by hand along the table; touches no counter. The same status again is no change and no error.

        To RUNNING it takes a lease of 30 seconds without an owner, so that the sweep can find it; it may start a job
        early, in a paused queue or beyond a rate, but never beyond how many may run at once.
        """

    @abstractmethod
    async def settle_jobs(self, outcomes: Sequence[Outcome]) -> SettleReport:
        """Many endings in one transaction. An outcome that is stale or malformed is refused alone.

        A job that became CANCELLING under a live lease settles `fail` as `stop_job_with_retry` does, and `bury` and
        `release` as an acknowledged cancellation. `crash` tells that the process which ran the job died, `error` of
        what: it is counted as a lost lease is.
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

        A refused outcome does not hinder the claim. With `limit=0` nothing is claimed. ClaimFailed tells what is
        settled if the claim came after it and failed.
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

    # -- somebody calls it off, or its worker vanishes

    @abstractmethod
    async def cancel_jobs(
        self,
        tags: Sequence[str] = (),
        job_ids: Sequence[str] = (),
        *,
        queue: str | None = None,
        held: bool = True,
    ) -> tuple[list[str], list[str]]:
        """Cancels jobs with all `tags`, and jobs by id. Returns the cancelled, and the unknown or already final.

        With `held=False` jobs that somebody holds are left alone, and listed with the unknown.
        """

    @abstractmethod
    async def acknowledge_cancellation(self, job_id: str, was_executing: bool, *, lease: Lease | None = None) -> None:
        """CANCELLING to STOPPED, or to UNKNOWN_STOPPED if the worker was not executing it."""

    @abstractmethod
    async def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """All that this worker holds is a crash: back to the queue, or over if it was being cancelled."""

    @abstractmethod
    async def reclaim_expired_leases(self, limit: int = 1000) -> list[Job]:
        """The sweep: jobs whose lease ran out crash and are returned; jobs past their `expires_at` are ended."""

    @abstractmethod
    async def time_out_cancellations(self, timeout: Duration, limit: int = 1000) -> list[Job]:
        """Ends jobs that are being cancelled for at least this long without an answer, and returns them.

        They are UNKNOWN_STOPPED, however long their lease has to run or whether it has an end: the fence tells whoever
        still works on one.
        """

    @abstractmethod
    async def reset_running_jobs(self, *, queue: str | None = None) -> None:
        """Every job that anybody holds is a crash: for a restart after which no worker can be alive."""

    # -- somebody looks

    @abstractmethod
    async def now(self) -> datetime:
        """The time by the store's own clock, which judges leases and due times."""

    @abstractmethod
    async def get_job(self, job_id: str) -> Job:
        """The whole record, or JobNotFound."""

    @abstractmethod
    async def facts_about(self, job_id: str) -> Facts:
        """In one look all that may keep the job from running, or JobNotFound; `explanation_of` says what it means."""

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
        """Jobs that match, newest first or oldest first. A cursor stays good whatever comes or goes meanwhile.

        Of jobs in an eligible status `due=True` shows only those that may start now, `due=False` only those whose time
        is still to come; jobs in other statuses are shown either way.
        """

    @abstractmethod
    async def get_job_stats(self, tags: Sequence[str] = (), *, queue: str | None = None) -> JobStats:
        """Counts over jobs that carry all `tags`."""

    @abstractmethod
    async def count_jobs(self, queue: str | None = None) -> dict[JobStatus, int]:
        """Exact counts for every status, kept and never scanned."""

    @abstractmethod
    async def count_delayed(self, queue: str | None = None) -> int:
        """How many jobs in an eligible status wait for their time."""

    @abstractmethod
    async def next_due(self, queues: Sequence[str] | None = None, *, after: datetime | None = None) -> datetime | None:
        """When the time of the first delayed job of these queues comes, or a rate lets more start; None if neither.

        It tells whoever waits for work when to look; `after` is the moment up to which they have looked (None: up to
        now), so that no job comes unnoticed in between. A LIFO job is not counted: it stands before all others, where
        nothing is found by its time. Nor is asked whether tags, limits or a pause keep the job from starting then. Of a
        rate it tells when the window ends that was used up (of a key's: that anything of was used).
        """

    @abstractmethod
    async def read_logs(self, job_id: str, after: int = 0) -> list[LogEntry]:
        """The job's log lines after the given number."""

    @abstractmethod
    async def read_events(
        self, after: str | None = None, limit: int = 1000, *, queue: str | None = None, job_id: str | None = None
    ) -> list[JobEvent]:
        """The log after a cursor (None: from its start); never skips an event that commits late."""

    @abstractmethod
    async def end_of_events(self) -> str:
        """A cursor at the present end of the log: whoever reads on from it hears of all that is committed after."""

    @abstractmethod
    async def wait_for_change(self, timeout: Duration, after: str | None = None) -> bool:
        """Waits until something changed, or `timeout` passed (False). True may be a false alarm: look, then wait again.

        With a cursor it answers at once if the log already goes on after it.
        """

    # -- an operator acts

    @abstractmethod
    async def retry_job(self, job_id: str, *, reset: bool = True, actor: str = "") -> None:
        """DEAD back to the queue, recorded with its actor; counters start anew unless `reset=False`."""

    @abstractmethod
    async def promote_job(self, job_id: str) -> None:
        """A job that waits for its time may run now."""

    @abstractmethod
    async def delete_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, queue: str | None = None
    ) -> None:
        """Removes final jobs for good; if any target is not final, none is removed. Unknown ids are passed over."""

    @abstractmethod
    async def pause_queue(self, queue: str) -> None:
        """Nothing of this queue is claimed until it is resumed; what runs goes on."""

    @abstractmethod
    async def resume_queue(self, queue: str) -> None:
        """Undoes `pause_queue`."""

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
        """How many may run at once (in the queue, per concurrency key) and start per window; None is no limit.

        A limit that is not named stays as it is. One that is lowered stops no running job.
        """

    @abstractmethod
    async def list_queues(self) -> list[QueueInfo]:
        """Every queue that has jobs or settings, by name."""

    # -- time passes

    @abstractmethod
    async def put_schedule(self, schedule: Schedule, *, keep_pause: bool = False) -> Schedule:
        """Stores a schedule, or changes the one with its id (its run count and last run stay). Returns it as stored.

        The same times again move nothing; other times are planned anew from now. With `keep_pause` one that somebody
        paused stays paused, whatever is given: for programs that put their schedules each time they start.
        """

    @abstractmethod
    async def get_schedules(self) -> list[Schedule]:
        """All schedules, by id."""

    @abstractmethod
    async def get_schedule(self, schedule_id: str) -> Schedule:
        """The schedule as it stands, or ScheduleNotFound."""

    @abstractmethod
    async def pause_schedule(self, schedule_id: str) -> Schedule:
        """Nothing of it is fired until it is resumed; what it has made stays. Returns it as stored."""

    @abstractmethod
    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """Goes on with the next planned time after now; what fell into the pause is not made up for."""

    @abstractmethod
    async def run_schedule(self, schedule_id: str) -> Job:
        """Makes one more of its jobs now, with a fresh id, paused or ended as it may be.

        The plan goes on as if nothing had happened: the run is not counted, and no planned time is used up by it.
        """

    @abstractmethod
    async def remove_schedule(self, schedule_id: str) -> bool:
        """Removes it; False if there was none. Jobs it made stay."""

    @abstractmethod
    async def next_firing(self) -> datetime | None:
        """When the first run of all schedules that are not paused is planned; in the past if it is late."""

    @abstractmethod
    async def fire_due_schedules(self, limit: int = 100) -> list[Job]:
        """Makes jobs of up to `limit` schedules that are due now: punctual ones first, then the most overdue.

        A pass makes no more than some hundred jobs and a few megabytes; what is left is due in the next one. There is
        at most one job for each schedule and planned time, whoever else fires too. A schedule whose jobs cannot be
        made any more is paused, with the reason in its `error`.
        """

    @abstractmethod
    async def announce_due_jobs(self, limit: int = 1000) -> list[str]:
        """Writes `job.promoted` for delayed jobs whose time has come, and returns their ids; the longest due first.

        Once for each delay, whoever else does it too. Nothing waits for it: a job may be claimed at its instant, and
        one that was claimed before it was announced is not announced any more.
        """

    @abstractmethod
    async def cleanup_expired_jobs(self, ttl: Duration, *, queue: str | None = None) -> int:
        """Removes COMPLETED jobs that ended at least `ttl` ago; returns how many."""

    @abstractmethod
    async def set_retention(
        self,
        queue: str,
        *,
        finished: Duration | Unchanged | None = UNCHANGED,
        dead: Duration | Unchanged | None = UNCHANGED,
        events: Duration | Unchanged | None = UNCHANGED,
    ) -> None:
        """How long this queue keeps finished jobs (7 days), dead jobs (30) and events (30); None is for ever."""

    @abstractmethod
    async def apply_retention(self, limit: int = 1000) -> int:
        """Removes up to `limit` of what has outlived its retention; returns how much, 0 when nothing is left to do."""

    @abstractmethod
    async def heartbeat_worker(self, worker: WorkerInfo) -> None:
        """Keeps what a worker says of itself, with the time."""

    @abstractmethod
    async def list_workers(self) -> list[WorkerInfo]:
        """The workers heard of in the last day, by id, with when they were last seen."""

    @abstractmethod
    async def record_worker_event(
        self, event: WorkerEvent, worker_id: str, *, queue: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        """Writes what a worker has to say beside its jobs into the log, where `assignee_id` names the worker.

        `queue=""` means no queue in particular. Text within the detail is cut and cleaned rather than refused.
        """

    # -- it is over

    @abstractmethod
    async def close(self) -> None:
        """Lets go of everything; safe to call twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
