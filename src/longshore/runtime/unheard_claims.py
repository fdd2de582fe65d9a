"""After a claim whose answer was lost: the jobs that the store holds for a worker which has not heard of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from time import monotonic
from typing import NamedTuple

from longshore.backends.base import Backend
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.runtime.holding import Holding
from longshore.runtime.turn_sizes import LARGEST_TURN


class UnheardClaim(NamedTuple):
    """A job to be run as if the answer had come."""

    job: Job
    seconds_left: float
    """Until its lease ends."""


def still_leased(jobs: Iterable[Job], now: datetime) -> list[UnheardClaim]:
    """Those that may be run: a lease that is over is somebody else's, or nobody's."""
    return [
        UnheardClaim(job, (job.lease.expires_at - now).total_seconds())
        for job in jobs
        if job.lease is not None and job.lease.expires_at is not None and job.lease.expires_at > now
    ]


async def unheard_claims(
    backend: Backend, holding: Holding, given_up: set[str], lock_seconds: float
) -> list[tuple[Job, float]]:
    """The jobs, each with when its claim must have been asked for at the latest; none that was `given_up` here."""
    ours = JobFilter(assignee_id=holding.assignee_id, statuses=[JobStatus.RUNNING])
    asked_at = monotonic()
    stored = (await backend.list_jobs(ours, limit=LARGEST_TURN)).items
    now = await backend.now()
    unheard = holding.not_held(job.id for job in stored) - given_up
    claims = still_leased((job for job in stored if job.id in unheard), now)
    return [(job, asked_at + left - lock_seconds) for job, left in claims]
