"""Cancels jobs by id or by tag."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.backends.operations.persist import write
from longshore.backends.port import Transaction, operation
from longshore.core import transitions
from longshore.core.job_record import Record
from longshore.core.status import JobStatus
from longshore.core.transitions import Change


def targets(
    tx: Transaction, tags: Sequence[str], job_ids: Sequence[str], queue: str | None
) -> tuple[dict[str, Record], list[str]]:
    """Find the jobs by id, then by tag. Also return the ids that no job (of this queue) has."""
    tx.lock_dependents(job_ids, tags, queue)
    found: dict[str, Record] = {}
    missing = []
    if job_ids:
        known = tx.jobs_by_id(list(dict.fromkeys(job_ids)))
        for job_id in dict.fromkeys(job_ids):
            record = known.get(job_id)
            if record is None or (queue is not None and record.queue != queue):
                missing.append(job_id)
            else:
                found[job_id] = record
    if tags:
        for record in tx.jobs_with_tags(tags, queue):
            found.setdefault(record.id, record)
    return found, missing


@operation()
def cancel_jobs(
    tx: Transaction, tags: Sequence[str], job_ids: Sequence[str], queue: str | None, *, held: bool
) -> tuple[list[str], list[str]]:
    """Cancel jobs. Return the ids that are cancelled or being cancelled, and those that are unknown or final; with
    `held=False`, held jobs are among the latter."""
    found, unknown = targets(tx, tags, job_ids, queue)
    cancelled = []
    changes = []
    for job_id, record in found.items():
        if record.status.final or (record.status.holds_capacity and not held):
            unknown.append(job_id)
            continue
        cancelled.append(job_id)
        if record.status is not JobStatus.CANCELLING:
            change = Change(record, tx.now)
            transitions.cancel(change)
            changes.append(change)
    write(tx, changes)
    return cancelled, unknown
