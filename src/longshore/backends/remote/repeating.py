"""After an answer was lost with its server: what a job itself tells of whether the request was carried out."""

from __future__ import annotations

from longshore.core.job import Job, Lease
from longshore.core.lifecycle import JobStatus

S = JobStatus

_ENDINGS: dict[str, frozenset[JobStatus]] = {
    "complete": frozenset({S.COMPLETED}),
    "fail": frozenset({S.FAILED_RETRY, S.STOPPED}),
    "bury": frozenset({S.DEAD, S.STOPPED}),
    "stop": frozenset({S.STOPPED}),
    "release": frozenset({S.UNKNOWN_RETRY, S.STOPPED}),
    "crash": frozenset({S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED, S.DEAD}),
    "complete_job": frozenset({S.COMPLETED}),
    "fail_job": frozenset({S.FAILED_RETRY}),
    "bury_job": frozenset({S.DEAD}),
    "stop_job": frozenset({S.STOPPED}),
    "stop_job_with_retry": frozenset({S.STOPPED}),
    "mark_job_unknown_stopped": frozenset({S.UNKNOWN_STOPPED}),
    "release_lease": frozenset({S.UNKNOWN_RETRY}),
}
"""Where each ending may leave a job; one that was being cancelled goes another way."""


def was_settled(job: Job, lease: Lease, verb: str) -> bool:
    """Whether the job is where this ending leaves it, and nobody has claimed it since this lease."""
    return job.epoch == lease.epoch and job.status in _ENDINGS[verb]


def is_the_same(sent: Job, stored: Job | None) -> bool:
    """Whether the stored job is what was sent: then it does not matter whose request stored it."""
    return (
        stored is not None
        and (sent.type, sent.payload, str(sent.queue)) == (stored.type, stored.payload, stored.queue)
        and (set(sent.tags), sent.priority, sent.lifo) == (set(stored.tags), stored.priority, stored.lifo)
        and (sent.idempotency_key, sent.concurrency_key) == (stored.idempotency_key, stored.concurrency_key)
        and set(sent.depends_on) == set(stored.depends_on)
        and dict(sent.options) == dict(stored.options)
    )
