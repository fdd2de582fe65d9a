"""Workers and counts over HTTP."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from longshore.backends.contract import WorkerInfo
from longshore.core.job import JobStats
from longshore.core.lifecycle import JobStatus


class WorkerView(BaseModel):
    """What a worker said of itself last."""

    id: str
    queues: list[str]
    tags: list[str]
    concurrency: int
    running: int
    host: str
    pid: int
    version: str
    state: str
    started_at: datetime | None
    seen_at: datetime | None


class WorkerList(BaseModel):
    """Those heard of in the last day, by id."""

    items: list[WorkerView]


def worker_view(worker: WorkerInfo) -> WorkerView:
    """From the record."""
    fields = {name: getattr(worker, name) for name in WorkerView.model_fields}
    return WorkerView(**{**fields, "queues": list(worker.queues), "tags": list(worker.tags)})


class StatsView(BaseModel):
    """How many jobs there are."""

    queue: str | None
    tags: list[str]
    counts: dict[JobStatus, int] | None = Field(description="By status, exact; null if tags were asked for.")
    delayed: int | None = Field(description="Jobs that wait for their time; null if tags were asked for.")
    total_jobs: int
    pending_jobs: int
    running_jobs: int
    completed_jobs: int
    stopped_jobs: int
    failed_jobs: int
    total_retries: int


def stats_view(
    queue: str | None, stats: JobStats, counts: dict[JobStatus, int] | None, delayed: int | None
) -> StatsView:
    """From the records."""
    told = {name: getattr(stats, name) for name in StatsView.model_fields if name.endswith(("_jobs", "_retries"))}
    return StatsView(queue=queue, tags=list(stats.tags), counts=counts, delayed=delayed, **told)
