"""Operations on one job by id, or on all jobs that match a filter, page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from longshore.core.errors import InvalidTransition
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import ELIGIBLE, FINAL, JobStatus
from longshore.runtime.job_listing import delete_final, each, pages, within
from longshore.runtime.queue import Queue

Act = Literal["cancel", "retry", "promote", "delete"]

_AT_ONCE = 500
APPLIES_TO: dict[Act, frozenset[JobStatus]] = {
    "cancel": frozenset(JobStatus) - FINAL - {JobStatus.CANCELLING},
    "retry": frozenset({JobStatus.DEAD}),
    "promote": ELIGIBLE,
    "delete": FINAL,
}
"""The statuses to which each action applies; other jobs that match are skipped."""


async def cancel_one(queue: Queue, job_id: str) -> Job:
    """Cancel one job and return it. Raise InvalidTransition for a final job, JobNotFound for an unknown id.

    A job that is already being cancelled is returned unchanged.
    """
    cancelled, _ = await queue.cancel_jobs(job_ids=[job_id])
    job = await queue.get_job(job_id)
    if not cancelled and job.status.final:
        raise InvalidTransition(job_id, job.status, "cancelled", "it has already ended")
    return job


async def delete_one(queue: Queue, job_id: str) -> None:
    """Remove one final job. Raise InvalidTransition for a job that is not final, JobNotFound for an unknown id."""
    await queue.get_job(job_id)
    await queue.delete_jobs(job_ids=[job_id])


@dataclass(slots=True)
class BulkReport:
    """The counts of a bulk operation."""

    matched: int = 0
    changed: int = 0
    more: bool = False
    """Whether more jobs match than the limit allowed."""


async def act_on_all(
    queue: Queue,
    act: Act,
    wanted: JobFilter,
    *,
    most: int,
    dry_run: bool,
    actor: str,
    reset: bool = True,
    on_progress: Callable[[BulkReport], None] = lambda _: None,
) -> BulkReport:
    """Apply the action to up to `most` matching jobs; `dry_run` only counts. Call `on_progress` after each page."""
    report = BulkReport()
    matching = within(wanted, APPLIES_TO[act])
    if matching is None:
        return report
    due = False if act == "promote" else None
    async for page in pages(queue.backend, matching, at_once=_AT_ONCE, most=most, due=due):
        report.matched += len(page.items)
        report.more = page.next_cursor is not None
        if not dry_run and page.items:
            report.changed += await _act(queue, act, [job.id for job in page.items], actor, reset)
        on_progress(report)
    return report


async def _act(queue: Queue, act: Act, ids: Sequence[str], actor: str, reset: bool) -> int:
    if act == "cancel":
        cancelled, _ = await queue.cancel_jobs(job_ids=ids)
        return len(cancelled)
    if act == "delete":
        return await delete_final(queue.backend, ids)
    if act == "retry":
        return await each(ids, lambda job_id: queue.retry_job(job_id, reset=reset, actor=actor))
    return await each(ids, queue.promote_job)
