"""The JSON that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from longshore.core.errors import InvalidArgument
from longshore.core.health import Finding
from longshore.core.job import Attempt, Job, JobEvent, attempts_of
from longshore.core.status import JobStatus
from longshore.core.validation import read_json
from longshore.server.models.events import EventView, event_view
from longshore.server.models.fields import base64_text
from longshore.server.models.jobs import ExplanationView, FlowView, JobPage, JobView, LogLine, view
from longshore.server.models.queues import QueueList, QueueView, StatsView, WorkerList
from longshore.server.models.schedules import ScheduleList, ScheduleView, Times
from longshore.server.models.tokens import NewTokenView, TokenList, TokenView


class AttemptView(BaseModel):
    """One execution of a job: who had it, from when to when, and how it ended."""

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
    """A job with its story."""

    job: JobView
    attempts: list[AttemptView]
    events: list[EventView]
    log_lines: int


class ActReport(BaseModel):
    """What became of an act on jobs."""

    action: Literal["cancel", "retry", "promote", "delete"]
    dry_run: bool
    matched: int
    changed: int
    job_ids: list[str] | None
    """Those it was done to, if they were named; null if they were meant by a filter."""
    refused: dict[str, str]
    """Those it could not be done to, of the named ones, each with the reason."""


class Enqueued(BaseModel):
    """Jobs that were stored together."""

    job_ids: list[str]


class JobResult(BaseModel):
    """How a job ended that was waited for."""

    id: str
    status: JobStatus
    result: Any
    error: str


class Removed(BaseModel):
    """A schedule that was removed."""

    id: str
    removed: bool


class MigrationView(BaseModel):
    """A store whose schema is up to date."""

    store: str
    schema_version: int


class FindingView(BaseModel):
    """What a check found, and the way out."""

    check: str
    level: Literal["ok", "warning", "problem"]
    found: str
    fix: str


class Diagnosis(BaseModel):
    """All that was looked at."""

    healthy: bool
    findings: list[FindingView]


def attempt_view(attempt: Attempt) -> AttemptView:
    """From the record."""
    ended = attempt.ended_at
    return AttemptView(
        execution=attempt.execution,
        epoch=attempt.epoch,
        worker=attempt.worker,
        started_at=attempt.started_at,
        ended_at=ended,
        seconds=None if ended is None else (ended - attempt.started_at).total_seconds(),
        outcome=attempt.outcome,
        status=attempt.status,
        error=attempt.error,
    )


def job_detail(job: Job, events: Sequence[JobEvent], now: datetime) -> JobDetail:
    """A job with what the log tells of it."""
    return JobDetail(
        job=view(job, now),
        attempts=[attempt_view(attempt) for attempt in attempts_of(events)],
        events=[event_view(event) for event in events],
        log_lines=sum(event.event == "job.log_added" for event in events),
    )


def job_result(job: Job) -> JobResult:
    """How it ended."""
    return JobResult(
        id=job.id,
        status=job.status,
        result=None if job.result is None else _value(job.result),
        error=job.error_message,
    )


def _value(stored: bytes) -> Any:
    try:
        return read_json("result", stored)
    except InvalidArgument:
        return {"base64": base64_text(stored)}


def diagnosis(findings: Sequence[Finding], healthy: bool) -> Diagnosis:
    """What a check-up found."""
    views = [FindingView(check=one.check, level=one.level, found=one.found, fix=one.fix) for one in findings]
    return Diagnosis(healthy=healthy, findings=views)


SHAPES: dict[str, type[BaseModel]] = {
    "list": JobPage,
    "show": JobDetail,
    "explain": ExplanationView,
    "logs": LogLine,
    "stats": StatsView,
    "queues": QueueList,
    "workers": WorkerList,
    "limits": QueueView,
    "pause": QueueList,
    "resume": QueueList,
    "enqueue": JobView,
    "cancel": ActReport,
    "retry": ActReport,
    "promote": ActReport,
    "delete": ActReport,
    "dlq list": JobPage,
    "dlq requeue": ActReport,
    "dlq purge": ActReport,
    "schedule list": ScheduleList,
    "schedule add": ScheduleView,
    "schedule run": JobView,
    "schedule pause": ScheduleView,
    "schedule resume": ScheduleView,
    "schedule preview": Times,
    "schedule remove": Removed,
    "flow show": FlowView,
    "events": EventView,
    "migrate": MigrationView,
    "doctor": Diagnosis,
    "token create": NewTokenView,
    "token list": TokenList,
    "token revoke": TokenView,
}
"""What `--json` prints, by command; of `logs`, `events` and `stats --watch` one such document on each line.

`enqueue` prints a `JobResult` with `--wait`, and with `--from` an `Enqueued` for all that was stored at once.
"""
