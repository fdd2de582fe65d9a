"""The statuses of a job and the table of legal transitions.

Every store derives its transitions from `TRANSITIONS`. Run this module to print docs/states.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple


class JobStatus(StrEnum):
    """The status of a job; the value is what is stored and shown. See docs/states.md."""

    CREATED = "CREATED"
    WAITING_CHILDREN = "WAITING_CHILDREN"
    INITIAL_PENDING = "INITIAL_PENDING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    FAILED_RETRY = "FAILED_RETRY"
    UNKNOWN_RETRY = "UNKNOWN_RETRY"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    UNSCHEDULED = "UNSCHEDULED"
    UNKNOWN_STOPPED = "UNKNOWN_STOPPED"
    DEAD = "DEAD"

    @property
    def eligible(self) -> bool:
        """A worker may claim it once it is due."""
        return self in ELIGIBLE

    @property
    def final(self) -> bool:
        """No further transition happens without a caller."""
        return self in FINAL

    @property
    def holds_capacity(self) -> bool:
        """It counts against the limits of its worker, queue and concurrency key."""
        return self in HOLDS_CAPACITY


S = JobStatus

FINAL = frozenset({S.COMPLETED, S.STOPPED, S.UNSCHEDULED, S.UNKNOWN_STOPPED, S.DEAD})
HOLDS_CAPACITY = frozenset({S.RUNNING, S.CANCELLING})


class Verb(StrEnum):
    """The operations and events that change a status; the table below lists their transitions."""

    ACCEPT = "accept_jobs"
    DEPENDENCIES_COMPLETED = "last dependency completed"
    DEPENDENCY_FAILED = "a dependency failed under policy stop"
    CLAIM = "dequeue_jobs"
    COMPLETE = "complete_job"
    FAIL = "fail_job"
    BURY = "bury_job"
    STOP = "stop_job"
    STOP_WITH_RETRY = "stop_job_with_retry"
    MARK_UNKNOWN_STOPPED = "mark_job_unknown_stopped"
    RELEASE = "release_lease"
    CANCEL = "cancel_jobs"
    EXPIRE = "expires_at passed"
    ACKNOWLEDGE = "acknowledge_cancellation(True)"
    DISOWN = "acknowledge_cancellation(False)"
    CRASH = "lease expired, worker unresponsive, process died, reset"
    RETRY = "retry_job"


class Transition(NamedTuple):
    """One legal transition."""

    source: JobStatus
    target: JobStatus
    verb: Verb


TRANSITIONS: tuple[Transition, ...] = (
    Transition(S.CREATED, S.INITIAL_PENDING, Verb.ACCEPT),
    Transition(S.CREATED, S.WAITING_CHILDREN, Verb.ACCEPT),
    Transition(S.CREATED, S.UNSCHEDULED, Verb.CANCEL),
    Transition(S.WAITING_CHILDREN, S.INITIAL_PENDING, Verb.DEPENDENCIES_COMPLETED),
    Transition(S.WAITING_CHILDREN, S.UNSCHEDULED, Verb.CANCEL),
    Transition(S.WAITING_CHILDREN, S.UNSCHEDULED, Verb.EXPIRE),
    Transition(S.WAITING_CHILDREN, S.UNSCHEDULED, Verb.DEPENDENCY_FAILED),
    Transition(S.INITIAL_PENDING, S.RUNNING, Verb.CLAIM),
    Transition(S.INITIAL_PENDING, S.UNSCHEDULED, Verb.CANCEL),
    Transition(S.INITIAL_PENDING, S.UNSCHEDULED, Verb.EXPIRE),
    Transition(S.FAILED_RETRY, S.RUNNING, Verb.CLAIM),
    Transition(S.FAILED_RETRY, S.STOPPED, Verb.CANCEL),
    Transition(S.FAILED_RETRY, S.STOPPED, Verb.EXPIRE),
    Transition(S.FAILED_RETRY, S.DEAD, Verb.BURY),
    Transition(S.UNKNOWN_RETRY, S.RUNNING, Verb.CLAIM),
    Transition(S.UNKNOWN_RETRY, S.COMPLETED, Verb.COMPLETE),
    Transition(S.UNKNOWN_RETRY, S.FAILED_RETRY, Verb.FAIL),
    Transition(S.UNKNOWN_RETRY, S.STOPPED, Verb.STOP),
    Transition(S.UNKNOWN_RETRY, S.STOPPED, Verb.CANCEL),
    Transition(S.UNKNOWN_RETRY, S.STOPPED, Verb.EXPIRE),
    Transition(S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED, Verb.MARK_UNKNOWN_STOPPED),
    Transition(S.UNKNOWN_RETRY, S.DEAD, Verb.BURY),
    Transition(S.RUNNING, S.COMPLETED, Verb.COMPLETE),
    Transition(S.RUNNING, S.FAILED_RETRY, Verb.FAIL),
    Transition(S.RUNNING, S.STOPPED, Verb.STOP),
    Transition(S.RUNNING, S.UNKNOWN_STOPPED, Verb.MARK_UNKNOWN_STOPPED),
    Transition(S.RUNNING, S.CANCELLING, Verb.CANCEL),
    Transition(S.RUNNING, S.UNKNOWN_RETRY, Verb.RELEASE),
    Transition(S.RUNNING, S.UNKNOWN_RETRY, Verb.CRASH),
    Transition(S.CANCELLING, S.COMPLETED, Verb.COMPLETE),
    Transition(S.CANCELLING, S.STOPPED, Verb.STOP),
    Transition(S.CANCELLING, S.STOPPED, Verb.STOP_WITH_RETRY),
    Transition(S.CANCELLING, S.STOPPED, Verb.ACKNOWLEDGE),
    Transition(S.CANCELLING, S.UNKNOWN_STOPPED, Verb.DISOWN),
    Transition(S.CANCELLING, S.UNKNOWN_STOPPED, Verb.MARK_UNKNOWN_STOPPED),
    Transition(S.CANCELLING, S.UNKNOWN_STOPPED, Verb.CRASH),
    Transition(S.UNKNOWN_STOPPED, S.COMPLETED, Verb.COMPLETE),
    Transition(S.DEAD, S.FAILED_RETRY, Verb.RETRY),
)
"""There is no RUNNING -> DEAD: burying a running job records RUNNING -> FAILED_RETRY -> DEAD."""

ELIGIBLE = frozenset(move.source for move in TRANSITIONS if move.verb is Verb.CLAIM)
"""The statuses that a worker may claim."""

LEGAL_PAIRS: frozenset[tuple[JobStatus, JobStatus]] = frozenset((a.source, a.target) for a in TRANSITIONS)

_TARGETS: dict[tuple[JobStatus, Verb], JobStatus] = {
    (move.source, move.verb): move.target for move in TRANSITIONS if move.verb is not Verb.ACCEPT
}

_CLOSED_TO_UPDATES: frozenset[tuple[JobStatus, JobStatus]] = frozenset(
    {
        (S.WAITING_CHILDREN, S.INITIAL_PENDING),
        (S.DEAD, S.FAILED_RETRY),
        (S.CREATED, S.INITIAL_PENDING),
        (S.CREATED, S.WAITING_CHILDREN),
    }
)


def target_of(status: JobStatus, verb: Verb) -> JobStatus | None:
    """The target of this operation from this status, or None if it is not allowed."""
    return _TARGETS.get((status, verb))


def update_is_legal(status: JobStatus, target: JobStatus) -> bool:
    """Whether `update_job_status` may make this change: the table, except transitions reserved for one operation."""
    return (status, target) in LEGAL_PAIRS and (status, target) not in _CLOSED_TO_UPDATES


def transitions_from(status: JobStatus) -> Iterator[Transition]:
    """The transitions that leave this status, in table order."""
    return (move for move in TRANSITIONS if move.source is status)


_MEANING = {
    JobStatus.CREATED: "stored with `hold=True`, not yet accepted",
    JobStatus.WAITING_CHILDREN: "waits for the jobs it depends on",
    JobStatus.INITIAL_PENDING: "accepted and never claimed; a job never returns to it",
    JobStatus.RUNNING: "one worker runs it under a lease",
    JobStatus.CANCELLING: "cancellation requested, not yet acknowledged by the worker",
    JobStatus.FAILED_RETRY: "an attempt failed; will run again, not before `run_at`",
    JobStatus.UNKNOWN_RETRY: "its worker crashed or released it; will run again",
    JobStatus.COMPLETED: "completed; the result is stored",
    JobStatus.STOPPED: "cancelled or expired after a worker had claimed it",
    JobStatus.UNSCHEDULED: "cancelled, expired, or stopped by a failed dependency before any worker claimed it",
    JobStatus.UNKNOWN_STOPPED: "cancelled; how far it got is unknown",
    JobStatus.DEAD: "failed permanently: a dead letter",
}


def _merged(status: JobStatus) -> list[tuple[JobStatus, str]]:
    def by_target(move: Transition) -> str:
        return move.target

    groups = groupby(sorted(transitions_from(status), key=by_target), key=by_target)
    return [
        (JobStatus(target), ", ".join(dict.fromkeys(a.verb.value for a in transitions)))
        for target, transitions in groups
    ]


def page() -> str:
    """The whole page, generated from the table."""
    lines = [
        "# The states of a job",
        "",
        "Every job has one of these statuses. This page lists them, and every transition that a store can make.",
        "`make docs` generates it from the table in `longshore/core/status.py`.",
        "",
        "![The statuses of a job and the transitions between them.](images/states.svg)",
        "",
        "A worker can claim a job in an *eligible* status once it is due. A job in a *final* status has ended.",
        "INITIAL_PENDING means waiting, UNKNOWN_RETRY means waiting again after a crash or a release,",
        "and UNSCHEDULED means cancelled or expired before it started.",
        "",
        "| status | eligible | final | meaning |",
        "|---|---|---|---|",
    ]
    for status in JobStatus:
        eligible, final = ("yes" if status in ELIGIBLE else ""), ("yes" if status in FINAL else "")
        lines.append(f"| {status} | {eligible} | {final} | {_MEANING[status]} |")
    lines += ["", "```mermaid", "stateDiagram-v2"]
    lines += ["    [*] --> CREATED: hold", "    [*] --> WAITING_CHILDREN: depends_on", "    [*] --> INITIAL_PENDING"]
    for status in JobStatus:
        for target, verbs in _merged(status):
            lines.append(f"    {status} --> {target}: {verbs}")
    lines += ["```", "", "| from | to | by |", "|---|---|---|"]
    lines += [f"| {move.source} | {move.target} | {move.verb.value} |" for move in TRANSITIONS]
    lines += [
        "",
        "When a running job becomes a dead letter, one transaction records two transitions:",
        "RUNNING → FAILED_RETRY → DEAD.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
