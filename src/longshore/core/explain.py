"""Why a job is not running: facts from the store, and the reasons and advice derived from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from longshore.core.clock import ClockStep, recent
from longshore.core.job import Job
from longshore.core.limits import Rate
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus

MOST_LISTED = 10
"""The most holders, dependencies or workers that are named; the rest is counted."""
RECENT = timedelta(minutes=10)
"""The window of completions that measures the throughput of a queue."""
MOST_ENDS = 200
"""The most completions that are read."""
MOST_COUNTED = 1_000
"""The most jobs ahead that are counted."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A running job that takes a slot."""

    job_id: str
    worker: str | None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a limit on running jobs and of a rate limit, for a queue or one of its keys."""

    limit: int | None = None
    running: int = 0
    holders: tuple[Holder, ...] = ()
    """The first few running jobs, if the limit is reached."""
    rate: Rate | None = None
    started: int = 0
    """The number of starts in the current window."""
    window_ends: datetime | None = None

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.running >= self.limit

    @property
    def rate_used_up(self) -> bool:
        """Whether no more jobs may start in the current window."""
        return self.rate is not None and self.started >= self.rate.count


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job that is waited for; its status is None if no job has this id."""

    job_id: str
    status: JobStatus | None
    step: str = ""
    """Its name as a step of a flow, or empty."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker as of its last heartbeat."""

    id: str
    queues: tuple[str, ...]
    """The queues that it claims from; empty means all."""
    tags: tuple[str, ...]
    """The tags that a job must have to be claimed."""
    concurrency: int
    running: int
    state: str
    seen_at: datetime | None
    types: tuple[str, ...] | None = None
    """The job types that it claims; None is all."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A consistent snapshot at one time of the store's clock."""

    now: datetime
    job: Job
    eligible_at: datetime
    paused: bool = False
    queue: Usage = field(default_factory=Usage)
    key: Usage = field(default_factory=Usage)
    waits_for: tuple[Dependency, ...] = ()
    """The first few dependencies that it still waits for."""
    deps_left: int = 0
    ahead: int = 0
    """Jobs before it in claim order, counted up to `MOST_COUNTED`."""
    workers: tuple[WorkerSeen, ...] = ()
    clock_step: ClockStep | None = None
    """The last step of the machine's clock that the store detected."""
    given_back: str = ""
    """The reason of its last worker for releasing it until later, if there is one."""
    recent_ends: tuple[datetime, ...] = ()
    """When jobs of its queue completed within `RECENT`, newest first, at most `MOST_ENDS`."""


HEARTBEAT_WITHIN = timedelta(seconds=60)
"""A worker is alive if its last heartbeat is not older. It covers a few heartbeats."""


def state_of_worker(reported: str, seen_at: datetime | None, now: datetime) -> str:
    """The last state that a worker reported; `silent` if its heartbeats ended without `stopped`."""
    heard = seen_at is not None and now - seen_at <= HEARTBEAT_WITHIN
    return reported if heard or reported == "stopped" else "silent"


OVERDUE = timedelta(seconds=60)
"""A schedule that is this late means that no scheduler is running."""

NO_TASK_NAMED = "no task of this worker is named"
"""The start of a worker's reason for releasing a job of an unknown type."""

ReasonKind = Literal[
    "completed",
    "stopped",
    "unscheduled",
    "unknown_stopped",
    "dead",
    "running",
    "cancelling",
    "not_accepted",
    "waiting_for_dependencies",
    "expired",
    "not_due",
    "given_back",
    "queue_paused",
    "queue_full",
    "queue_rate_used_up",
    "key_full",
    "key_rate_used_up",
    "no_worker",
    "workers_busy",
    "behind_others",
    "about_to_start",
]


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. `kind` keeps its meaning across versions; `text` is for people; `details` is JSON."""

    kind: ReasonKind
    text: str
    details: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Explanation:
    """All reasons, the most important first."""

    job_id: str
    status: JobStatus
    at: datetime
    reasons: tuple[Reason, ...]

    @property
    def kinds(self) -> tuple[ReasonKind, ...]:
        """The kinds of the reasons."""
        return tuple(reason.kind for reason in self.reasons)

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.status}: " + " ".join(reason.text for reason in self.reasons)

    def as_json(self) -> dict[str, Any]:
        """The explanation as plain JSON values."""
        return {
            "job_id": self.job_id,
            "status": self.status.value,
            "at": self.at.isoformat(),
            "reasons": [{"kind": r.kind, "text": r.text, "details": dict(r.details)} for r in self.reasons],
        }


def explanation_of(facts: Facts) -> Explanation:
    """Derive the reasons from the facts, without reading a clock or a store."""
    job = facts.job
    if job.status.final:
        reasons = [_ended(facts)]
    elif job.status.holds_capacity:
        reasons = [_held(facts)]
    elif job.status is JobStatus.CREATED:
        reasons = [_reason("not_accepted", "It was stored with hold=True. Accept it with accept_jobs.")]
    elif job.status is JobStatus.WAITING_CHILDREN:
        reasons = [*_expired(facts), _waits(facts)]
    else:
        reasons = [*_blocking_reasons(facts), *_behind_others(facts)]
        reasons = reasons or [_reason("about_to_start", "Nothing blocks it: the next claim takes it.")]
    return Explanation(job.id, job.status, facts.now, tuple(reasons))


def _reason(kind: ReasonKind, text: str, **details: Any) -> Reason:
    return Reason(kind, text, details)


def _ended(facts: Facts) -> Reason:
    job = facts.job
    error = job.error_message.partition("\n")[0]
    because = f": {error}" if error else ""
    texts: dict[JobStatus, str] = {
        JobStatus.COMPLETED: f"It completed at {_clock(job.finalized_at)}.",
        JobStatus.STOPPED: f"It was stopped after it had been started{because}; add it again to run it.",
        JobStatus.UNSCHEDULED: f"It was cancelled before it started{because}; add it again to run it.",
        JobStatus.UNKNOWN_STOPPED: f"It was cancelled, and it is unknown how far it got{because}; see its log.",
        JobStatus.DEAD: f"It failed permanently at execution {job.executions}{because}; retry it with retry_job.",
    }
    kind = cast(ReasonKind, job.status.value.lower())
    return _reason(kind, texts[job.status], since=_iso(job.finalized_at), error=error, executions=job.executions)


def _held(facts: Facts) -> Reason:
    job = facts.job
    worker, since = job.assignee_id, job.assigned_at
    ends = None if job.lease is None else job.lease.expires_at
    details: dict[str, Any] = {
        "worker": worker,
        "since": _iso(since),
        "execution": job.executions,
        "lease_ends": _iso(ends),
    }
    by = f"by {worker}" if worker else "by an unknown worker"
    late = ends is not None and ends <= facts.now
    after = " Its lease has expired: the next sweep ends this attempt." if late else ""
    if ends is not None and not late:
        after = f" Its lease expires at {_clock(ends)}, unless it is renewed."
    after += _stepped(facts, "the expiry of its lease was shifted with it", details)
    if job.status is JobStatus.CANCELLING:
        text = f"It is being cancelled, and the worker has not acknowledged it. Held {by} since {_clock(since)}.{after}"
        return _reason("cancelling", text, **details)
    return _reason("running", f"It has been running since {_clock(since)}, held {by}.{after}", **details)


def _waits(facts: Facts) -> Reason:
    named = [_dependency(dependency) for dependency in facts.waits_for]
    more = facts.deps_left - len(named)
    text = f"It waits for {facts.deps_left} job{'s' * (facts.deps_left != 1)}: {_listed(named, more)}."
    if any(dependency.status is None for dependency in facts.waits_for):
        text += " Add a job with the unknown id, or cancel this one."
    if any(dependency.status is JobStatus.DEAD for dependency in facts.waits_for):
        text += " Retry the dead job with retry_job."
    elif any(dependency.status is not None and dependency.status.final for dependency in facts.waits_for):
        text += " A cancelled dependency never completes: cancel this job and enqueue it again."
    waiting = [
        {"job_id": waited.job_id, "status": None if waited.status is None else waited.status.value, "step": waited.step}
        for waited in facts.waits_for
    ]
    return _reason("waiting_for_dependencies", text, left=facts.deps_left, waiting_for=waiting)


def _dependency(dependency: Dependency) -> str:
    step = f"step {dependency.step} of its flow, " if dependency.step else ""
    return f"{dependency.job_id} ({step}{'unknown' if dependency.status is None else dependency.status})"


def _blocking_reasons(facts: Facts) -> Iterator[Reason]:
    yield from _expired(facts)
    if facts.eligible_at > facts.now:
        yield _not_yet(facts)
    if facts.paused:
        yield _reason(
            "queue_paused", f"Its queue {facts.job.queue!s} is paused; resume it.", queue=str(facts.job.queue)
        )
    queue = f"its queue {facts.job.queue!s}"
    yield from _limited(facts.queue, "queue_full", "queue_rate_used_up", queue, "running", "rate")
    key = f"its concurrency key {facts.job.concurrency_key}"
    yield from _limited(facts.key, "key_full", "key_rate_used_up", key, "per_key", "rate_per_key")
    yield from _workers(facts)


def _not_yet(facts: Facts) -> Reason:
    until, seconds = facts.eligible_at, (facts.eligible_at - facts.now).total_seconds()
    if facts.given_back:
        text = (
            f"A worker released it: {facts.given_back.rstrip('.')}. It is tried again at {_clock(until)}. "
            "Until then, start a worker that can run it, or enqueue a corrected job."
        )
        return _reason("given_back", text, reason=facts.given_back, until=_iso(until), seconds=seconds)
    details: dict[str, Any] = {"until": _iso(until), "seconds": seconds}
    text = f"It is not due until {_clock(until)}; promote_job lets it run now."
    text += _stepped(facts, "times given as durations were shifted with it", details)
    return _reason("not_due", text, **details)


def _stepped(facts: Facts, effect: str, details: dict[str, Any]) -> str:
    """A sentence and a detail if the machine's clock was set recently."""
    step = recent(facts.clock_step, facts.now)
    if step is None:
        return ""
    details["clock_step_seconds"] = step.by.total_seconds()
    return f" Note that {step}; {effect}."


def _expired(facts: Facts) -> Iterator[Reason]:
    end = facts.job.expires_at
    if isinstance(end, datetime) and end <= facts.now:
        text = f"It expired at {_clock(end)} before it started: the next sweep ends it."
        yield _reason("expired", text, expires_at=_iso(end))


def _limited(
    usage: Usage, full: ReasonKind, used_up: ReasonKind, whose: str, limit: str, rate: str
) -> Iterator[Reason]:
    if usage.full:
        held = [f"{holder.job_id} (by {holder.worker or 'no worker'})" for holder in usage.holders]
        text = f"I{whose[1:]} is full ({usage.running} running, limit {usage.limit})"
        text += f": {_listed(held, usage.running - len(held))}. Wait for one of them, or raise the limit {limit}."
        holders = [{"job_id": h.job_id, "worker": h.worker, "since": _iso(h.since)} for h in usage.holders]
        yield _reason(full, text, limit=usage.limit, running=usage.running, held_by=holders)
    if usage.rate_used_up and usage.rate is not None:
        per = usage.rate.per_micros / 1_000_000
        text = (
            f"The rate limit of {whose} is used up ({usage.rate.count} starts every {per:g} s): "
            f"the next may start at {_clock(usage.window_ends)}. Wait, or raise the limit {rate}."
        )
        yield _reason(
            used_up, text, count=usage.rate.count, per=per, started=usage.started, until=_iso(usage.window_ends)
        )


def _workers(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    alive = [w for w in facts.workers if state_of_worker(w.state, w.seen_at, facts.now) == "running"]
    missing = {worker.id: lacks(job, worker.queues, worker.tags, worker.types) for worker in alive}
    fit = [worker for worker in alive if not missing[worker.id]]
    if not fit:
        needed = f"the queue {job.queue!s}" + (f" and the tags {', '.join(job.tags)}" if job.tags else "")
        needed += f" and the type {job.type}" if any("types" in why for why in missing.values()) else ""
        text = f"No live worker claims jobs of {needed}"
        if missing:
            text += ": " + "; ".join(f"{name} {why}" for name, why in list(missing.items())[:5])
        silent = len(facts.workers) - len(alive)
        if silent:
            text += f"; {silent} have stopped or sent no heartbeat for {HEARTBEAT_WITHIN.seconds} s"
        text += f". Start a worker with a harbor that has the task {job.type}: longshore worker --harbor MODULE:NAME."
        yield _reason("no_worker", text, queue=str(job.queue), type=job.type, workers=missing, silent=silent)
    elif all(worker.running >= worker.concurrency for worker in fit):
        busy = {worker.id: worker.running for worker in fit}
        text = f"All its workers were busy at their last heartbeat: {', '.join(list(busy)[:5])}. Wait or start another."
        yield _reason("workers_busy", text, workers=busy)


def lacks(job: Job, queues: Sequence[str], tags: Sequence[str], types: Sequence[str] | None) -> str:
    """Why a worker that claims these queues, tags and types does not claim this job; empty if it does."""
    if queues and str(job.queue) not in queues:
        return f"works for {', '.join(queues)}"
    missing = [tag for tag in tags if tag not in job.tags]
    if missing:
        return f"takes only jobs tagged {', '.join(missing)}"
    if types is not None and job.type not in types:
        return f"claims only the types {_listed(types[:5], len(types) - 5) or 'none'}"
    return ""


def _behind_others(facts: Facts) -> Iterator[Reason]:
    if not facts.ahead or facts.eligible_at > facts.now:
        return
    more = facts.ahead >= MOST_COUNTED
    position = None if more else facts.ahead + 1
    others = "1 other" if facts.ahead == 1 else f"{'at least ' if more else ''}{facts.ahead:,} others"
    position_text = f"position {f'over {MOST_COUNTED:,}' if more else f'{position:,}'}"
    text = f"It is behind {others} of its queue ({position_text}); a smaller priority would move it forward."
    details: dict[str, Any] = {"ahead": facts.ahead, "counted_to": MOST_COUNTED, "position": position}
    estimate = _estimate(facts)
    if estimate is None:
        text += f" Its start cannot be estimated: fewer than {LEAST_ENDS} jobs of its queue completed recently."
    else:
        text += f" {estimate[0]}"
    yield _reason("behind_others", text, **details, estimated_start=None if estimate is None else estimate[1])


LEAST_ENDS = 10
"""The fewest completions that allow an estimate."""


def _estimate(facts: Facts) -> tuple[str, dict[str, Any]] | None:
    """When the jobs ahead complete at the recent rate, with an uncertainty of two standard deviations (Poisson)."""
    count = len(facts.recent_ends)
    if count < LEAST_ENDS:
        return None
    window = max((facts.now - facts.recent_ends[-1]).total_seconds(), 0.001)
    rate, spread = count / window, 2 / count**0.5
    expected = facts.ahead / rate
    soon, late = expected / (1 + spread), None if facts.ahead >= MOST_COUNTED else expected / (1 - spread)
    earliest = facts.now + timedelta(seconds=soon)
    latest = None if late is None else facts.now + timedelta(seconds=late)
    until = f"after {_clock(earliest)}" if latest is None else f"between {_clock(earliest)} and {_clock(latest)}"
    text = f"Estimated start: {until}, at the rate of the last {window:.0f} s ({rate * 60:.3g} jobs a minute)."
    return text, {
        "earliest": _iso(earliest),
        "latest": _iso(latest),
        "jobs_per_second": round(rate, 6),
        "completed": count,
        "window_seconds": round(window, 3),
    }


def no_job_but_a_schedule(job_id: str, schedule: Schedule, now: datetime) -> str:
    """The message for an id that no job has, but a schedule or one of its future runs."""
    planned = schedule.next_run_at
    text = f"{job_id!r} is a schedule, not a job"
    if job_id != schedule.id:
        text = f"no job has the id {job_id!r}: the schedule {schedule.id!r} has not created it, or it has been removed"
    if schedule.paused:
        because = f" by itself ({schedule.error})" if schedule.error else ""
        return f"{text}. It is paused{because}; resume it with resume_schedule"
    if planned is None:
        return f"{text}. It has ended: its limit is reached, or no planned time is left"
    if now - planned > OVERDUE:
        return f"{text}. It was due at {_clock(planned)} and has not fired: no scheduler is running. Start one"
    return f"{text}. It fires next at {_clock(planned)}"


def _listed(names: Sequence[str], more: int) -> str:
    text = ", ".join(names)
    return f"{text} and {more} more" if more > 0 else text


def _clock(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
