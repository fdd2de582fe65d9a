"""The effect of each operation on a job: pure functions on a `Change`, which is the only code that sets a status."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from longshore.core.actor import actor as acting_now
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotInflight, LeaseLost
from longshore.core.job import Lease
from longshore.core.job_record import Record, copy_of, kept_after
from longshore.core.retry import after_crash
from longshore.core.status import (
    ELIGIBLE,
    FINAL,
    HOLDS_CAPACITY,
    LEGAL_PAIRS,
    TRANSITIONS,
    JobStatus,
    Verb,
    target_of,
    update_is_legal,
)
from longshore.core.times import LATEST
from longshore.core.validation import read_json


class EventRow(NamedTuple):
    """One row of `job_events`, in column order, before the store numbers it."""

    job_uid: int | None
    job_id: str | None
    job_seq: int
    queue: str
    type: str | None
    event: str
    from_status: JobStatus | None
    to_status: JobStatus | None
    epoch: int
    execution: int
    assignee_id: str | None
    actor: str
    occurred_at: int
    detail: str | None


def note(
    queue: str, event: str, now: int, detail: Mapping[str, Any] | None = None, type_: str | None = None
) -> EventRow:
    """An event without a job, with the current actor."""
    text = None if detail is None else json.dumps(detail, ensure_ascii=False)
    return EventRow(None, None, 0, queue, type_, event, None, None, 0, 0, None, acting_now(), now, text)


class Change:
    """A record being changed, its state before (`was`, `was_retries`, `was_owner`), and its new events."""

    __slots__ = ("events", "now", "record", "was", "was_owner", "was_retries")

    def __init__(self, record: Record, now: int) -> None:
        self.record = record
        self.now = now
        self.was = record.status
        self.was_retries = record.retry_count
        self.was_owner = record.lease_owner
        self.events: list[EventRow] = []

    @property
    def freed(self) -> str | None:
        """The worker whose slot this change released."""
        released = self.was in HOLDS_CAPACITY and self.record.status not in HOLDS_CAPACITY
        return self.was_owner if released else None

    def move(self, target: JobStatus, event: str, detail: Mapping[str, Any] | None = None, actor: str = "") -> None:
        """Make one legal transition and record its event."""
        record = self.record
        source = record.status
        if (source, target) not in LEGAL_PAIRS:
            raise InvalidTransition(record.id, source, target, "the table of legal transitions has no such transition")
        record.status = target
        record.updated_at = self.now
        if source in HOLDS_CAPACITY and target not in HOLDS_CAPACITY:
            record.lease_owner = record.lease_token = record.lease_expires_at = None
        if target in ELIGIBLE:
            record.set_sort_key(self.now)
        else:
            record.blocked = False
            if target is JobStatus.CANCELLING:
                record.cancel_asked_at = self.now
        if target in FINAL and record.finalized_at is None:
            record.finalized_at = self.now
        self.events.append(event_of(record, self.now, event, source, target, detail, actor))

    def add_event(self, event: str, detail: Mapping[str, Any] | None = None, actor: str = "") -> None:
        """Record an event that is not a transition."""
        self.events.append(event_of(self.record, self.now, event, None, None, detail, actor))

    def add_delayed(self) -> bool:
        """Record `job.delayed` if the job's `run_at` is in the future; return whether it is."""
        waits = self.record.waits(self.now)
        if waits:
            self.add_event("job.delayed", {"until": self.record.run_at})
        return waits

    def add_delayed_or_promoted(self) -> None:
        """Record `job.delayed` if a newly eligible job must wait, else `job.promoted`."""
        if not self.add_delayed():
            self.add_event("job.promoted")


def event_of(
    record: Record,
    now: int,
    event: str,
    source: JobStatus | None = None,
    target: JobStatus | None = None,
    detail: Mapping[str, Any] | None = None,
    actor: str = "",
) -> EventRow:
    """Build the job's next event and count it on the record."""
    record.job_seq += 1
    row = (
        record.uid,
        record.id,
        record.job_seq,
        record.queue,
        record.type,
        event,
        source,
        target,
        record.epoch,
        record.executions,
        record.assignee_id,
        actor or acting_now(),
        now,
        None if detail is None else json.dumps(detail, ensure_ascii=False),
    )
    return tuple.__new__(EventRow, row)  # half the cost of EventRow(...), and there are several per job


def added(record: Record, now: int) -> EventRow:
    """The first event of a new job."""
    first = copy_of(record)
    first.job_seq = 0
    return event_of(first, now, "job.added", None, record.status, origin(record))


def origin(record: Record) -> dict[str, str] | None:
    """What the job belongs to. Its first event carries it, so that the event log alone has each job's key."""
    if record.concurrency_key is None and record.schedule_id is None and record.parent_id is None:
        return None
    found = {"key": record.concurrency_key, "schedule_id": record.schedule_id, "parent_id": record.parent_id}
    return {name: value for name, value in found.items() if value is not None}


def check_lease(record: Record, lease: Lease | None, now: int, target: JobStatus) -> None:
    """The fence: raise unless this is the job's current lease. None skips the check, for callers without a lease."""
    if lease is None:
        return
    if record.status not in HOLDS_CAPACITY:
        error = not_inflight(record.id, record.status, target)
        if not record.status.final:
            lost = f"your lease ended, and the job went back to its queue as {record.status}; this call changed nothing"
            error.args = (f"job {record.id!r}: {lost}. Stop working on the job, and renew leases in time",)
        raise error
    if record.lease_expires_at is not None and record.lease_expires_at <= now:
        raise LeaseLost(record.id, "expired")
    if record.lease_token != lease.token or record.epoch != lease.epoch:
        raise LeaseLost(record.id, "mismatch")


def not_inflight(job_id: str, status: JobStatus, target: JobStatus, why: str = "") -> JobNotInflight:
    """Return the error for a job that no worker holds."""
    error = JobNotInflight(job_id, status, target, why)
    if status.final:
        error.args = (f"job {job_id!r} has already ended as {status}; nothing was changed",)
    return error


_SHOWN_ERROR = 500
"""Characters of an error in the event; the job keeps the full text."""

SHOWN_RESULT = 8 * 1024
"""The largest result in bytes that an event carries; for a larger one it carries the size."""

UPDATE_LEASE = 30_000_000
"""A job set to RUNNING by `update_job_status` has no owner, so it gets a short lease that the sweep can find."""


def arrive(record: Record, now: int, events: list[EventRow]) -> None:
    """Give a new job its status and sort key. The store writes its first event, `job.added`, with the row; other events
    are appended to `events`."""
    if record.deps_left and record.status is JobStatus.INITIAL_PENDING:
        record.status = JobStatus.WAITING_CHILDREN
    record.set_sort_key(now)
    record.job_seq = 1
    if record.status is JobStatus.WAITING_CHILDREN:
        events.append(event_of(record, now, "job.waiting_children", detail={"waiting_for": record.deps_left}))
    elif record.run_at is not None and record.waits(now) and record.status is JobStatus.INITIAL_PENDING:
        events.append(event_of(record, now, "job.delayed", detail={"until": record.run_at}))


def may_be_accepted_in_bulk(record: Record) -> bool:
    """Whether `accept` makes it claimable at once: it has no dependency, no `run_at`, and is not LIFO."""
    waits = record.deps_left or record.run_at is not None or record.last_retry_at is not None or record.lifo
    return record.status is JobStatus.CREATED and not waits


def accept(change: Change) -> None:
    """From CREATED to the queue, or to waiting for its dependencies."""
    record = change.record
    if record.status is not JobStatus.CREATED:
        why = "only a CREATED job can be accepted"
        raise InvalidTransition(record.id, record.status, JobStatus.INITIAL_PENDING, why)
    if record.deps_left:
        change.move(JobStatus.WAITING_CHILDREN, "job.accepted")
        change.add_event("job.waiting_children", {"waiting_for": record.deps_left})
    else:
        change.move(JobStatus.INITIAL_PENDING, "job.accepted")
        change.add_delayed()


def claim(change: Change, assignee_id: str, token: str, lease_expires_at: int | None) -> None:
    """To RUNNING, with a new epoch that fences every claim before it."""
    record = change.record
    target = after(record.id, record.status, Verb.CLAIM)
    record.epoch += 1
    record.executions += 1
    record.assignee_id = record.lease_owner = assignee_id
    record.assigned_at = change.now
    record.lease_token = token
    record.lease_expires_at = lease_expires_at
    if record.started_at is None:
        record.started_at = change.now
    change.move(target, "job.active")


def complete(change: Change, result: bytes | None) -> None:
    """To COMPLETED. It is the only operation allowed after UNKNOWN_STOPPED; the end time is then set again."""
    record = change.record
    target = after(record.id, record.status, Verb.COMPLETE)
    record.result = result
    record.error_message = ""
    record.finalized_at = change.now
    if record.started_at is None:
        record.started_at = change.now
    leaves = kept_after(target, record.options) == 0  # the job is removed, so the event keeps its result
    change.move(target, "job.completed", result_detail(result) if leaves else None)


def result_detail(result: bytes | None) -> dict[str, Any]:
    """A result for an event: `result` if it is JSON, else `result_base64`; `result_omitted` if it is too large."""
    if result is not None and len(result) > SHOWN_RESULT:
        return {"result_omitted": len(result)}
    try:
        return {"result": None if result is None else read_json("result", result)}
    except InvalidArgument:
        return {"result_base64": b64encode(result or b"").decode()}


def fail(change: Change, error: str, retry_at: int | None, *, relative: bool = True) -> None:
    """To FAILED_RETRY with one more failure, eligible at once or at `retry_at`; `relative` if that was a duration."""
    record = change.record
    target = after(record.id, record.status, Verb.FAIL)
    _count_failure(change, error)
    record.run_at, record.relative = retry_at, relative
    change.move(target, "job.failed", _failure(change, error, final=False))
    change.add_delayed_or_promoted()


def bury(change: Change, error: str) -> None:
    """To DEAD. From RUNNING it goes through FAILED_RETRY, because the last failure counts as well."""
    record = change.record
    if record.status is JobStatus.RUNNING:
        _count_failure(change, error)
        record.run_at = None
        change.move(JobStatus.FAILED_RETRY, "job.failed", _failure(change, error, final=True))
    else:
        after(record.id, record.status, Verb.BURY)
        record.error_message = error or record.error_message
    change.move(JobStatus.DEAD, "job.dead", {"reason": error[:_SHOWN_ERROR]})


def stop(change: Change, error: str, verb: Verb = Verb.STOP) -> None:
    """To the final status for cancelled work."""
    record = change.record
    target = after(record.id, record.status, verb)
    record.error_message = error
    change.move(target, "job.stopped", {"reason": error[:_SHOWN_ERROR]} if error else None)


def stop_with_retry(change: Change, error: str) -> None:
    """CANCELLING to STOPPED for a job that failed while it was being cancelled: the failure counts."""
    record = change.record
    target = after(record.id, record.status, Verb.STOP_WITH_RETRY)
    _count_failure(change, error)
    change.move(target, "job.stopped", _failure(change, error, final=True))


def acknowledge(change: Change, *, was_executing: bool) -> None:
    """CANCELLING to STOPPED, or to UNKNOWN_STOPPED if the worker did not have the job."""
    record = change.record
    target = after(record.id, record.status, Verb.ACKNOWLEDGE if was_executing else Verb.DISOWN)
    change.move(target, "job.stopped", {"was_executing": was_executing})


def release(change: Change, run_at: int | None, reason: str, *, relative: bool = True) -> None:
    """From RUNNING to the queue. A release counts neither as a crash nor as a failure."""
    record = change.record
    if record.status is JobStatus.CANCELLING:
        raise InvalidTransition(
            record.id, record.status, JobStatus.UNKNOWN_RETRY, "acknowledge a cancelled job instead of releasing it"
        )
    target = after(record.id, record.status, Verb.RELEASE)
    record.run_at, record.relative = run_at, relative
    change.move(target, "job.released", {"reason": reason} if reason else None)
    change.add_delayed()


LEASE_RAN_OUT = "its lease ran out"
"""The most frequent reason of a crash."""


def crash(change: Change, reason: str) -> None:
    """Its worker vanished: RUNNING returns to the queue or is buried at its crash limit; CANCELLING ends."""
    record = change.record
    target = after(record.id, record.status, Verb.CRASH)
    record.crashes += 1
    record.error_message = reason
    shown = reason[:_SHOWN_ERROR]
    if target is JobStatus.UNKNOWN_STOPPED:
        change.move(target, "job.stopped", {"reason": shown})
        return
    decision = after_crash(record.crashes, record.max_crashes, json.loads(record.options))
    record.run_at = min(change.now + decision.delay, LATEST) if decision.delay else None
    record.relative = True
    change.move(target, "job.stalled", {"reason": shown, "crashes": record.crashes})
    if decision.bury:
        error = f"crashed {record.crashes} time{'s' * (record.crashes > 1)}; last crash: {reason}"
        record.error_message = error
        change.add_event("job.failed", _failure(change, error, final=True))
        change.move(JobStatus.DEAD, "job.dead", {"reason": error[:_SHOWN_ERROR]})
    else:
        change.add_delayed_or_promoted()


def cancel(change: Change) -> None:
    """End a job that no worker runs; request the cancellation of a running one."""
    record = change.record
    target = after(record.id, record.status, Verb.CANCEL)
    change.move(target, "job.cancelling" if target is JobStatus.CANCELLING else "job.stopped", {"reason": "cancelled"})


def expire(change: Change) -> None:
    """End a job that was not started before its `expires_at`, like a cancellation."""
    record = change.record
    target = after(record.id, record.status, Verb.EXPIRE)
    record.error_message = "expired: it was not started before its expires_at"
    change.move(target, "job.stopped", {"reason": "expired"})


def dependencies_completed(change: Change) -> None:
    """WAITING_CHILDREN to the queue."""
    record = change.record
    change.move(after(record.id, record.status, Verb.DEPENDENCIES_COMPLETED), "job.dependencies_completed")
    change.add_delayed_or_promoted()


def dependency_failed(change: Change, dependency: str) -> None:
    """WAITING_CHILDREN to UNSCHEDULED, because of a dependency under policy `stop`."""
    record = change.record
    target = after(record.id, record.status, Verb.DEPENDENCY_FAILED)
    record.error_message = f"the job it depends on did not complete: {dependency}"
    change.move(target, "job.stopped", {"reason": "dependency failed", "dependency": dependency})


def retry(change: Change, *, reset: bool, actor: str) -> None:
    """DEAD back to the queue, recorded with the operator as the actor."""
    record = change.record
    target = after(record.id, record.status, Verb.RETRY)
    if reset:
        record.retry_count = 0
        record.crashes = 0
    record.finalized_at = None
    record.error_message = ""
    record.run_at = None
    change.move(target, "job.retried", {"reset": reset}, actor)


def promote(change: Change) -> None:
    """Make a delayed job claimable now, also one that was enqueued while the clock was ahead."""
    record = change.record
    if not record.status.eligible:
        raise InvalidTransition(record.id, record.status, "promoted", "only a delayed job can be promoted")
    if record.is_delayed(change.now):
        record.run_at = None
        record.updated_at = change.now
        record.set_sort_key(change.now)
        change.add_event("job.promoted")


def announce(change: Change) -> None:
    """Record once that a delayed job is due."""
    record = change.record
    record.announce_at = None
    record.updated_at = change.now
    change.add_event("job.promoted")


def update(change: Change, target: JobStatus, result: bytes | None, error: str, token: str) -> None:
    """A change by `update_job_status`: any that the table allows, without touching counters."""
    record = change.record
    if not update_is_legal(record.status, target):
        raise InvalidTransition(record.id, record.status, target, "update_job_status does not allow this change")
    if result is not None:
        record.result = result
    if error:
        record.error_message = error
    if target is JobStatus.RUNNING:
        record.epoch += 1
        record.lease_owner = None
        record.lease_token = token
        record.lease_expires_at = change.now + UPDATE_LEASE
        if record.started_at is None:
            record.started_at = change.now
    change.move(target, "job.updated")


def _count_failure(change: Change, error: str) -> None:
    record = change.record
    record.error_message = error
    record.retry_count += 1
    record.last_retry_at = change.now


def _failure(change: Change, error: str, *, final: bool) -> dict[str, object]:
    return {"error": error[:_SHOWN_ERROR], "final": final, "failures": change.record.retry_count}


_WORKERS_VERBS = frozenset(
    {Verb.COMPLETE, Verb.FAIL, Verb.BURY, Verb.STOP, Verb.RELEASE, Verb.STOP_WITH_RETRY, Verb.MARK_UNKNOWN_STOPPED}
    | {Verb.ACKNOWLEDGE, Verb.DISOWN, Verb.CRASH}
)


def after(job_id: str, status: JobStatus, verb: Verb) -> JobStatus:
    """The target of this operation from this status; raise if the table has none.

    Not for ACCEPT, which has two targets: the remaining dependencies decide between them.
    """
    target = target_of(status, verb)
    if target is not None:
        return target
    wanted = next(move.target for move in TRANSITIONS if move.verb is verb)
    why = f"{verb.value} is possible from {', '.join(move.source for move in TRANSITIONS if move.verb is verb)}"
    if verb in _WORKERS_VERBS and status not in HOLDS_CAPACITY:
        raise not_inflight(job_id, status, wanted, why)
    error = InvalidTransition(job_id, status, wanted, why)
    if verb is Verb.RETRY:
        again = ". To run it again, enqueue a new job" if status.final else ", and this one has not failed permanently"
        error.args = (f"job {job_id!r} is {status}; only a DEAD job can be retried{again}",)
    raise error
