"""Dead letters: jobs that failed for good, brought back by an operator, one by one, by filter, or all."""

from __future__ import annotations

import asyncio
import dataclasses

from longshore.backends.contract import Backend
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound
from longshore.core.filtering import JobFilter, check_filter
from longshore.core.lifecycle import JobStatus

_AT_ONCE = 200
"""Jobs retried side by side: a store that commits in groups makes few commits of them."""


async def retry_jobs(backend: Backend, wanted: JobFilter, *, dry_run: bool, reset: bool, actor: str) -> int:
    """Retries the dead jobs that match, and returns how many; with `dry_run` it only counts them."""
    if any(status is not JobStatus.DEAD for status in check_filter(wanted).statuses):
        raise InvalidArgument("filter.statuses", "must be left out, or DEAD: no other job can be retried")
    dead = dataclasses.replace(wanted, statuses=(JobStatus.DEAD,))
    retried, cursor = 0, None
    while True:
        page = await backend.list_jobs(dead, limit=_AT_ONCE, cursor=cursor)
        if dry_run:
            retried += len(page.items)
        else:
            retrying = [asyncio.ensure_future(_retry(backend, job.id, reset, actor)) for job in page.items]
            if retrying:
                await asyncio.wait(retrying)  # all of them, so that none is left behind when one fails
            retried += sum([each.result() for each in retrying])
        cursor = page.next_cursor
        if cursor is None:
            return retried


async def _retry(backend: Backend, job_id: str, reset: bool, actor: str) -> bool:
    try:
        await backend.retry_job(job_id, reset=reset, actor=actor)
    except (JobNotFound, InvalidTransition):  # somebody else removed or retried it first
        return False
    return True
