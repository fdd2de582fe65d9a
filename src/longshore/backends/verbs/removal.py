"""Jobs that leave the store for good: by somebody's wish, or by their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from longshore.backends.transaction import Transaction
from longshore.core.job_record import Record, kept_after
from longshore.core.status import JobStatus
from longshore.core.transitions import Change

MOST_REMOVED = 1_000
"""Of the jobs that a finished one leaves behind it, so many go in its own transaction and the rest with the next."""


def remove(tx: Transaction, records: Sequence[Record], actor: str = "") -> None:
    """Takes final jobs out of the store for good, with a last event each."""
    changes = []
    for record in records:
        change = Change(record, tx.now)
        change.tell("job.removed", {"status": record.status}, actor)
        changes.append(change)
    if changes:
        tx.remove(changes)


def remove_as_they_wished(tx: Transaction, ended: Iterable[Record]) -> None:
    """What the options of jobs that just ended say: it goes itself, or the oldest beyond the number to be kept."""
    leaving = []
    kept: dict[tuple[str, JobStatus], int] = {}
    for record in ended:
        keep = kept_after(record.status, record.options)
        if keep == 0:
            leaving.append(record)
        elif keep is not None:
            kind = (record.queue, record.status)
            kept[kind] = min(keep, kept.get(kind, keep))
    remove(tx, leaving)
    for (queue, status), keep in kept.items():
        remove(tx, tx.jobs_beyond(keep, status, queue, MOST_REMOVED))
