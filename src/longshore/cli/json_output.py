"""The JSON that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from longshore.core.health import Finding
from longshore.core.job import Attempt, Job, JobEvent, attempts_of
from longshore.core.status import JobStatus
from longshore.server.models.events import EventView, event_view
from longshore.server.models.fields import view_of
from longshore.server.models.jobs import JobView, readable, view


class AttemptView(BaseModel):
    """One attempt at a job: its worker, times and outcome."""

    execution: int
    epoch: int
    worker: str | None
    started_at: datetime
    ended_at: datetime | None
    seconds: float | None
    outcome: str
    status: JobStatus | None
    error: str


class JobDetail(BaseModel):
    """A job with its attempts and events."""

    job: JobView
    attempts: list[AttemptView]
    events: list[EventView]
    log_lines: int


class ActReport(BaseModel):
    """The outcome of a command on jobs."""

    action: Literal["cancel", "retry", "promote", "delete"]
    dry_run: bool
    matched: int
    changed: int
    job_ids: list[str] | None
    """The changed jobs if the command named ids; null if it used a filter."""
    refused: dict[str, str]
    """The named jobs that could not be changed, each with the reason."""


class NewJob(JobView):
    """The job of `enqueue`; `replayed`: it existed before, with this key or id."""

    replayed: bool


class Enqueued(BaseModel):
    """Jobs that one transaction stored."""

    job_ids: list[str]


class JobResult(BaseModel):
    """The outcome of a job that `enqueue --wait` waited for."""

    id: str
    status: JobStatus
    result: Any
    error: str


class Removed(BaseModel):
    """A removed schedule."""

    id: str
    removed: bool


class MigrationView(BaseModel):
    """A store whose schema is up to date."""

    store: str
    schema_version: int


class Diagnosis(BaseModel):
    """The findings of `doctor`."""

    healthy: bool
    findings: list[Finding]


def attempt_view(attempt: Attempt) -> AttemptView:
    """The view of an attempt."""
    ended = attempt.ended_at
    return view_of(
        AttemptView, attempt, seconds=None if ended is None else (ended - attempt.started_at).total_seconds()
    )


def job_detail(job: Job, events: Sequence[JobEvent], now: datetime) -> JobDetail:
    """A job with its events."""
    return JobDetail(
        job=view(job, now),
        attempts=[attempt_view(attempt) for attempt in attempts_of(events)],
        events=[event_view(event) for event in events],
        log_lines=sum(event.event == "job.log_added" for event in events),
    )


def job_result(job: Job) -> JobResult:
    """The outcome of an ended job; bytes that are not JSON appear as base64."""
    value, base64 = readable("result", job.result)
    result = value if base64 is None else {"base64": base64}
    return JobResult(id=job.id, status=job.status, result=result, error=job.error_message)
