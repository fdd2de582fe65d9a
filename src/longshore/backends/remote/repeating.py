"""After an answer was lost with its server: what a job itself tells of whether the request was carried out."""

from __future__ import annotations

from longshore.core.job import Job, Lease
from longshore.core.lifecycle import TABLE, JobStatus, Verb


def _targets(*verbs: Verb) -> frozenset[JobStatus]:
    return frozenset(arrow.target for arrow in TABLE if arrow.verb in verbs)


_ENDINGS: dict[str, frozenset[JobStatus]] = {
    **{verb.value: _targets(verb) for verb in Verb},
    "complete": _targets(Verb.COMPLETE),
    "fail": _targets(Verb.FAIL, Verb.STOP_WITH_RETRY),
    "bury": _targets(Verb.BURY, Verb.STOP_WITH_RETRY),
    "stop": _targets(Verb.STOP),
    "release": _targets(Verb.RELEASE, Verb.ACKNOWLEDGE),
    "crash": _targets(Verb.CRASH, Verb.BURY),
}
"""Where each verb and each outcome may leave a job; an outcome also leaves one that is being cancelled somewhere."""


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
