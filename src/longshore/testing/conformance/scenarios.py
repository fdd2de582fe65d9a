"""Brings jobs to the status a test needs, and reads their history."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, QueueClosed
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent, Lease
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import LEGAL_PAIRS, JobStatus

S = JobStatus
WORKER = "worker-1"
EVERY_STATUS = tuple(JobStatus)
STALE = Lease("a token of another claim", 1, None)
_SIDE_BY_SIDE = timedelta(seconds=1)
"""Concurrent writers read the clock before they wait for a job's lock, so the later event may have the earlier time."""


def new_job(job_id: str | None = None, **fields: Any) -> Job:
    """Return a job to enqueue; a test names only the fields it is about."""
    if job_id is not None:
        fields["id"] = job_id
    return Job(**{"type": "email", **fields})


async def enqueue(backend: Backend, job_id: str | None = None, **fields: Any) -> Job:
    """Store a new job and return it as stored."""
    return await backend.get_job(await backend.enqueue_job(new_job(job_id, **fields)))


async def claim(backend: Backend, assignee_id: str = WORKER, **options: Any) -> Job:
    """Claim the next job."""
    [job] = await backend.dequeue_jobs(assignee_id, **options)
    return job


async def claimable(backend: Backend, limit: int = 100, **options: Any) -> list[str]:
    """Return the ids that a worker would claim now, in order; the jobs are released again."""
    jobs = await backend.dequeue_jobs("onlooker", limit=limit, **options)
    for job in jobs:
        await backend.release_lease(job.id, lease_of(job), run_at=job.run_at)
    return [job.id for job in jobs]


async def run_next(backend: Backend, job_id: str) -> None:
    """Claim and complete the next job, which must be this one."""
    assert (await claim(backend)).id == job_id
    await backend.complete_job(job_id)


async def retain(backend: Backend) -> int:
    """Apply retention until nothing is left to remove; return how much it removed."""
    removed = 0
    while batch := await backend.apply_retention():
        removed += batch
    return removed


def schedule(schedule_id: str = "nightly", job: Job | None = None, **repeat: Any) -> Schedule:
    """Return a schedule; by default it repeats every minute."""
    return Schedule(id=schedule_id, job=job or new_job(), repeat=Repeat(**(repeat or {"every": 60})))


def lease_of(job: Job) -> Lease:
    """Return the lease of a running job."""
    assert job.lease is not None
    return job.lease


def moment(value: object) -> datetime:
    """Return a time that must not be None."""
    assert isinstance(value, datetime)
    return value


async def job_in(backend: Backend, status: JobStatus, job_id: str | None = None, **fields: Any) -> Job:
    """Bring a job to this status by the shortest path of operations; `WORKER` holds it if the status needs an owner.

    The job has its own id as a tag, so that it alone can be claimed.
    """
    job = new_job(job_id, **fields)
    job = job.replace(tags=(*job.tags, job.id))
    if status is S.CREATED:
        job = job.replace(status=S.CREATED)
    elif status is S.WAITING_CHILDREN:
        job = job.replace(depends_on=job.depends_on or ("a job that does not exist",))
    await backend.enqueue_job(job)
    if status is S.UNSCHEDULED:
        await backend.cancel_jobs(job_ids=[job.id])
    elif status not in (S.CREATED, S.WAITING_CHILDREN, S.INITIAL_PENDING):
        claimed = await claim(backend, tags=[job.id])
        if status is not S.RUNNING:
            await _FROM_RUNNING[status](backend, claimed)
    staged = await backend.get_job(job.id)
    assert staged.status is status
    return staged


_FROM_RUNNING: dict[JobStatus, Callable[[Backend, Job], Awaitable[object]]] = {
    S.CANCELLING: lambda backend, job: backend.cancel_jobs(job_ids=[job.id]),
    S.FAILED_RETRY: lambda backend, job: backend.fail_job(job.id, "failed by the test setup"),
    S.UNKNOWN_RETRY: lambda backend, job: backend.release_lease(job.id, lease_of(job)),
    S.COMPLETED: lambda backend, job: backend.complete_job(job.id, b"done"),
    S.STOPPED: lambda backend, job: backend.stop_job(job.id),
    S.UNKNOWN_STOPPED: lambda backend, job: backend.mark_job_unknown_stopped(job.id),
    S.DEAD: lambda backend, job: backend.bury_job(job.id, "buried by the test setup"),
}


async def status_of(backend: Backend, job_id: str) -> JobStatus:
    """Return the current status of the job."""
    return (await backend.get_job(job_id)).status


async def all_jobs(backend: Backend, wanted: JobFilter | None = None, *, limit: int = 500) -> list[Job]:
    """Return every matching job, page by page, newest first."""
    found: list[Job] = []
    cursor = None
    while True:
        page = await backend.list_jobs(wanted or JobFilter(), limit=limit, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


async def log_of(backend: Backend, **filters: Any) -> list[JobEvent]:
    """Return the whole event log, page by page."""
    found: list[JobEvent] = []
    while True:
        events = await backend.read_events(found[-1].cursor if found else None, **filters)
        if not events:
            return found
        found += events


async def history(backend: Backend, job_id: str) -> list[JobEvent]:
    """Return the events of one job, in order."""
    return sorted(await log_of(backend, job_id=job_id), key=lambda event: (event.job_uid or 0, event.job_seq))


async def story(backend: Backend, job_id: str) -> list[str]:
    """Return the names of the events of one job."""
    return [event.event for event in await history(backend, job_id)]


async def last_cursor(backend: Backend) -> str | None:
    """Return the current end of the log."""
    events = await log_of(backend)
    return events[-1].cursor if events else None


def steps(events: Iterable[JobEvent]) -> list[tuple[JobStatus | None, JobStatus]]:
    """Return the transitions among the events."""
    return [(event.from_status, event.to_status) for event in events if event.to_status is not None]


def assert_legal_history(events: Sequence[JobEvent]) -> None:
    """Check that one job's events have no gap, that each transition is in the table, and that counters only grow."""
    for before, event in pairwise(events):
        assert event.job_seq == before.job_seq + 1, f"{before.event} is followed by {event.event}"
        assert event.epoch >= before.epoch
        assert event.execution >= before.execution
        assert event.occurred_at >= before.occurred_at - _SIDE_BY_SIDE
    moves = steps(events)
    for came_to, (source, target) in zip([None, *(target for _, target in moves)], moves, strict=False):
        if source is None:
            assert came_to is None, f"{events[0].job_id} began twice"
        else:
            assert came_to in (None, source), f"{events[0].job_id} left {source} but had come to {came_to}"
            assert (source, target) in LEGAL_PAIRS


async def picture_of(backend: Backend) -> dict[str, object]:
    """Return everything that can be read from the store, to compare before and after."""
    return {
        "jobs": await all_jobs(backend),
        "counts": await backend.count_jobs(),
        "stats": await backend.get_job_stats(),
        "events": await log_of(backend),
        "queues": await backend.list_queues(),
        "schedules": await backend.get_schedules(),
        "workers": await backend.list_workers(),
    }


@asynccontextmanager
async def nothing_changes(backend: Backend) -> AsyncIterator[None]:
    """Check that the block does not change the store."""
    before = await picture_of(backend)
    yield
    assert await picture_of(backend) == before


async def refused(
    backend: Backend, call: Awaitable[object], error: type[Exception] = InvalidArgument, *, field: str | None = None
) -> Any:
    """Return the error of a call that must raise it, name the field in it, and not change the store."""
    async with nothing_changes(backend):
        with pytest.raises(error) as caught:
            await call
    if field is not None:
        assert getattr(caught.value, "field", None) == field, f"{caught.value!r} should name {field}"
        assert field in str(caught.value)
    return caught.value


async def audit(backend: Backend) -> None:
    """Check what holds after every test: legal histories, exact counts, and leases only on running jobs.

    A cancelled call may still be running: the check is repeated until the store is at rest.
    """
    before: object = None
    while True:
        try:
            await _audit_once(backend)
            return
        except QueueClosed:
            return
        except AssertionError:
            await backend.wait_for_change(0.1)
            now = (await backend.count_jobs(), await last_cursor(backend))
            if now == before:
                raise
            before = now


async def _audit_once(backend: Backend) -> None:
    jobs = await all_jobs(backend)
    counted = await backend.count_jobs()
    found = Counter(job.status for job in jobs)
    assert counted == {status: found[status] for status in JobStatus}
    assert (await backend.get_job_stats()).total_retries == sum(job.retry_count for job in jobs)
    for job in jobs:
        assert (job.lease is not None) == job.status.holds_capacity
        assert (job.finalized_at is not None) == job.status.final
        assert job.created_at is not None
        assert job.updated_at is not None
    by_job: dict[int, list[JobEvent]] = {}
    for event in await log_of(backend):
        if event.job_uid is not None:
            by_job.setdefault(event.job_uid, []).append(event)
    for events in by_job.values():
        assert_legal_history(sorted(events, key=lambda event: event.job_seq))
    for job in jobs:
        moves = steps(sorted(by_job.get(job.uid, []), key=lambda event: event.job_seq))
        assert not moves or moves[-1][1] is job.status


def seconds(number: float) -> timedelta:
    """Return a duration."""
    return timedelta(seconds=number)
