"""Events over HTTP: lines of the durable log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from longshore.core.job import JobEvent
from longshore.core.status import JobStatus
from longshore.core.times import from_micros
from longshore.server.models.fields import view_of
from longshore.server.models.jobs import view as job_view


class EventView(BaseModel):
    """One line of the durable log; a job's own are in order of `job_seq`."""

    cursor: str = Field(description="Ask for what comes after it.")
    event: str = Field(examples=["job.completed"])
    job_id: str | None
    job_seq: int
    queue: str
    type: str | None
    from_status: JobStatus | None
    to_status: JobStatus | None
    epoch: int
    execution: int
    assignee_id: str | None
    actor: str
    occurred_at: datetime
    detail: dict[str, Any] = Field(description="What this kind of event tells besides; times are RFC 3339.")


class EventPage(BaseModel):
    """A piece of the durable log, oldest first."""

    items: list[EventView]
    next_cursor: str | None = Field(description="After the last one here; what you gave, if there is none.")


def event_view(event: JobEvent) -> EventView:
    """From the record."""
    return view_of(EventView, event, detail=_shown(event))


def _shown(event: JobEvent) -> dict[str, Any]:
    """The details as JSON: a time instead of the log's microseconds, and a job as elsewhere in the API."""
    if event.event == "job.delayed" and "until" in event.detail:
        return {**event.detail, "until": from_micros(event.detail["until"])}
    if "job" in event.detail:
        return {**event.detail, "job": job_view(event.detail["job"], event.occurred_at)}
    return dict(event.detail)
