"""Dead letters: jobs that failed for good, brought back by an operator, one by one, by filter, or all."""

from __future__ import annotations

import dataclasses

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter, check_filter
from longshore.core.status import JobStatus
from longshore.runtime.by_filter import each
from longshore.runtime.paging import pages

_AT_ONCE = 200


async def retry_jobs(backend: Backend, wanted: JobFilter, *, dry_run: bool, reset: bool, actor: str) -> int:
    """Retries the dead jobs that match, and returns how many; with `dry_run` it only counts them."""
    if any(status is not JobStatus.DEAD for status in check_filter(wanted).statuses):
        raise InvalidArgument("filter.statuses", "must be left out, or DEAD: no other job can be retried")
    dead = dataclasses.replace(wanted, statuses=(JobStatus.DEAD,))

    async def retry(job_id: str) -> None:
        await backend.retry_job(job_id, reset=reset, actor=actor)

    retried = 0
    async for page in pages(backend, dead, at_once=_AT_ONCE):
        retried += len(page.items) if dry_run else await each([job.id for job in page.items], retry)
    return retried
