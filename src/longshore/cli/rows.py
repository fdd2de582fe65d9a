"""Table rows and lines for jobs, queues, schedules, workers and events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from longshore.cli.output import Column
from longshore.core.status import JobStatus

if TYPE_CHECKING:
    from longshore.backends.base import QueueInfo, WorkerInfo
    from longshore.core.flows import StepStatus
    from longshore.core.job import Job, JobEvent
    from longshore.core.limits import Rate
    from longshore.core.schedule import Schedule

_MAX_NOTE = 200
_MAX_ERROR = 80
"""Characters of an error in a row; `show` prints the whole error."""

STATUS_MEANINGS = {
    JobStatus.CREATED: "held until accepted",
    JobStatus.WAITING_CHILDREN: "waiting for dependencies",
    JobStatus.INITIAL_PENDING: "waiting or delayed",
    JobStatus.RUNNING: "running",
    JobStatus.CANCELLING: "running, asked to stop",
    JobStatus.FAILED_RETRY: "failed, to be retried",
    JobStatus.UNKNOWN_RETRY: "released or lost, to be retried",
    JobStatus.COMPLETED: "completed",
    JobStatus.STOPPED: "cancelled or expired after an attempt",
    JobStatus.UNSCHEDULED: "cancelled or expired before an attempt",
    JobStatus.UNKNOWN_STOPPED: "cancelled, outcome unknown",
    JobStatus.DEAD: "failed permanently",
}

JOBS = (
    Column("ID", whole=True),
    Column("STATUS", whole=True, coloured=True),
    Column("TYPE"),
    Column("QUEUE"),
    Column("FAILED", whole=True, right=True),
    Column("CREATED", whole=True),
    Column("NOTE"),
)
QUEUES = (
    Column("QUEUE", whole=True),
    Column("STATE", whole=True, coloured=True),
    Column("WAITING", whole=True, right=True),
    Column("RUNNING", whole=True, right=True),
    Column("COMPLETED", whole=True, right=True),
    Column("DEAD", whole=True, right=True),
    Column("LIMITS"),
)
SCHEDULES = (
    Column("ID", whole=True),
    Column("STATE", whole=True, coloured=True),
    Column("WHEN"),
    Column("TYPE"),
    Column("QUEUE"),
    Column("NEXT", whole=True),
    Column("RUNS", whole=True, right=True),
    Column("NOTE"),
)
WORKERS = (
    Column("ID", whole=True),
    Column("STATE", whole=True),
    Column("BUSY", whole=True, right=True),
    Column("QUEUES"),
    Column("TAGS"),
    Column("SEEN", whole=True),
    Column("HOST"),
)
STEPS = (Column("STEP"), Column("STATUS", whole=True, coloured=True), Column("ID", whole=True), Column("NOTE"))


def job_row(job: Job, now: datetime) -> list[str]:
    """The row of a job."""
    failed = f"{job.retry_count}/{job.max_attempts or '∞'}"
    return [job.id, job.status.value, job.type, str(job.queue), failed, ago(job.created_at, now), _note(job, now)]


def status_with_meaning(status: str) -> str:
    """Return a status and its meaning in plain words: `DEAD (failed permanently)`."""
    meaning = STATUS_MEANINGS[JobStatus(status)]
    return f"{status}" if meaning == status.lower() else f"{status} ({meaning})"


def _note(job: Job, now: datetime) -> str:
    if job.status.holds_capacity:
        progress = "" if job.progress is None else f", progress {compact(job.progress)}"
        return f"worker {job.assignee_id}{progress}"
    if job.status.eligible and isinstance(job.run_at, datetime) and job.run_at > now:
        return f"due {ago(job.run_at, now)}"
    return truncate(job.error_message.partition("\n")[0], _MAX_ERROR)


def queue_row(queue: QueueInfo) -> list[str]:
    """The row of a queue."""
    ended = (queue.counts.get(status, 0) for status in (JobStatus.COMPLETED, JobStatus.DEAD))
    figures = (queue.waiting, queue.held, *ended)
    return [queue.name, "paused" if queue.paused else "active", *(f"{figure:,}" for figure in figures), limits(queue)]


def limits(queue: QueueInfo) -> str:
    """The limits of a queue on one line; empty if there are none."""
    values = (queue.running, queue.per_key, rate(queue.rate), rate(queue.rate_per_key))
    named = zip(("running", "per key", "rate", "rate per key"), values, strict=True)
    return ", ".join(f"{name} {value}" for name, value in named if value is not None)


def rate(limit: Rate | None) -> str | None:
    """A rate as the command line takes it: 10/60s."""
    return None if limit is None else f"{limit.count}/{limit.per_micros / 1_000_000:g}s"


def schedule_row(schedule: Schedule, now: datetime) -> list[str]:
    """The row of a schedule."""
    repeat = schedule.repeat
    every = repeat.every.total_seconds() if isinstance(repeat.every, timedelta) else 0
    when = f"{repeat.cron} ({repeat.tz})" if repeat.cron is not None else f"every {every:g} s"
    state = "paused" if schedule.paused else "ended" if schedule.next_run_at is None else "active"
    next_run = "" if schedule.next_run_at is None else clock(schedule.next_run_at)
    job = schedule.job
    note = truncate(schedule.error) or ("" if schedule.next_run_at is None else ago(schedule.next_run_at, now))
    return [schedule.id, state, when, job.type, str(job.queue), next_run, str(schedule.run_count), note]


def worker_row(worker: WorkerInfo, now: datetime) -> list[str]:
    """The row of a worker."""
    busy = f"{worker.running}/{worker.concurrency}"
    queues = ", ".join(worker.queues) or "all"
    seen = ago(worker.seen_at, now)
    from longshore.core.explain import state_of_worker  # imports the cron parser

    state = state_of_worker(worker.state, worker.seen_at, now)
    return [worker.id, state, busy, queues, ", ".join(worker.tags), seen, f"{worker.host} ({worker.pid})"]


def step_row(step: StepStatus) -> list[str]:
    """The row of a flow's step."""
    note = step.error.partition("\n")[0] if step.error else "" if step.progress is None else compact(step.progress)
    return [step.name, step.status.value, step.job_id, truncate(note)]


def event_line(event: JobEvent) -> str:
    """An event on one line."""
    moved = f" {event.from_status or '—'} → {event.to_status}" if event.to_status is not None else ""
    whose = event.job_id if event.job_id is not None else f"queue {event.queue}" if event.queue else ""
    by = event.actor or event.assignee_id or ""
    detail = f" {compact(event.detail)}" if event.detail else ""
    return f"{clock(event.occurred_at)} {event.event} {whose}{moved}{f' by {by}' if by else ''}{detail}"


# -- formatting


def ago(moment: datetime | None, now: datetime) -> str:
    """The time since or until a moment: `5 min ago`, `in 2 h`."""
    if moment is None:
        return ""
    seconds = (now - moment).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A rounded duration with its unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "0 s" if seconds < 0.0005 else f"{seconds * 1000:.0f} ms"


def clock(moment: datetime | None) -> str:
    """A moment in UTC, to the second."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"


def compact(value: Any) -> str:
    """A value as JSON on one line, truncated."""
    plain = dict(value) if isinstance(value, Mapping) else value
    return truncate(json.dumps(plain, ensure_ascii=False, default=str))


def truncate(text: str, most: int = _MAX_NOTE) -> str:
    """Cut off long text; never used for ids."""
    return text if len(text) <= most else f"{text[:most]}…"
