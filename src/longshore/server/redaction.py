"""Removes what a caller without the scope `read` may not see of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.backends.remote.backend import is_as_sent
from longshore.core.job import Job
from longshore.server.auth import Caller


def redact(caller: Caller, job: Job) -> Job:
    """The job; for a caller that may not read, only what is kept of a removed job."""
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


def redact_added(caller: Caller, given: Sequence[Job], found: Sequence[Job]) -> list[Job]:
    """The answers to `add_jobs`: new jobs in full, existing ones redacted."""
    return [
        job if _says_nothing_new(sent, job) else redact(caller, job) for sent, job in zip(given, found, strict=True)
    ]


def _says_nothing_new(sent: Job, job: Job) -> bool:
    """Whether the stored job has only what the caller sent, and was never claimed."""
    left_by_a_run = (job.result, job.checkpoint, job.progress)
    return sent.id == job.id and job.epoch == 0 and left_by_a_run == (None, None, None) and is_as_sent(sent, job)
