"""Maintenance: expired leases, unresponsive workers, due announcements, cancellation timeouts and retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from longshore.backends.operations.cancel import targets
from longshore.backends.operations.dependencies import recheck_unverified_edges
from longshore.backends.operations.persist import expired, remove, write
from longshore.backends.port import KEEP_CREATED, QueueState, Transaction, operation
from longshore.core import transitions
from longshore.core.errors import InvalidTransition
from longshore.core.job import Job
from longshore.core.job_record import Record, copy_of, job_of
from longshore.core.status import FINAL, JobStatus, Verb
from longshore.core.transitions import Change

_FINISHED = FINAL - {JobStatus.DEAD}


NOT_ACKNOWLEDGED = "its cancellation was not acknowledged in time"


class Swept(NamedTuple):
    """What one transaction of the sweep reclaimed, and whether the next has more to do."""

    jobs: list[Job]
    more: bool


@operation()
def reclaim_expired_leases(tx: Transaction, limit: int) -> Swept:
    """The sweep: expired leases are crashes, jobs past their `expires_at` end, unverified edges are checked again."""
    reclaimed = _crash(tx, tx.leases_ended(limit), transitions.LEASE_RAN_OUT)
    unstarted = tx.expired_jobs(limit)
    write(tx, [expired(record, tx.now) for record in unstarted])
    rechecked, unverified = recheck_unverified_edges(tx, limit)
    write(tx, rechecked)
    return Swept([job_of(record) for record in reclaimed], more=limit in (len(unstarted), unverified))


@operation()
def time_out_cancellations(tx: Transaction, timeout: int, limit: int) -> list[Job]:
    """End jobs whose cancellation was not acknowledged for at least `timeout`, even under an open lease."""
    changes = []
    for record in tx.cancellations_since(tx.now - timeout, limit):
        change = Change(record, tx.now)
        transitions.stop(change, NOT_ACKNOWLEDGED, Verb.MARK_UNKNOWN_STOPPED)
        changes.append(change)
    write(tx, changes)
    return [job_of(change.record) for change in changes]


@operation()
def announce_due_jobs(tx: Transaction, limit: int) -> list[str]:
    """Record once that a delayed job is due."""
    return tx.announce_due(limit)


@operation()
def mark_worker_unresponsive(tx: Transaction, assignee_id: str) -> None:
    """Count every job that this worker holds as crashed."""
    _crash(tx, tx.jobs_held(assignee_id, None), "its worker was declared unresponsive")


@operation()
def reset_running_jobs(tx: Transaction, queue: str | None) -> None:
    """Count every held job as crashed."""
    _crash(tx, tx.jobs_held(None, queue), "running jobs were reset")


def _crash(tx: Transaction, records: Sequence[Record], reason: str) -> list[Record]:
    changes = []
    for record in records:
        change = Change(record, tx.now)
        transitions.crash(change, reason)
        changes.append(change)
    write(tx, changes)
    return [change.record for change in changes]


@operation()
def delete_jobs(tx: Transaction, tags: Sequence[str], job_ids: Sequence[str], queue: str | None) -> None:
    """Remove the targets, or none of them if one is not final."""
    found, _ = targets(tx, tags, job_ids, queue)
    for record in found.values():
        if not record.status.final:
            raise InvalidTransition(record.id, record.status, "removed", "it is not final; cancel it first")
    remove(tx, list(found.values()))


@operation()
def cleanup_expired_jobs(tx: Transaction, ttl: int, queue: str | None, limit: int) -> int:
    """Remove up to `limit` COMPLETED jobs that ended at least `ttl` ago."""
    removed = 0
    for name in [queue] if queue is not None else list(tx.queue_states(None)):
        if removed < limit:
            old = tx.jobs_ended_before([JobStatus.COMPLETED], tx.now - ttl, name, limit - removed)
            remove(tx, old)
            removed += len(old)
    return removed


@operation()
def apply_retention(tx: Transaction, queues: Sequence[str], limit: int) -> int:
    """Remove up to `limit` jobs and events of these queues past their retention."""
    removed = 0
    for state in tx.queue_states(queues).values():
        if removed >= limit:
            break
        removed += _retain(tx, state, limit - removed)
    return removed


@operation()
def forget(tx: Transaction, limit: int) -> int:
    """Drop up to `limit` expired tombstones and old workers."""
    forgotten = tx.forget_tombstones(limit)
    return forgotten + (tx.forget_workers(limit - forgotten) if forgotten < limit else 0)


def _retain(tx: Transaction, state: QueueState, limit: int) -> int:
    removed = 0
    for statuses, keep in ((_FINISHED, state.keep_finished), ([JobStatus.DEAD], state.keep_dead)):
        if keep is not None and removed < limit:
            old = tx.jobs_ended_before(statuses, tx.now - keep, state.name, limit - removed)
            remove(tx, old)
            removed += len(old)
    if removed < limit:
        orphans = tx.jobs_ended_before([JobStatus.CREATED], tx.now - KEEP_CREATED, state.name, limit - removed)
        _cancel_and_remove(tx, orphans)
        removed += len(orphans)
    if state.keep_events is not None and removed < limit:
        removed += tx.prune_events(state.name, tx.now - state.keep_events, limit - removed)
    return removed


def _cancel_and_remove(tx: Transaction, records: Sequence[Record]) -> None:
    changes = []
    for record in records:
        change = Change(record, tx.now)
        transitions.cancel(change)
        changes.append(change)
    write(tx, changes)
    remove(tx, [copy_of(change.record) for change in changes])
