"""A call that waits for a job's end: woken by the log, and sure of it by looking."""

from __future__ import annotations

import asyncio
from time import monotonic

from longshore.core.job import Job
from longshore.server.platform import Platform
from longshore.server.racing import first_of

_LOOK_AGAIN = 1.0
"""Seconds after which it looks although it has heard nothing: on PostgreSQL an event may come after its commit."""


async def until_over(here: Platform, job: Job, seconds: float) -> Job:
    """The job once it is over, or as it is when the time is over or the server stops."""
    with here.a_place():
        waiting = asyncio.ensure_future(_over(here, job, monotonic() + seconds))
        await first_of(waiting, here.closed())
        return await here.backend.get_job(job.id) if waiting.cancelled() else waiting.result()


async def _over(here: Platform, job: Job, deadline: float) -> Job:
    place = here.tail.end
    while True:
        job = await here.backend.get_job(job.id)
        left = deadline - monotonic()
        if job.status.final or left <= 0:
            return job
        until = monotonic() + min(left, _LOOK_AGAIN)
        while (rest := until - monotonic()) > 0:
            if not await here.tail.beyond(place, rest):
                break
            events, place = here.tail.since(place), here.tail.end
            if events is None or any(event.job_id == job.id for event in events):
                break
