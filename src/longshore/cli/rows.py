"""How jobs, queues, schedules, workers and events become rows for people."""

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

_LONGEST_NOTE = 200
_LONGEST_IN_A_LIST = 80
"""Characters of an error shown in a row; `show` prints all of it."""

JOBS = (
    Column("ID", whole=True),
    Column("STATUS", whole=True, coloured=True),
    Column("TYPE"),
    Column("QUEUE"),
    Column("TRIES", whole=True, right=True),
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
    """A job as lists show it."""
    tries = f"{job.executions}/{job.max_attempts or '∞'}"
    return [job.id, job.status.value, job.type, str(job.queue), tries, ago(job.created_at, now), _note(job, now)]


def _note(job: Job, now: datetime) -> str:
    if job.status.holds_capacity:
        progress = "" if job.progress is None else f", at {compact(job.progress)}"
        return f"by {job.assignee_id}{progress}"
    if job.status.eligible and isinstance(job.run_at, datetime) and job.run_at > now:
        return f"due {ago(job.run_at, now)}"
    return shortened(job.error_message.partition("\n")[0], _LONGEST_IN_A_LIST)


def queue_row(queue: QueueInfo) -> list[str]:
    """A queue as lists show it."""
    ended = (queue.counts.get(status, 0) for status in (JobStatus.COMPLETED, JobStatus.DEAD))
    figures = (queue.waiting, queue.held, *ended)
    return [queue.name, "paused" if queue.paused else "open", *(f"{figure:,}" for figure in figures), limits(queue)]


def limits(queue: QueueInfo) -> str:
    """Its limits in words; nothing if there are none."""
    told: list[tuple[str, object]] = [
        ("running", queue.running),
        ("per key", queue.per_key),
        ("rate", rate(queue.rate)),
        ("rate per key", rate(queue.rate_per_key)),
    ]
    return ", ".join(f"{name} {value}" for name, value in told if value is not None)


def rate(limit: Rate | None) -> str | None:
    """A rate as it is written on the command line: 10/60s."""
    return None if limit is None else f"{limit.count}/{limit.per_micros / 1_000_000:g}s"


def schedule_row(schedule: Schedule, now: datetime) -> list[str]:
    """A schedule as lists show it."""
    repeat = schedule.repeat
    every = repeat.every.total_seconds() if isinstance(repeat.every, timedelta) else 0
    when = f"{repeat.cron} ({repeat.tz})" if repeat.cron is not None else f"every {every:g} s"
    state = "paused" if schedule.paused else "ended" if schedule.next_run_at is None else "open"
    next_run = "" if schedule.next_run_at is None else clock(schedule.next_run_at)
    job = schedule.job
    note = shortened(schedule.error) or ("" if schedule.next_run_at is None else ago(schedule.next_run_at, now))
    return [schedule.id, state, when, job.type, str(job.queue), next_run, str(schedule.run_count), note]


def worker_row(worker: WorkerInfo, now: datetime) -> list[str]:
    """A worker as lists show it."""
    busy = f"{worker.running}/{worker.concurrency}"
    queues = ", ".join(worker.queues) or "all"
    seen = ago(worker.seen_at, now)
    from longshore.core.explain import state_of_worker  # it brings cron expressions along

    state = state_of_worker(worker.state, worker.seen_at, now)
    return [worker.id, state, busy, queues, ", ".join(worker.tags), seen, f"{worker.host} ({worker.pid})"]


def step_row(step: StepStatus) -> list[str]:
    """A step of a flow."""
    note = step.error.partition("\n")[0] if step.error else "" if step.progress is None else compact(step.progress)
    return [step.name, step.status.value, step.job_id, shortened(note)]


def event_line(event: JobEvent) -> str:
    """An event on one line."""
    moved = f" {event.from_status or '—'} → {event.to_status}" if event.to_status is not None else ""
    whose = event.job_id if event.job_id is not None else f"queue {event.queue}" if event.queue else ""
    by = event.actor or event.assignee_id or ""
    detail = f" {compact(event.detail)}" if event.detail else ""
    return f"{clock(event.occurred_at)} {event.event} {whose}{moved}{f' by {by}' if by else ''}{detail}"


# -- words


def ago(moment: datetime | None, now: datetime) -> str:
    """How long since, or until, a moment: `5 m ago`, `in 2 h`."""
    if moment is None:
        return ""
    seconds = (now - moment).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time, roughly."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "0 s" if seconds < 0.0005 else f"{seconds * 1000:.0f} ms"


def clock(moment: datetime | None) -> str:
    """A moment, exactly enough for people, in UTC."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"


def compact(value: Any) -> str:
    """A value on one line, cut if it is long."""
    plain = dict(value) if isinstance(value, Mapping) else value
    return shortened(json.dumps(plain, ensure_ascii=False, default=str))


def shortened(text: str, most: int = _LONGEST_NOTE) -> str:
    """Text for a note; never used for ids."""
    return text if len(text) <= most else f"{text[:most]}…"
