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
    """At most `count` starts in every window of `per` seconds."""

    model_config = ConfigDict(extra="forbid")

    count: Limit
    per: SomeSeconds

    def rate(self) -> Rate:
        """As a queue takes it."""
        return Rate(self.count, self.per)


class LimitsChange(BaseModel):
    """Limits to set; null takes a limit away, and one that is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"running": 5, "rate": None}]})

    running: Limit | None = Field(None, description="Jobs that may run at once.")
    per_key: Limit | None = Field(None, description="Jobs of one concurrency key that may run at once.")
    rate: RateView | None = None
    rate_per_key: RateView | None = None

    def told(self) -> dict[str, Any]:
        """Only what was said."""
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
    waiting: int = Field(description="Jobs in a status from which they can be started, due or not.")


class QueueList(BaseModel):
    """All queues the caller may see, sorted by name."""

    items: list[QueueView]


def queue_view(info: QueueInfo) -> QueueView:
    """From the record."""
    limits = view_of(LimitsView, info, rate=_rate(info.rate), rate_per_key=_rate(info.rate_per_key))
    return view_of(QueueView, info, limits=limits, counts={status: info.counts.get(status, 0) for status in JobStatus})


def queue_named(name: str, known: Iterable[QueueInfo]) -> QueueInfo:
    """The queue of this name among those known; an empty one if it was never used."""
    return next((info for info in known if info.name == name), QueueInfo(name, False, None, None, None, None, {}))


def _rate(rate: Rate | None) -> RateView | None:
    return None if rate is None else RateView(count=rate.count, per=rate.per_micros / 1_000_000)


class WorkerView(BaseModel):
    """What a worker said of itself last."""

    id: str
    queues: list[str]
    tags: list[str]
    types: list[str] | None = Field(description="The types of jobs that it claims; null is all.")
    concurrency: int
    running: int
    host: str
    pid: int
    version: str
    state: str = Field(description="What it said of itself last; `silent` if it has said nothing for a minute.")
    started_at: datetime | None
    seen_at: datetime | None


class WorkerList(BaseModel):
    """The workers seen in the last day, sorted by id."""

    items: list[WorkerView]


def worker_view(worker: WorkerInfo, now: datetime) -> WorkerView:
    """From the record."""
    types = None if worker.types is None else list(worker.types)
    state = state_of_worker(worker.state, worker.seen_at, now)
    return view_of(WorkerView, worker, queues=list(worker.queues), tags=list(worker.tags), types=types, state=state)


class StatsView(BaseModel):
    """How many jobs there are, of all queues or one, or of those that carry all tags."""

    queue: str | None = Field(description="The queue asked for; null is all of them.")
    tags: list[str] = Field(description="The tags asked for.")
    counts: dict[JobStatus, int] | None = Field(description="By status, exact; null if tags were asked for.")
    delayed: int | None = Field(description="Jobs that wait for their time; null if tags were asked for.")
    total_jobs: int = Field(description="Jobs in any status.")
    pending_jobs: int = Field(description="INITIAL_PENDING: not run yet.")
    running_jobs: int = Field(description="RUNNING.")
    completed_jobs: int = Field(description="COMPLETED.")
    stopped_jobs: int = Field(description="Over without having completed: STOPPED, UNSCHEDULED, UNKNOWN_STOPPED, DEAD.")
    failed_jobs: int = Field(description="Failed or crashed, and to be run again: FAILED_RETRY, UNKNOWN_RETRY.")
    total_retries: int = Field(description="Failed tries of all these jobs together.")


def stats_view(
    queue: str | None, stats: JobStats, counts: dict[JobStatus, int] | None, delayed: int | None
) -> StatsView:
    """From the records."""
    return view_of(StatsView, stats, queue=queue, tags=list(stats.tags), counts=counts, delayed=delayed)
