"""Settles jobs: complete, fail, release, stop; one at a time, in bulk, or together with the next claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.backends import argument_checks
from longshore.backends.argument_checks import ClaimTerms
from longshore.backends.base import Freed, Outcome, SettleReport
from longshore.backends.operations.claim import Claim, dequeue_jobs, lease_end
from longshore.backends.operations.dependencies import changes_that_follow
from longshore.backends.operations.persist import change_of, release_slots, write
from longshore.backends.port import Completion, Transaction
from longshore.core import transitions
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound, LongshoreError
from longshore.core.job import Lease
from longshore.core.limits import free_slots_under
from longshore.core.status import JobStatus, Verb
from longshore.core.times import Moment, check_moment
from longshore.core.transitions import Change, check_lease

S = JobStatus


def _fenced(tx: Transaction, job_id: str, lease: Lease | None, target: JobStatus) -> Change:
    change = change_of(tx, job_id)
    check_lease(change.record, lease, tx.now, target)
    return change


def complete_job(tx: Transaction, job_id: str, result: bytes | None, lease: Lease | None) -> Freed:
    """To COMPLETED."""
    change = _fenced(tx, job_id, lease, S.COMPLETED)
    transitions.complete(change, result)
    return write(tx, [change])


def fail_job(tx: Transaction, job_id: str, error: str, retry_at: Moment | None, lease: Lease | None) -> Freed:
    """To FAILED_RETRY."""
    due = None if retry_at is None else check_moment("retry_at", retry_at, tx.now)
    change = _fenced(tx, job_id, lease, S.FAILED_RETRY)
    transitions.fail(change, error, due, relative=not isinstance(retry_at, datetime))
    return write(tx, [change])


def bury_job(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """To DEAD."""
    change = _fenced(tx, job_id, lease, S.DEAD)
    transitions.bury(change, error)
    return write(tx, [change])


def stop_job(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """To STOPPED."""
    change = _fenced(tx, job_id, lease, S.STOPPED)
    transitions.stop(change, error)
    return write(tx, [change])


def stop_job_with_retry(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """CANCELLING to STOPPED, the failure counted."""
    change = _fenced(tx, job_id, lease, S.STOPPED)
    transitions.stop_with_retry(change, error)
    return write(tx, [change])


def mark_job_unknown_stopped(tx: Transaction, job_id: str, error: str, lease: Lease | None) -> Freed:
    """To UNKNOWN_STOPPED."""
    change = _fenced(tx, job_id, lease, S.UNKNOWN_STOPPED)
    transitions.stop(change, error, Verb.MARK_UNKNOWN_STOPPED)
    return write(tx, [change])


def acknowledge_cancellation(tx: Transaction, job_id: str, was_executing: bool, lease: Lease | None) -> None:
    """CANCELLING to its end."""
    change = _fenced(tx, job_id, lease, S.STOPPED if was_executing else S.UNKNOWN_STOPPED)
    transitions.acknowledge(change, was_executing=was_executing)
    write(tx, [change])


def release_lease(tx: Transaction, job_id: str, lease: Lease | None, run_at: Moment | None, reason: str) -> Freed:
    """Back to the queue, nothing counted."""
    due = None if run_at is None else check_moment("run_at", run_at, tx.now)
    change = _fenced(tx, job_id, lease, S.UNKNOWN_RETRY)
    transitions.release(change, due, reason, relative=not isinstance(run_at, datetime))
    return write(tx, [change])


def update_job_status(
    tx: Transaction, job_id: str, status: JobStatus, result: bytes | None, error: str, token: str
) -> Freed:
    """A move by hand; into RUNNING only where the queue's and the key's limits have free slots."""
    change = change_of(tx, job_id)
    record = change.record
    if record.status is status:
        return {}
    if status is S.RUNNING and record.status.eligible and not _has_free_slots(tx, change):
        raise InvalidTransition(job_id, record.status, status, "the limit of its queue or key is full")
    transitions.update(change, status, result, error, token)
    return write(tx, [change])


def _has_free_slots(tx: Transaction, change: Change) -> bool:
    record = change.record
    queue = tx.hold_queues([record.queue], alone=True)[record.queue]
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


def settle_jobs(tx: Transaction, outcomes: Sequence[Outcome]) -> SettleReport:
    """Settles what can be settled, in order; each refusal stands alone, with its reason."""
    report, left = complete_at_once(tx, outcomes)
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


def complete_at_once(tx: Transaction, outcomes: Sequence[Outcome]) -> tuple[SettleReport, Sequence[Outcome]]:
    """Settles the many that simply completed, where the store can do it so; gives those that need a closer look."""
    report = SettleReport()
    ended = tx.complete_at_once(_plain_completions(outcomes), (outcome.job_id for outcome in outcomes))
    if ended is None or not ended.job_ids:
        return report, outcomes
    completed = dict.fromkeys(ended.job_ids, S.COMPLETED)
    release_slots(tx, ended.keys)
    write(tx, changes_that_follow(tx, completed))
    report.settled.update(completed)
    report.freed.update(ended.owners)
    if len(completed) == len(outcomes):
        return report, ()
    return report, [outcome for outcome in outcomes if outcome.job_id not in completed]


def _plain_completions(outcomes: Sequence[Outcome]) -> Iterator[Completion]:
    """Of well formed outcomes, those of jobs that have no other in this batch; found only if a store asks for them."""
    times = Counter(outcome.job_id for outcome in outcomes)
    lease: Lease | None = None  # the last one looked at: the jobs of one claim share theirs
    for outcome in outcomes:
        if outcome.verb != "complete" or times[outcome.job_id] > 1:
            continue
        if lease is None or lease is not outcome.lease:
            lease = outcome.lease if _can_be_stored(outcome.lease) else None
        if lease is None:
            continue
        try:
            result = argument_checks.result(outcome.result)
        except InvalidArgument:  # it is refused with its reason when it is looked at more closely
            continue
        yield Completion(outcome.job_id, lease.epoch, lease.token, result)


def _can_be_stored(lease: object) -> bool:
    """Whether any job could have it; one that none can have is refused when it is looked at more closely."""
    if not isinstance(lease, Lease) or type(lease.epoch) is not int:
        return False
    return 0 <= lease.epoch < 2**63 and lease.token.isascii() and lease.token.isprintable()


def _checked(outcome: Outcome, now: int) -> _Checked:
    if outcome.verb not in tuple(_APPLY):  # by what it equals: a list from somebody's JSON has no hash
        raise InvalidArgument("verb", f"must be one of {', '.join(_APPLY)}, not {outcome.verb!r}")
    argument_checks.lease(outcome.lease)
    if outcome.verb == "complete":
        return _Checked(argument_checks.result(outcome.result), "", None)
    error = argument_checks.error_text(outcome.error, required=outcome.verb == "fail")
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


def settle_and_dequeue(tx: Transaction, outcomes: Sequence[Outcome], terms: ClaimTerms) -> tuple[SettleReport, Claim]:
    """Settles, then claims: what was just given back or freed counts already."""
    lease_end(tx, terms.lease)  # refused before anything is settled
    report = settle_jobs(tx, outcomes) if outcomes else SettleReport()
    return report, dequeue_jobs(tx, terms) if terms.limit else Claim([], more=False)


def complete_first(
    tx: Transaction, outcomes: Sequence[Outcome], terms: ClaimTerms
) -> tuple[SettleReport, Sequence[Outcome]]:
    """The first of two steps: settles what simply completed, and gives the outcomes that the second has to settle."""
    lease_end(tx, terms.lease)
    return complete_at_once(tx, outcomes)
