"""What the jobs a job depended on gave back: read in batches, and what is said of those that gave nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longshore.backends.contract import Backend
from longshore.core.dependencies import policy_of
from longshore.core.errors import JobNotFound
from longshore.core.filtering import JobFilter
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus
from longshore.core.payload import read_json

_READ_AT_ONCE = 500


async def results_of(backend: Backend, job: Job, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """The results by id, decoded, in the order of `depends_on`, or of those wanted and in their order.

    None is what a job gave back that gave back nothing.
    What did not complete has none: it is left out where the policy of its edge is `ignore`, and so is what was removed.
    Under the other policies only what completed lets a job run, so what is not there was removed since: JobNotFound.
    """
    wanted = job.depends_on if wanted is None else wanted
    found = await _completed(backend, wanted)
    results = {}
    for job_id in wanted:
        if job_id in found:
            result = found[job_id]
            results[job_id] = None if result is None else read_json(f"result of {job_id}", result)
        elif policy_of(job, job_id) != "ignore":
            raise _removed(job_id)
    return results


async def _completed(backend: Backend, job_ids: Sequence[str]) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for first in range(0, len(job_ids), _READ_AT_ONCE):
        ids = job_ids[first : first + _READ_AT_ONCE]
        wanted = JobFilter(ids=ids, statuses=(JobStatus.COMPLETED,))
        page = await backend.list_jobs(wanted, limit=len(ids))
        found.update({job.id: job.result for job in page.items})
    return found


def _removed(job_id: str) -> JobNotFound:
    missing = JobNotFound(job_id)
    missing.args = (
        f"the dependency {job_id!r} was removed, and its result with it: by remove_on_complete, retention or hand; "
        "keep jobs whose results others ask for",
    )
    return missing
