"""Jobs come in from a caller who is bound to some queues: into those, and beside nobody else's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longshore.core.errors import DuplicateJob
from longshore.core.filtering import JobFilter
from longshore.core.job import Job
from longshore.core.names import check_name
from longshore.server.within_queues.call import Bound
from longshore.server.within_queues.kinship import check_kinship


async def _check_new(call: Bound, jobs: Sequence[Job]) -> None:
    for job in jobs:
        call.caller.check_queue(check_name("queue", job.queue))
    await check_kinship(call.backend, call.caller, jobs)


async def enqueue_job(call: Bound) -> Any:
    await _check_new(call, [call.arguments["job"]])
    return await call.go()


async def enqueue_jobs(call: Bound) -> Any:
    await _check_new(call, call.arguments["jobs"])
    return await call.go()


async def add_jobs(call: Bound) -> Any:
    """One that is known by its id may be in another queue, and is then none of theirs."""
    await _check_new(call, call.arguments["jobs"])
    known = [job.id for job in call.arguments["jobs"]]
    elsewhere = await call.backend.list_jobs(JobFilter(ids=known), limit=max(1, len(known))) if known else None
    taken = [job.id for job in (elsewhere.items if elsewhere else ()) if not call.caller.sees(job.queue)]
    if taken:
        raise DuplicateJob(taken)
    return await call.go()
