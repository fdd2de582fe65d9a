"""Workers and counts over HTTP."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from longshore.backends.base import WorkerInfo
from longshore.core.explain import state_of_worker
from longshore.core.job import JobStats
from longshore.core.status import JobStatus


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
    """The workers heard of in the last day, sorted by id."""

    items: list[WorkerView]


def worker_view(worker: WorkerInfo, now: datetime) -> WorkerView:
    """From the record."""
    fields = {name: getattr(worker, name) for name in WorkerView.model_fields}
    state = state_of_worker(worker.state, worker.seen_at, now)
    fields["types"] = None if worker.types is None else list(worker.types)
    return WorkerView(**{**fields, "queues": list(worker.queues), "tags": list(worker.tags), "state": state})


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
    told = {name: getattr(stats, name) for name in StatsView.model_fields if name.endswith(("_jobs", "_retries"))}
    return StatsView(queue=queue, tags=list(stats.tags), counts=counts, delayed=delayed, **told)
