"""Shared by the core's tests: a second, hand-written copy of the transition table, and records in each status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from longshore.core.job import Job
from longshore.core.job_record import Record, record_of
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, to_micros

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = to_micros(NOON)
BORN = NOW - 3600 * SECOND

# The table written by hand, not from the code: (from, to, verb). A row lost or added in the product shows here.
ARROWS: frozenset[tuple[str, str, str]] = frozenset(
    {
        ("CREATED", "INITIAL_PENDING", "ACCEPT"),
        ("CREATED", "WAITING_CHILDREN", "ACCEPT"),
        ("CREATED", "UNSCHEDULED", "CANCEL"),
        ("WAITING_CHILDREN", "INITIAL_PENDING", "DEPENDENCIES_COMPLETED"),
        ("WAITING_CHILDREN", "UNSCHEDULED", "CANCEL"),
        ("WAITING_CHILDREN", "UNSCHEDULED", "DEPENDENCY_FAILED"),
        ("WAITING_CHILDREN", "UNSCHEDULED", "EXPIRE"),
        ("INITIAL_PENDING", "RUNNING", "CLAIM"),
        ("INITIAL_PENDING", "UNSCHEDULED", "CANCEL"),
        ("INITIAL_PENDING", "UNSCHEDULED", "EXPIRE"),
        ("FAILED_RETRY", "RUNNING", "CLAIM"),
        ("FAILED_RETRY", "STOPPED", "CANCEL"),
        ("FAILED_RETRY", "STOPPED", "EXPIRE"),
        ("FAILED_RETRY", "DEAD", "BURY"),
        ("UNKNOWN_RETRY", "RUNNING", "CLAIM"),
        ("UNKNOWN_RETRY", "COMPLETED", "COMPLETE"),
        ("UNKNOWN_RETRY", "FAILED_RETRY", "FAIL"),
        ("UNKNOWN_RETRY", "STOPPED", "STOP"),
        ("UNKNOWN_RETRY", "STOPPED", "CANCEL"),
        ("UNKNOWN_RETRY", "STOPPED", "EXPIRE"),
        ("UNKNOWN_RETRY", "UNKNOWN_STOPPED", "MARK_UNKNOWN_STOPPED"),
        ("UNKNOWN_RETRY", "DEAD", "BURY"),
        ("RUNNING", "COMPLETED", "COMPLETE"),
        ("RUNNING", "FAILED_RETRY", "FAIL"),
        ("RUNNING", "STOPPED", "STOP"),
        ("RUNNING", "UNKNOWN_STOPPED", "MARK_UNKNOWN_STOPPED"),
        ("RUNNING", "CANCELLING", "CANCEL"),
        ("RUNNING", "UNKNOWN_RETRY", "RELEASE"),
        ("RUNNING", "UNKNOWN_RETRY", "CRASH"),
        ("CANCELLING", "COMPLETED", "COMPLETE"),
        ("CANCELLING", "STOPPED", "STOP"),
        ("CANCELLING", "STOPPED", "STOP_WITH_RETRY"),
        ("CANCELLING", "STOPPED", "ACKNOWLEDGE"),
        ("CANCELLING", "UNKNOWN_STOPPED", "DISOWN"),
        ("CANCELLING", "UNKNOWN_STOPPED", "MARK_UNKNOWN_STOPPED"),
        ("CANCELLING", "UNKNOWN_STOPPED", "CRASH"),
        ("UNKNOWN_STOPPED", "COMPLETED", "COMPLETE"),
        ("DEAD", "FAILED_RETRY", "RETRY"),
    }
)
PAIRS = frozenset((source, target) for source, target, _ in ARROWS)
STATUSES = tuple(JobStatus)
IN_FLIGHT = ("RUNNING", "CANCELLING")
FINAL = ("COMPLETED", "STOPPED", "UNSCHEDULED", "UNKNOWN_STOPPED", "DEAD")


def arrow(source: str, verb: str) -> str | None:
    """The target of this verb from this status, by the hand-written table."""
    return next((to for of, to, by in ARROWS if (of, by) == (source, verb)), None)


def new_record(job: Job | None = None, *, uid: int = 7, now: int = BORN, **changes: Any) -> Record:
    """A record as stored just after the enqueue."""
    record = record_of(job or Job(id="j1", type="email"), now)
    record.uid = uid
    record.set_sort_key(now)
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def record_in(status: JobStatus, **changes: Any) -> Record:
    """A record in this status with a matching history: one claim by worker-1, unless it was never assigned."""
    record = new_record(job_seq=1)
    record.status = status
    if status not in (JobStatus.CREATED, JobStatus.WAITING_CHILDREN, JobStatus.INITIAL_PENDING, JobStatus.UNSCHEDULED):
        record.executions = record.epoch = 1
        record.started_at = record.assigned_at = record.updated_at = BORN + 5 * SECOND
        record.assignee_id = "worker-1"
    if status in (JobStatus.RUNNING, JobStatus.CANCELLING):
        record.lease_owner, record.lease_token, record.lease_expires_at = "worker-1", "token-1", NOW + 30 * SECOND
    if status in FINAL:
        record.finalized_at = BORN + 10 * SECOND
    for name, value in changes.items():
        setattr(record, name, value)
    return record
