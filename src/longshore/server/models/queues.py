"""Queues, workers and counts over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from longshore.backends.base import QueueInfo, WorkerInfo
from longshore.core.explain import state_of_worker
from longshore.core.job import JobStats
from longshore.core.limits import Rate
from longshore.core.status import JobStatus
from longshore.server.models.fields import Limit, SomeSeconds, view_of


class RateView(BaseModel):
    """At most `count` starts per window of `per` seconds."""

    model_config = ConfigDict(extra="forbid")

    count: Limit
    per: SomeSeconds

    def rate(self) -> Rate:
        """Return the rate limit."""
        return Rate(self.count, self.per)


class LimitsChange(BaseModel):
    """Limits to set. Null removes a limit; an omitted limit does not change."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"running": 5, "rate": None}]})

    running: Limit | None = Field(None, description="The most running jobs.")
    per_key: Limit | None = Field(None, description="The most running jobs per concurrency key.")
    rate: RateView | None = None
    rate_per_key: RateView | None = None

    def changes(self) -> dict[str, Any]:
        """Return the limits that the request contains."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value.rate() if isinstance(value, RateView) else value for name, value in given.items()}


class LimitsView(BaseModel):
    """The limits of a queue; null means unlimited."""

    running: int | None
    per_key: int | None
    rate: RateView | None
    rate_per_key: RateView | None


class QueueView(BaseModel):
    """A queue with its settings and exact counts."""

    name: str
    paused: bool
    limits: LimitsView
    counts: dict[JobStatus, int]
    waiting: int = Field(description="Jobs that can be claimed now or later.")


class QueueList(BaseModel):
    """All queues that the caller may see, sorted by name."""

    items: list[QueueView]


def queue_view(info: QueueInfo) -> QueueView:
    """The view of a queue."""
    limits = view_of(LimitsView, info, rate=_rate(info.rate), rate_per_key=_rate(info.rate_per_key))
    return view_of(QueueView, info, limits=limits, counts={status: info.counts.get(status, 0) for status in JobStatus})


def queue_named(name: str, known: Iterable[QueueInfo]) -> QueueInfo:
    """Return the queue with this name; an unused name is an empty queue."""
    return next((info for info in known if info.name == name), QueueInfo(name, False, None, None, None, None, {}))


def _rate(rate: Rate | None) -> RateView | None:
    return None if rate is None else RateView(count=rate.count, per=rate.per_micros / 1_000_000)


class WorkerView(BaseModel):
    """The last heartbeat of a worker."""

    id: str
    queues: list[str]
    tags: list[str]
    types: list[str] | None = Field(description="The types that it claims; null means all.")
    concurrency: int
    running: int
    host: str
    pid: int
    version: str
    state: str = Field(description="The last reported state, or `silent` if there was no heartbeat for one minute.")
    started_at: datetime | None
    seen_at: datetime | None


class WorkerList(BaseModel):
    """The workers of the last 24 hours, sorted by id."""

    items: list[WorkerView]


def worker_view(worker: WorkerInfo, now: datetime) -> WorkerView:
    """The view of a worker."""
    types = None if worker.types is None else list(worker.types)
    state = state_of_worker(worker.state, worker.seen_at, now)
    return view_of(WorkerView, worker, queues=list(worker.queues), tags=list(worker.tags), types=types, state=state)


class StatsView(BaseModel):
    """Counts of all jobs, of one queue, or of the jobs with all given tags."""

    queue: str | None = Field(description="The requested queue; null means all queues.")
    tags: list[str] = Field(description="The requested tags.")
    counts: dict[JobStatus, int] | None = Field(description="Exact counts by status; null for a request with tags.")
    delayed: int | None = Field(description="Jobs that are not due yet; null for a request with tags.")
    total_jobs: int = Field(description="Jobs in any status.")
    pending_jobs: int = Field(description="INITIAL_PENDING: no attempt yet.")
    running_jobs: int = Field(description="RUNNING.")
    completed_jobs: int = Field(description="COMPLETED.")
    stopped_jobs: int = Field(description="Final but not completed: STOPPED, UNSCHEDULED, UNKNOWN_STOPPED, DEAD.")
    failed_jobs: int = Field(description="Failed or crashed, to be retried: FAILED_RETRY, UNKNOWN_RETRY.")
    total_retries: int = Field(description="Failed attempts of all these jobs.")


def stats_view(
    queue: str | None, stats: JobStats, counts: dict[JobStatus, int] | None, delayed: int | None
) -> StatsView:
    """The view of the counts."""
    return view_of(StatsView, stats, queue=queue, tags=list(stats.tags), counts=counts, delayed=delayed)
