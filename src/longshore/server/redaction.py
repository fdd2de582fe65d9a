"""What a caller without the scope `read` is shown of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.backends.remote.backend import is_as_sent
from longshore.core.job import Job
from longshore.server.auth import Caller


def told_of(caller: Caller, job: Job) -> Job:
    """The job; to whoever may not read it only what is remembered of one that was removed."""
    if caller.reads:
        return job
    return Job(
        id=job.id,
        uid=job.uid,
        queue=job.queue,
        type=job.type,
        status=job.status,
        idempotency_key=job.idempotency_key,
    )


def told_of_added(caller: Caller, given: Sequence[Job], found: Sequence[Job]) -> list[Job]:
    """The answers to jobs that were added: what was stored as it is stored."""
    return [
        job if _says_nothing_new(sent, job) else told_of(caller, job) for sent, job in zip(given, found, strict=True)
    ]


def _says_nothing_new(sent: Job, job: Job) -> bool:
    """Whether it stands there as it was sent, and nobody has had it in hand: whose request it was does not matter."""
    left_by_a_run = (job.result, job.checkpoint, job.progress)
    return sent.id == job.id and job.epoch == 0 and left_by_a_run == (None, None, None) and is_as_sent(sent, job)
