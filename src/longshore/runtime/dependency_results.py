"""What the jobs a job depended on gave back: read in batches, and what is said of those that gave nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from longshore.backends.base import Backend
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.errors import Fatal, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.flows import policy_of
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.validation import read_json

MOST_TAKEN = 64 * 1024 * 1024
"""Bytes of results that one job may take: they are in its worker's memory, beside those of all its other jobs."""
_READ_AT_ONCE = 500
_READ_FIRST = 8
"""Nobody knows how large they are before some are read."""
_BYTES_AT_ONCE = 8 * 1024 * 1024


async def results_of(backend: Backend, job: Job, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """The results by id, decoded, in the order of `depends_on`, or of those wanted and in their order."""
    stored = await stored_results_of(backend, job, job.depends_on if wanted is None else wanted)
    return await asyncio.to_thread(_decoded, stored)  # they may be large, and others are on the loop


def _decoded(stored: Mapping[str, bytes | None]) -> dict[str, Any]:
    return {
        job_id: None if result is None else read_json(f"result of {job_id}", result)
        for job_id, result in stored.items()
    }


async def stored_results_of(backend: Backend, job: Job, wanted: Sequence[str]) -> dict[str, bytes | None]:
    """The results as they were stored, by id, in the order in which they are wanted.

    None is what a job gave back that gave back nothing.
    What did not complete has none: it is left out where the policy of its edge is `ignore`, and so is what was removed.
    Under the other policies only what completed lets a job run, so what is not there was removed since: JobNotFound.
    What is in a queue that whoever stored the job may not see is not there.
    More than fits is Fatal, for it will not be less another time.
    """
    queues = job.options.get(RESULTS_FROM, ())
    found = await _completed(backend, wanted, queues)
    results = {}
    for job_id in wanted:
        if job_id in found:
            results[job_id] = found[job_id]
        elif policy_of(job, job_id) != "ignore":
            raise _removed(job_id, hidden=bool(queues))
    return results


async def _completed(backend: Backend, job_ids: Sequence[str], queues: Sequence[str]) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    size = 0
    first, at_once = 0, _READ_FIRST
    while first < len(job_ids):
        ids = job_ids[first : first + at_once]
        wanted = JobFilter(ids=ids, queues=queues, statuses=(JobStatus.COMPLETED,))
        page = await backend.list_jobs(wanted, limit=len(ids))
        found.update({job.id: job.result for job in page.items})
        size += sum(len(job.result or b"") for job in page.items)
        first += len(ids)
        if size > MOST_TAKEN:
            raise Fatal(
                f"the results it takes are more than {MOST_TAKEN / 2**20:g} MiB: the first {first:,} of "
                f"{len(job_ids):,} have {size / 2**20:,.1f} MiB; let those jobs store what is large elsewhere and give "
                "back its address, or take fewer of them"
            )
        at_once = max(1, min(_READ_AT_ONCE, _BYTES_AT_ONCE * first // (size + 1)))
    return found


def _removed(job_id: str, *, hidden: bool) -> JobNotFound:
    missing = JobNotFound(job_id)
    elsewhere = "; or it is in a queue that whoever stored this job may not see" if hidden else ""
    missing.args = (
        f"the dependency {job_id!r} was removed, and its result with it: by remove_on_complete, retention or hand; "
        f"keep jobs whose results others ask for{elsewhere}",
    )
    return missing
