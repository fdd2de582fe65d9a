"""The statuses of a job and the ONE table of legal transitions that every backend, document and audit reads."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotInflight


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

ELIGIBLE = frozenset({S.INITIAL_PENDING, S.FAILED_RETRY, S.UNKNOWN_RETRY})
FINAL = frozenset({S.COMPLETED, S.STOPPED, S.UNSCHEDULED, S.UNKNOWN_STOPPED, S.DEAD})
HOLDS_CAPACITY = frozenset({S.RUNNING, S.CANCELLING})


class Verb(StrEnum):
    """What can happen to a job; each verb owns its arrows in the table below."""

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


class Arrow(NamedTuple):
    """One legal move."""

    source: JobStatus
    target: JobStatus
    verb: Verb


TABLE: tuple[Arrow, ...] = (
    Arrow(S.CREATED, S.INITIAL_PENDING, Verb.ACCEPT),
    Arrow(S.CREATED, S.WAITING_CHILDREN, Verb.ACCEPT),
    Arrow(S.CREATED, S.UNSCHEDULED, Verb.CANCEL),
    Arrow(S.WAITING_CHILDREN, S.INITIAL_PENDING, Verb.DEPENDENCIES_COMPLETED),
    Arrow(S.WAITING_CHILDREN, S.UNSCHEDULED, Verb.CANCEL),
    Arrow(S.WAITING_CHILDREN, S.UNSCHEDULED, Verb.EXPIRE),
    Arrow(S.WAITING_CHILDREN, S.UNSCHEDULED, Verb.DEPENDENCY_FAILED),
    Arrow(S.INITIAL_PENDING, S.RUNNING, Verb.CLAIM),
    Arrow(S.INITIAL_PENDING, S.UNSCHEDULED, Verb.CANCEL),
    Arrow(S.INITIAL_PENDING, S.UNSCHEDULED, Verb.EXPIRE),
    Arrow(S.FAILED_RETRY, S.RUNNING, Verb.CLAIM),
    Arrow(S.FAILED_RETRY, S.STOPPED, Verb.CANCEL),
    Arrow(S.FAILED_RETRY, S.STOPPED, Verb.EXPIRE),
    Arrow(S.FAILED_RETRY, S.DEAD, Verb.BURY),
    Arrow(S.UNKNOWN_RETRY, S.RUNNING, Verb.CLAIM),
    Arrow(S.UNKNOWN_RETRY, S.COMPLETED, Verb.COMPLETE),
    Arrow(S.UNKNOWN_RETRY, S.FAILED_RETRY, Verb.FAIL),
    Arrow(S.UNKNOWN_RETRY, S.STOPPED, Verb.STOP),
    Arrow(S.UNKNOWN_RETRY, S.STOPPED, Verb.CANCEL),
    Arrow(S.UNKNOWN_RETRY, S.STOPPED, Verb.EXPIRE),
    Arrow(S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED, Verb.MARK_UNKNOWN_STOPPED),
    Arrow(S.UNKNOWN_RETRY, S.DEAD, Verb.BURY),
    Arrow(S.RUNNING, S.COMPLETED, Verb.COMPLETE),
    Arrow(S.RUNNING, S.FAILED_RETRY, Verb.FAIL),
    Arrow(S.RUNNING, S.STOPPED, Verb.STOP),
    Arrow(S.RUNNING, S.UNKNOWN_STOPPED, Verb.MARK_UNKNOWN_STOPPED),
    Arrow(S.RUNNING, S.CANCELLING, Verb.CANCEL),
    Arrow(S.RUNNING, S.UNKNOWN_RETRY, Verb.RELEASE),
    Arrow(S.RUNNING, S.UNKNOWN_RETRY, Verb.CRASH),
    Arrow(S.CANCELLING, S.COMPLETED, Verb.COMPLETE),
    Arrow(S.CANCELLING, S.STOPPED, Verb.STOP),
    Arrow(S.CANCELLING, S.STOPPED, Verb.STOP_WITH_RETRY),
    Arrow(S.CANCELLING, S.STOPPED, Verb.ACKNOWLEDGE),
    Arrow(S.CANCELLING, S.UNKNOWN_STOPPED, Verb.DISOWN),
    Arrow(S.CANCELLING, S.UNKNOWN_STOPPED, Verb.MARK_UNKNOWN_STOPPED),
    Arrow(S.CANCELLING, S.UNKNOWN_STOPPED, Verb.CRASH),
    Arrow(S.UNKNOWN_STOPPED, S.COMPLETED, Verb.COMPLETE),
    Arrow(S.DEAD, S.FAILED_RETRY, Verb.RETRY),
)
"""There is no RUNNING -> DEAD: burying a running job walks RUNNING -> FAILED_RETRY -> DEAD, both steps recorded."""

LEGAL_PAIRS: frozenset[tuple[JobStatus, JobStatus]] = frozenset((a.source, a.target) for a in TABLE)

_TARGETS: dict[tuple[JobStatus, Verb], JobStatus] = {
    (arrow.source, arrow.verb): arrow.target for arrow in TABLE if arrow.verb is not Verb.ACCEPT
}

_CLOSED_TO_UPDATES: frozenset[tuple[JobStatus, JobStatus]] = frozenset(
    {
        (S.WAITING_CHILDREN, S.INITIAL_PENDING),
        (S.DEAD, S.FAILED_RETRY),
        (S.CREATED, S.INITIAL_PENDING),
        (S.CREATED, S.WAITING_CHILDREN),
    }
)

_WORKERS_VERBS = frozenset(
    {Verb.COMPLETE, Verb.FAIL, Verb.BURY, Verb.STOP, Verb.RELEASE, Verb.STOP_WITH_RETRY, Verb.MARK_UNKNOWN_STOPPED}
    | {Verb.ACKNOWLEDGE, Verb.DISOWN, Verb.CRASH}
)


def target_of(status: JobStatus, verb: Verb) -> JobStatus | None:
    """Where the verb leads from this status, or None where no arrow leads."""
    return _TARGETS.get((status, verb))


def after(job_id: str, status: JobStatus, verb: Verb) -> JobStatus:
    """Where the verb leads from this status; raises if the table has no such arrow.

    Not for ACCEPT, which has two targets: whether dependencies are left decides between them.
    """
    target = _TARGETS.get((status, verb))
    if target is not None:
        return target
    wanted = next(arrow.target for arrow in TABLE if arrow.verb is verb)
    why = f"{verb.value} is possible from {', '.join(arrow.source for arrow in TABLE if arrow.verb is verb)}"
    if verb in _WORKERS_VERBS and status not in HOLDS_CAPACITY:
        raise JobNotInflight(job_id, status, wanted, why)
    raise InvalidTransition(job_id, status, wanted, why)


def update_is_legal(status: JobStatus, target: JobStatus) -> bool:
    """Whether `update_job_status` may make this move: the table, less what only its own verb may do."""
    return (status, target) in LEGAL_PAIRS and (status, target) not in _CLOSED_TO_UPDATES


def arrows_from(status: JobStatus) -> Iterator[Arrow]:
    """The arrows that leave this status, in table order."""
    return (arrow for arrow in TABLE if arrow.source is status)


def check_status(field_name: str, value: object) -> JobStatus:
    """One of our statuses, as a member or as its name."""
    try:
        return JobStatus(str(value))
    except ValueError:
        known = ", ".join(JobStatus)
        raise InvalidArgument(field_name, f"must be one of {known}; got {value!r}") from None
