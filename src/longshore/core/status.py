"""The statuses of a job and the table of legal transitions.

Every store derives its moves from `TRANSITIONS`. Run this module to print the table as docs/states.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple


class JobStatus(StrEnum):
    """Where a job stands; the value is what is stored and shown."""

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
        """A worker may claim it, once its time has come."""
        return self in ELIGIBLE

    @property
    def final(self) -> bool:
        """Nothing happens to it any more by itself."""
        return self in FINAL

    @property
    def holds_capacity(self) -> bool:
        """Somebody's slot, queue limit and key limit are taken up by it."""
        return self in HOLDS_CAPACITY


S = JobStatus

FINAL = frozenset({S.COMPLETED, S.STOPPED, S.UNSCHEDULED, S.UNKNOWN_STOPPED, S.DEAD})
HOLDS_CAPACITY = frozenset({S.RUNNING, S.CANCELLING})


class Verb(StrEnum):
    """What can happen to a job; each verb owns its transitions in the table below."""

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
    """One legal move."""

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
"""There is no RUNNING -> DEAD: burying a running job walks RUNNING -> FAILED_RETRY -> DEAD, both steps recorded."""

ELIGIBLE = frozenset(move.source for move in TRANSITIONS if move.verb is Verb.CLAIM)
"""What a worker may claim."""

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
    """Where the verb leads from this status, or None where there is none."""
    return _TARGETS.get((status, verb))


def update_is_legal(status: JobStatus, target: JobStatus) -> bool:
    """Whether `update_job_status` may make this move: the table, less what only its own verb may do."""
    return (status, target) in LEGAL_PAIRS and (status, target) not in _CLOSED_TO_UPDATES


def transitions_from(status: JobStatus) -> Iterator[Transition]:
    """The transitions that leave this status, in table order."""
    return (move for move in TRANSITIONS if move.source is status)


_MEANING = {
    JobStatus.CREATED: "stored, not yet accepted (two-phase submit)",
    JobStatus.WAITING_CHILDREN: "waits for the jobs it depends on",
    JobStatus.INITIAL_PENDING: "accepted, never run; once left, never entered again",
    JobStatus.RUNNING: "one owner, under a lease",
    JobStatus.CANCELLING: "cancel asked for, the owner has not answered yet",
    JobStatus.FAILED_RETRY: "failed, will run again (at `run_at`, if that is in the future)",
    JobStatus.UNKNOWN_RETRY: "its owner vanished or gave it back; will run again",
    JobStatus.COMPLETED: "done, result kept",
    JobStatus.STOPPED: "cancelled after it had been assigned",
    JobStatus.UNSCHEDULED: "cancelled before it was ever assigned",
    JobStatus.UNKNOWN_STOPPED: "cancelled, but nobody knows how far it got",
    JobStatus.DEAD: "failed for good: the dead-letter queue",
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
    """The whole page, generated from the table and nothing else."""
    lines = [
        "# The states of a job",
        "",
        "Generated from the one table of legal transitions in `longshore/core/status.py` by `make docs`.",
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
        "A running job is buried in two recorded steps, RUNNING → FAILED_RETRY → DEAD, in one transaction.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
