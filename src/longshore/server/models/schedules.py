"""Schedules over HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.server.models.fields import Limit, Moment, Name, Seconds, view_of
from longshore.server.models.jobs import JobSettings, JobView, view


class RepeatBody(BaseModel):
    """The times of a schedule: exactly one of `cron` and `every`."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"cron": "30 2 * * *", "tz": "Europe/Berlin"}, {"every": 60}]}
    )

    cron: str | None = Field(None, max_length=255)
    every: Seconds | None = Field(None, description="Seconds.")
    tz: str = Field("UTC", max_length=255)
    limit: Limit | None = None
    start: Moment | None = None
    end: Moment | None = None
    on_gap: Literal["next", "skip"] = "next"
    on_overlap: Literal["first", "second", "both"] = "first"
    catch_up: Literal["none", "last", "all"] = "last"
    immediate: StrictBool = Field(False, description="Whether a new schedule runs once immediately.")

    def repeat(self) -> Repeat:
        """Return the `Repeat`."""
        return Repeat(**dict(self))


class PatternJob(JobSettings):
    """The job that a schedule enqueues at each occurrence."""

    type: Name
    data: Any = None
    expires_after: Seconds | None = Field(
        None, description="Seconds after the planned time, after which it does not start."
    )


class SchedulePut(BaseModel):
    """A schedule to create or change."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"job": {"type": "echo", "data": {"say": "hello"}}, "repeat": {"every": 60}}]},
    )

    job: PatternJob
    repeat: RepeatBody
    paused: StrictBool | None = Field(None, description="Default: no change.")


class ScheduleView(BaseModel):
    """A schedule: its job, its times and its last run."""

    id: str
    queue: str
    type: str
    job: JobView
    repeat: RepeatBody
    paused: bool
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_job_id: str | None
    run_count: int
    created_at: datetime | None
    updated_at: datetime | None
    error: str


class ScheduleList(BaseModel):
    """All schedules that the caller may see, sorted by id."""

    items: list[ScheduleView]


class Times(BaseModel):
    """The next occurrences, the nearest first."""

    items: list[datetime]


def schedule_view(schedule: Schedule, now: datetime) -> ScheduleView:
    """The view of a schedule."""
    repeat = schedule.repeat
    every = repeat.every.total_seconds() if isinstance(repeat.every, timedelta) else None
    return view_of(
        ScheduleView,
        schedule,
        queue=str(schedule.job.queue),
        type=schedule.job.type,
        job=view(schedule.job.replace(expires_at=None), now),
        repeat=view_of(RepeatBody, repeat, every=every),
    )
