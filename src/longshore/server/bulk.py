"""One act on all jobs that match a filter: counted first if asked, done page by page, bounded in number."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from longshore.core.errors import InvalidTransition, JobNotFound
from longshore.core.filtering import JobFilter
from longshore.core.job import Job
from longshore.core.lifecycle import ELIGIBLE, FINAL, JobStatus
from longshore.runtime.job_queue import Queue

Act = Literal["cancel", "retry", "promote", "delete"]

_AT_ONCE = 500
APPLIES_TO: dict[Act, frozenset[JobStatus]] = {
    "cancel": frozenset(JobStatus) - FINAL - {JobStatus.CANCELLING},
    "retry": frozenset({JobStatus.DEAD}),
    "promote": ELIGIBLE,
    "delete": FINAL,
}
"""The statuses in which a job can be acted upon so; others that match are left alone."""


@dataclass(slots=True)
class BulkReport:
    """What became of it."""

    matched: int = 0
    changed: int = 0
    more: bool = False
    """Whether others match that were not looked at, because the bound was reached."""


async def act_on_all(
    queue: Queue,
    act: Act,
    wanted: JobFilter,
    *,
    most: int,
    dry_run: bool,
    actor: str,
    reset: bool = True,
    told: Callable[[BulkReport], None] = lambda _: None,
) -> BulkReport:
    """Acts on up to `most` jobs that match, or with `dry_run` only counts them; `told` hears of it after each page."""
    fitting = APPLIES_TO[act]
    statuses = fitting & frozenset(wanted.statuses) if wanted.statuses else fitting
    report = BulkReport()
    if not statuses:
        return report
    meant = dataclasses.replace(wanted, statuses=tuple(statuses))
    due = False if act == "promote" else None
    cursor: str | None = None
    while True:
        limit = min(_AT_ONCE, most - report.matched)
        if limit <= 0:
            report.more = True
            return report
        page = await queue.backend.list_jobs(meant, limit=limit, cursor=cursor, due=due)
        report.matched += len(page.items)
        if not dry_run and page.items:
            report.changed += await _act(queue, act, page.items, actor, reset)
        told(report)
        cursor = page.next_cursor
        if cursor is None:
            return report


async def _act(queue: Queue, act: Act, jobs: Sequence[Job], actor: str, reset: bool) -> int:
    ids = [job.id for job in jobs]
    if act == "cancel":
        cancelled, _ = await queue.cancel_jobs(job_ids=ids)
        return len(cancelled)
    if act == "delete":
        return await _delete(queue, ids)
    if act == "retry":
        return await _each(ids, lambda job_id: queue.retry_job(job_id, reset=reset, actor=actor))
    return await _each(ids, queue.promote_job)


async def _delete(queue: Queue, ids: Sequence[str]) -> int:
    """All at once; if one of them came back to life meanwhile, the others one by one."""
    try:
        await queue.delete_jobs(job_ids=ids)
    except InvalidTransition:
        if len(ids) == 1:
            return 0
        return sum([await _delete(queue, [job_id]) for job_id in ids])
    return len(ids)


async def _each(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> int:
    """Side by side: a store that commits in groups makes few commits of them."""

    async def one(job_id: str) -> bool:
        try:
            await act(job_id)
        except (JobNotFound, InvalidTransition):  # somebody else was first
            return False
        return True

    acting = [asyncio.ensure_future(one(job_id)) for job_id in ids]
    await asyncio.wait(acting)  # all of them, so that none is left behind when one fails
    return sum([each.result() for each in acting])
