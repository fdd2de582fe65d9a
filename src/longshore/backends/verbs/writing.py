"""The one way a changed job is written: saved, its key's room given on, whoever depends on it told, and then removed
if that is what it wished."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.backends.contract import Freed
from longshore.backends.transaction import Transaction
from longshore.backends.verbs.dependencies import changes_that_follow
from longshore.backends.verbs.keys import account_for_keys
from longshore.backends.verbs.removal import remove_as_they_wished
from longshore.core import transitions
from longshore.core.errors import JobNotFound
from longshore.core.job_record import Record
from longshore.core.status import JobStatus
from longshore.core.transitions import Change


def write(tx: Transaction, changes: Sequence[Change]) -> Freed:
    """Saves the changes and all that follows from them; returns whose capacity the first ones gave back."""
    pending: Sequence[Change] = changes
    while pending:
        tx.save(pending)
        account_for_keys(tx, pending)
        pending = changes_that_follow(tx, _ended(pending))
    freed: Freed = {}
    with_options = []
    for change in changes:
        worker = change.freed
        if worker is not None:
            freed[worker] = freed.get(worker, 0) + 1
        if change.record.options != "{}" and change.record.status is not change.was:
            with_options.append(change.record)
    if with_options:
        remove_as_they_wished(tx, with_options)
    return freed


def _ended(changes: Sequence[Change]) -> dict[str, JobStatus]:
    """The jobs that have just come to their end, and to which."""
    return {c.record.id: c.record.status for c in changes if c.record.status.final and c.was is not c.record.status}


def change_of(tx: Transaction, job_id: str) -> Change:
    """The job, ready to be changed, or JobNotFound."""
    return Change(record_by_id(tx, job_id), tx.now)


def record_by_id(tx: Transaction, job_id: str) -> Record:
    """The job, or JobNotFound."""
    record = tx.jobs_by_id((job_id,)).get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    return record


def expired(record: Record, now: int) -> Change:
    """The end of a job that was not started before its `expires_at`."""
    change = Change(record, now)
    transitions.expire(change)
    return change
