"""What a running job writes: progress, log lines and checkpoints."""

from __future__ import annotations

import json

from longshore.backends.operations.persist import change_of
from longshore.backends.port import Transaction, operation
from longshore.core.job import Lease
from longshore.core.status import JobStatus
from longshore.core.transitions import Change, check_lease, not_inflight

_SHOWN = 500
"""Characters of progress or a log line that go into the event; the job keeps the full value."""


@operation()
def set_progress(tx: Transaction, job_id: str, progress: str, lease: Lease | None) -> None:
    """Store the progress of the job."""
    change = _unfinished(tx, job_id, lease)
    change.record.progress = progress
    change.record.updated_at = tx.now
    change.add_event("job.progress", {"progress": json.loads(progress)} if len(progress) <= _SHOWN else None)
    tx.write_progress(change)


@operation()
def save_checkpoint(tx: Transaction, job_id: str, checkpoint: bytes, lease: Lease | None) -> None:
    """Store a checkpoint. It writes no event: checkpoints are frequent and matter only to the job."""
    change = _unfinished(tx, job_id, lease)
    change.record.checkpoint = checkpoint
    change.record.updated_at = tx.now
    tx.write_checkpoint(change)


@operation()
def append_log(tx: Transaction, job_id: str, message: str, level: str, lease: Lease | None) -> None:
    """Append a line. Without a lease, a final job accepts lines too."""
    change = change_of(tx, job_id)
    check_lease(change.record, lease, tx.now, JobStatus.RUNNING)
    change.add_event("job.log_added", {"level": level, "message": message[:_SHOWN]})
    tx.write_log(change, level, message)


def _unfinished(tx: Transaction, job_id: str, lease: Lease | None) -> Change:
    change = change_of(tx, job_id)
    check_lease(change.record, lease, tx.now, JobStatus.RUNNING)
    if change.record.status.final:
        raise not_inflight(job_id, change.record.status, JobStatus.RUNNING)
    return change
