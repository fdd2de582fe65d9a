"""Jobs that wait in vain: given back by every worker that takes them, or waiting for a job that nobody has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from longshore.core.errors import JobNotFound
from longshore.core.explain import NO_TASK_NAMED, Reason, ReasonKind
from longshore.core.filters import JobFilter
from longshore.core.health import STARVING, Finding
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.runtime.job_queue import Queue
from longshore.runtime.paging import pages

_AT_ONCE = 500
_NAMED = 3
_MOST_ASKED = 200
"""Jobs that are asked for their reasons at most: each is a look of its own at the store."""


async def given_back(queue: Queue, now: datetime) -> list[Finding]:
    """Of each queue and type the jobs that come back to wait again, since long: their `run_at` is always soon.

    A type that no worker knows never runs. A task that puts itself off may well mean it, so that is a warning only.
    """
    groups: dict[tuple[str, str], list[Job]] = {}
    waiting = JobFilter(statuses=(JobStatus.UNKNOWN_RETRY,))
    async for page in pages(queue.backend, waiting, at_once=_AT_ONCE, oldest_first=True, due=False):
        for job in page.items:
            if now - _taken_since(job) > STARVING:
                groups.setdefault((str(job.queue), job.type), []).append(job)
    findings = []
    for (name, job_type), jobs in list(groups.items())[:_MOST_ASKED]:
        for reason in await _reasons(queue, jobs[0], "given_back"):
            unknown = str(reason.details["reason"]).startswith(NO_TASK_NAMED)
            found = (
                f"{len(jobs)} jobs of type {job_type} in queue {name} are given back again and again, the first since "
                f"{_taken_since(jobs[0]):%Y-%m-%d %H:%M} UTC: {_named([job.id for job in jobs])}"
            )
            findings.append(Finding("starving jobs", "problem" if unknown else "warning", found, str(reason)))
    return findings


def _taken_since(job: Job) -> datetime:
    """When it was taken first, or first after its last failure; its own time to run was before that."""
    return max(filter(None, (job.created_at, job.started_at, job.last_retry_at)))


async def waiting_for_nobody(queue: Queue, now: datetime) -> list[Finding]:
    """Jobs that wait, since long, for an id that no job has."""
    waiting, asked = [], 0
    async for job in _with_unknown_dependencies(queue, now):
        reasons = await _reasons(queue, job, "waiting_for_dependencies")
        unknown = [reason for reason in reasons if any(one["status"] is None for one in reason.details["waiting_for"])]
        waiting += [(job.id, str(reason)) for reason in unknown]
        asked += 1
        if len(waiting) > _NAMED or asked >= _MOST_ASKED:
            break
    if not waiting:
        return []
    found = f"jobs wait since long for an id that no job has: {_named([job_id for job_id, _ in waiting])}"
    return [Finding("starving jobs", "problem", found, waiting[0][1])]


async def _with_unknown_dependencies(queue: Queue, now: datetime) -> AsyncIterator[Job]:
    """Those with an id among their dependencies that no job has now; it may be done and removed, so they are asked."""
    waiting = JobFilter(statuses=(JobStatus.WAITING_CHILDREN,))
    async for page in pages(queue.backend, waiting, at_once=_AT_ONCE, oldest_first=True):
        old = [job for job in page.items if job.created_at is not None and now - job.created_at > STARVING]
        ids = list({job_id: None for job in old for job_id in job.depends_on})
        known: set[str] = set()
        for start in range(0, len(ids), _AT_ONCE):
            portion = ids[start : start + _AT_ONCE]
            found = await queue.backend.list_jobs(JobFilter(ids=portion), limit=_AT_ONCE)
            known |= {job.id for job in found.items}
        for job in old:
            if not known.issuperset(job.depends_on):
                yield job


async def _reasons(queue: Queue, job: Job, kind: ReasonKind) -> list[Reason]:
    try:
        return [reason for reason in (await queue.explain(job.id)).reasons if reason.kind == kind]
    except JobNotFound:  # removed meanwhile
        return []


def _named(ids: list[str]) -> str:
    more = " and others" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more
