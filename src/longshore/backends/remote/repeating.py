"""After an answer was lost with its server: what a job itself tells of whether the request was carried out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from longshore.backends.contract import Outcome, SettleReport
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.errors import JobNotInflight
from longshore.core.job import Job, Lease
from longshore.core.status import TABLE, JobStatus, Verb


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


def doubtful(report: SettleReport, outcomes: Sequence[Outcome]) -> dict[str, tuple[Lease, str]]:
    """Of outcomes that were sent again those that are refused now, maybe because they were settled the first time."""
    return {
        outcome.job_id: (outcome.lease, outcome.verb)
        for outcome in outcomes
        if outcome.lease is not None and isinstance(report.refused.get(outcome.job_id), JobNotInflight)
    }


def recognised(
    report: SettleReport, unsure: Mapping[str, tuple[Lease, str]], stored: Mapping[str, Job]
) -> SettleReport:
    """The report, in which those count as settled whose jobs are where they left them."""
    for job_id, (lease, verb) in unsure.items():
        job = stored.get(job_id)
        if job is not None and was_settled(job, lease, verb):
            del report.refused[job_id]
            report.settled[job_id] = job.status
            if job.assignee_id is not None:
                report.freed[job.assignee_id] = report.freed.get(job.assignee_id, 0) + 1
    return report


def are_those_sent(sent: Sequence[Job], in_the_way: Collection[str], stored: Mapping[str, Job]) -> bool:
    """Whether all ids in the way are of jobs that were sent, and stand there as they were sent."""
    known = set(in_the_way)
    own = [job for job in sent if job.id in known]
    return {job.id for job in own} == known and all(is_as_sent(job, stored.get(job.id)) for job in own)


def is_as_sent(sent: Job, stored: Job | None) -> bool:
    """Whether the stored job is what was sent: then it does not matter whose request stored it."""
    return (
        stored is not None
        and (sent.type, sent.payload, str(sent.queue)) == (stored.type, stored.payload, stored.queue)
        and (set(sent.tags), sent.priority, sent.lifo) == (set(stored.tags), stored.priority, stored.lifo)
        and (sent.idempotency_key, sent.concurrency_key) == (stored.idempotency_key, stored.concurrency_key)
        and (sent.parent_id, sent.schedule_id) == (stored.parent_id, stored.schedule_id)
        and set(sent.depends_on) == set(stored.depends_on)
        and _without_note(sent) == _without_note(stored)
    )


def _without_note(job: Job) -> dict[str, Any]:
    """Its options as they were given: a server notes for whom it stored a job."""
    return {name: value for name, value in job.options.items() if name != RESULTS_FROM}
