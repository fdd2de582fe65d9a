"""Jobs come in from a caller who is bound to some queues: into those, and beside nobody else's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longshore.core.errors import DuplicateJob
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.validation import check_name
from longshore.server.within_queues.call import Bound
from longshore.server.within_queues.kinship import check_kinship
from longshore.server.within_queues.results import with_results_within


async def _to_store(call: Bound, jobs: Sequence[Job]) -> list[Job]:
    for job in jobs:
        call.caller.check_queue(check_name("queue", job.queue))
    await check_kinship(call.backend, call.caller, jobs)
    return with_results_within(call.caller, jobs)


async def enqueue_job(call: Bound) -> Any:
    (job,) = await _to_store(call, [call.arguments["job"]])
    return await call.go(job=job)


async def enqueue_jobs(call: Bound) -> Any:
    return await call.go(jobs=await _to_store(call, call.arguments["jobs"]))


async def add_jobs(call: Bound) -> Any:
    """One that is known by its id may be in another queue, and is then none of theirs."""
    jobs = await _to_store(call, call.arguments["jobs"])
    known = [job.id for job in jobs]
    elsewhere = await call.backend.list_jobs(JobFilter(ids=known), limit=max(1, len(known))) if known else None
    hidden = {job.id for job in (elsewhere.items if elsewhere else ()) if not call.caller.sees(job.queue)}
    if hidden:
        raise DuplicateJob([job_id for job_id in dict.fromkeys(known) if job_id in hidden])
    return await call.go(jobs=jobs)
