"""Events over HTTP."""

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
    """One event of the event log. The events of a job are ordered by `job_seq`."""

    cursor: str = Field(description="Send it as `after` to read the events that follow.")
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
    detail: dict[str, Any] = Field(description="More fields, depending on the event; times are RFC 3339.")


class EventPage(BaseModel):
    """A page of the event log, oldest first."""

    items: list[EventView]
    next_cursor: str | None = Field(
        description="The cursor after the last event; the one you sent, if the page is empty."
    )


def event_view(event: JobEvent) -> EventView:
    """The view of an event."""
    return view_of(EventView, event, detail=_shown(event))


def _shown(event: JobEvent) -> dict[str, Any]:
    """The detail as JSON, with times instead of microseconds and jobs as `JobView`."""
    if event.event == "job.delayed" and "until" in event.detail:
        return {**event.detail, "until": from_micros(event.detail["until"])}
    if "job" in event.detail:
        return {**event.detail, "job": job_view(event.detail["job"], event.occurred_at)}
    return dict(event.detail)
