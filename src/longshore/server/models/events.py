"""Events over HTTP: lines of the durable log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from longshore.core.job import JobEvent
from longshore.core.lifecycle import JobStatus


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
    detail: dict[str, Any]


class EventPage(BaseModel):
    """A piece of the log."""

    items: list[EventView]
    next_cursor: str | None = Field(description="After the last one here; what you gave, if there is none.")


def event_view(event: JobEvent) -> EventView:
    """From the record."""
    fields = {name: getattr(event, name) for name in EventView.model_fields}
    return EventView.model_construct(**{**fields, "detail": dict(event.detail)})
