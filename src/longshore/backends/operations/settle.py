"""Settles jobs: complete, fail, release, stop; one at a time, in bulk, or together with the next claim."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.backends import argument_checks as checks
from longshore.backends.argument_checks import ClaimTerms
from longshore.backends.base import Freed, Outcome, SettleReport
from longshore.backends.operations.claim import Claim, dequeue_jobs, lease_end
from longshore.backends.operations.dependencies import changes_that_follow
from longshore.backends.operations.persist import change_of, release_slots, write
from longshore.backends.port import Completion, Hold, Transaction, operation
from longshore.core import transitions
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound, LongshoreError
from longshore.core.job import Lease
from longshore.core.limits import free_slots_under
from longshore.core.status import JobStatus, Verb
from longshore.core.times import Moment, check_moment
from longshore.core.transitions import Change, check_lease
from longshore.core.validation import LARGEST_PAYLOAD

S = JobStatus


def _fenced(tx: Transaction, job_id: str, lease: Lease | None, target: JobStatus) -> Change:
    change = change_of(tx, job_id)
    check_lease(change.record, lease, tx.now, target)
    return change


@operation()
def complete_job(tx: Transaction, job_id: str, result: bytes | None, lease: Lease | None) -> Freed:
    """To COMPLETED."""
    change = _fenced(tx, job_id, lease, S.COMPLETED)
    transitions.complete(change, result)
    return write(tx, [change])


@operation()
def fail_job(tx: Transaction, job_id: str, error: str, retry_at: Moment | None, lease: Lease | None) -> Freed:
    """To FAILED_RETRY."""
    due = None if retry_at is None else check_moment("retry_at", retry_at, tx.now)
    change = _fenced(tx, job_id, lease, S.FAILED_RETRY)
    transitions.fail(change, error, due, relative=not isinstance(retry_at, datetime))
    return write(tx, [change])


@operation()
def bury_job(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """To DEAD."""
    change = _fenced(tx, job_id, lease, S.DEAD)
    transitions.bury(change, error)
    return write(tx, [change])


@operation()
def stop_job(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """To STOPPED."""
    change = _fenced(tx, job_id, lease, S.STOPPED)
    transitions.stop(change, error)
    return write(tx, [change])


@operation()
def stop_job_with_retry(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """From CANCELLING to STOPPED, with the failure counted."""
    change = _fenced(tx, job_id, lease, S.STOPPED)
    transitions.stop_with_retry(change, error)
    return write(tx, [change])


@operation()
def mark_job_unknown_stopped(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """To UNKNOWN_STOPPED."""
    change = _fenced(tx, job_id, lease, S.UNKNOWN_STOPPED)
    transitions.stop(change, error, Verb.MARK_UNKNOWN_STOPPED)
    return write(tx, [change])


@operation()
def acknowledge_cancellation(tx: Transaction, job_id: str, was_executing: bool, lease: Lease | None) -> None:
    """From CANCELLING to STOPPED or UNKNOWN_STOPPED."""
    change = _fenced(tx, job_id, lease, S.STOPPED if was_executing else S.UNKNOWN_STOPPED)
    transitions.acknowledge(change, was_executing=was_executing)
    write(tx, [change])


@operation()
def release_lease(tx: Transaction, job_id: str, lease: Lease | None, run_at: Moment | None, reason: str) -> Freed:
    """Back to the queue; counts neither a failure nor a crash."""
    due = None if run_at is None else check_moment("run_at", run_at, tx.now)
    change = _fenced(tx, job_id, lease, S.UNKNOWN_RETRY)
    transitions.release(change, due, reason, relative=not isinstance(run_at, datetime))
    return write(tx, [change])


@operation()
def update_job_status(tx: Transaction, job_id: str, status: JobStatus, result: bytes | None, error: str) -> Freed:
    """A change by hand; to RUNNING only if the queue and the key have free slots."""
    change = change_of(tx, job_id)
    record = change.record
    if record.status is status:
        return {}
    if status is S.RUNNING and record.status.eligible and not _has_free_slots(tx, change):
        raise InvalidTransition(job_id, record.status, status, "the concurrency limit of its queue or key is reached")
    transitions.update(change, status, result, error, tx.token_prefix + secrets.token_hex(16))
    return write(tx, [change])


def _has_free_slots(tx: Transaction, change: Change) -> bool:
    record = change.record
    queue = tx.lock_queues([record.queue], Hold.EXCLUSIVE)[record.queue]
    if free_slots_under(queue.running_limit, queue.running_count) == 0:
        return False
    if record.concurrency_key is None or queue.per_key is None:
        return True
    key = tx.key_states(record.queue, [record.concurrency_key])[record.concurrency_key]
    return free_slots_under(queue.per_key, key.running_count) > 0


class _Checked(NamedTuple):
    result: bytes | None
    error: str
    retry_at: int | None
    relative: bool = True


def any_completed(outcomes: Sequence[Outcome]) -> bool:
    """Whether any of these jobs completed."""
    return any(outcome.verb == "complete" for outcome in outcomes)


@operation()
def settle_jobs(tx: Transaction, outcomes: Sequence[Outcome]) -> SettleReport:
    """Settle what can be settled, in order; each refused outcome has its reason."""
    report, left = _complete_in_bulk(tx, outcomes)
    if not left:
        return report
    records = tx.jobs_by_id(list({outcome.job_id for outcome in left}))
    changes: dict[str, Change] = {}
    for outcome in left:
        record = records.get(outcome.job_id)
        try:
            checked = _checked(outcome, tx.now)
            if record is None:
                raise JobNotFound(outcome.job_id)
            check_lease(record, outcome.lease, tx.now, _TARGETS[outcome.verb])
            change = changes.get(outcome.job_id) or Change(record, tx.now)
            _APPLY[outcome.verb](change, checked)
        except LongshoreError as refusal:
            report.refused.setdefault(outcome.job_id, refusal)
        else:
            changes[outcome.job_id] = change
            report.settled[outcome.job_id] = record.status
    for worker, jobs in write(tx, list(changes.values())).items():
        report.freed[worker] = report.freed.get(worker, 0) + jobs
    return report


def _complete_in_bulk(tx: Transaction, outcomes: Sequence[Outcome]) -> tuple[SettleReport, Sequence[Outcome]]:
    """Settle the plain completions in bulk; return the outcomes that are decided one by one.

    A completion is plain if its job is RUNNING under the outcome's lease, has no other outcome in the batch and does
    not set `remove_on_complete`.
    """
    ended = tx.complete(_completions(outcomes), [outcome.job_id for outcome in outcomes])
    if not ended.job_ids:
        return SettleReport(), outcomes
    completed = dict.fromkeys(ended.job_ids, S.COMPLETED)
    if ended.keys:
        release_slots(tx, ended.keys)
    following = changes_that_follow(tx, completed)
    if following:
        write(tx, following)
    report = SettleReport(completed, {}, dict(ended.owners))
    if len(completed) == len(outcomes):
        return report, ()
    return report, [outcome for outcome in outcomes if outcome.job_id not in completed]


def _completions(outcomes: Sequence[Outcome]) -> list[Completion]:
    """The well-formed completions under a lease, of jobs that have no other outcome in this batch.

    A malformed one is refused with its reason when it is decided separately.
    """
    times = Counter(outcome.job_id for outcome in outcomes)
    found: list[Completion] = []
    lease: Lease | None = None  # jobs of one claim share a lease: it is checked once
    for outcome in outcomes:
        job_id, given, result = outcome.job_id, outcome.lease, outcome.result
        if outcome.verb != "complete" or times[job_id] > 1:
            continue
        if lease is None or lease is not given:
            lease = given if _can_be_stored(given) else None
        if lease is not None and (result is None or (type(result) is bytes and len(result) <= LARGEST_PAYLOAD)):
            found.append(Completion(job_id, lease.epoch, lease.token, result))
    return found


def _can_be_stored(lease: object) -> bool:
    """Whether a job can have this lease; SQL rejects some values that none can have."""
    if not isinstance(lease, Lease) or type(lease.epoch) is not int:
        return False
    return 0 <= lease.epoch < 2**63 and lease.token.isascii() and lease.token.isprintable()


def _checked(outcome: Outcome, now: int) -> _Checked:
    if outcome.verb not in tuple(_APPLY):  # compare, because a list from JSON has no hash
        raise InvalidArgument("verb", f"must be one of {', '.join(_APPLY)}, not {outcome.verb!r}")
    checks.lease(outcome.lease)
    if outcome.verb == "complete":
        return _Checked(checks.result(outcome.result), "", None)
    error = checks.error_text(outcome.error, required=outcome.verb == "fail")
    if outcome.verb not in ("fail", "release") or outcome.retry_at is None:
        return _Checked(None, error, None)
    relative = not isinstance(outcome.retry_at, datetime)
    return _Checked(None, error, check_moment("retry_at", outcome.retry_at, now), relative)


def _complete(change: Change, checked: _Checked) -> None:
    transitions.complete(change, checked.result)


def _fail(change: Change, checked: _Checked) -> None:
    if change.record.status is S.CANCELLING:
        transitions.stop_with_retry(change, checked.error)
    else:
        transitions.fail(change, checked.error, checked.retry_at, relative=checked.relative)


def _bury(change: Change, checked: _Checked) -> None:
    if change.record.status is S.CANCELLING:
        transitions.acknowledge(change, was_executing=True)
    else:
        transitions.bury(change, checked.error)


def _stop(change: Change, checked: _Checked) -> None:
    transitions.stop(change, checked.error)


def _release(change: Change, checked: _Checked) -> None:
    if change.record.status is S.CANCELLING:
        transitions.acknowledge(change, was_executing=True)
    else:
        transitions.release(change, checked.retry_at, checked.error, relative=checked.relative)


def _crash(change: Change, checked: _Checked) -> None:
    transitions.crash(change, checked.error or "its process died")


_APPLY: dict[str, Callable[[Change, _Checked], None]] = {
    "complete": _complete,
    "fail": _fail,
    "bury": _bury,
    "stop": _stop,
    "release": _release,
    "crash": _crash,
}
_TARGETS = {
    "complete": S.COMPLETED,
    "fail": S.FAILED_RETRY,
    "bury": S.DEAD,
    "stop": S.STOPPED,
    "release": S.UNKNOWN_RETRY,
    "crash": S.UNKNOWN_RETRY,
}


def _claimed_queues(_outcomes: Sequence[Outcome], terms: ClaimTerms) -> Sequence[str] | None:
    return terms.queues if terms.limit else ()


@operation(locks=_claimed_queues)
def settle_and_dequeue(tx: Transaction, outcomes: Sequence[Outcome], terms: ClaimTerms) -> tuple[SettleReport, Claim]:
    """Settle, then claim: the claim sees the released jobs and slots."""
    lease_end(tx, terms.lease)  # raise before anything is settled
    report = settle_jobs.run(tx, outcomes) if outcomes else SettleReport()
    return report, dequeue_jobs.run(tx, terms) if terms.limit else Claim([], more=False)


def joined(first: SettleReport, then: SettleReport) -> SettleReport:
    """Merge two reports."""
    freed = {owner: first.freed.get(owner, 0) + then.freed.get(owner, 0) for owner in first.freed | then.freed}
    return SettleReport(first.settled | then.settled, first.refused | then.refused, freed)


@operation(locks=_claimed_queues, uses_slots=False)
def complete_first(
    tx: Transaction, outcomes: Sequence[Outcome], terms: ClaimTerms
) -> tuple[SettleReport, Sequence[Outcome]]:
    """The first of two transactions: settle plain completions; return the outcomes for the second."""
    lease_end(tx, terms.lease)
    return _complete_in_bulk(tx, outcomes)
