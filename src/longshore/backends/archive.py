"""Archiving: deletes finished jobs and events from a store once another system holds them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.backends.operations.persist import remove
from longshore.backends.port import RunsOperations, Transaction, operation
from longshore.core.times import check_datetime

AT_ONCE = 500
"""The most jobs or events that one transaction removes."""


class Archived(NamedTuple):
    """A job that another system holds, with the number of its last archived event."""

    job_id: str
    job_seq: int


@operation()
def remove_archived_jobs(tx: Transaction, jobs: Sequence[Archived]) -> int:
    """Remove archived jobs that have not changed since. A dead job that was retried, or has a new log line, stays."""
    held = dict(jobs)
    found = tx.jobs_by_id(list(held))
    removable = [record for record in found.values() if record.status.final and record.job_seq == held[record.id]]
    remove(tx, removable, "archive")
    return len(removable)


@operation()
def prune_archived_events(tx: Transaction, before: int, through: int) -> int:
    """Remove a bounded number of events, queue by queue."""
    removed = 0
    for queue in tx.queue_states(None):
        if removed < AT_ONCE:
            removed += tx.prune_events(queue, before, AT_ONCE - removed, through)
    return removed


class SupportsArchive(RunsOperations):
    """A backend that can remove jobs and events that another system holds."""

    async def remove_archived_jobs(self, jobs: Sequence[Archived]) -> int:
        """Remove the jobs that are final and have not changed since; return how many."""
        return await self._write(remove_archived_jobs, jobs)

    async def prune_archived_events(self, before: datetime, through: int) -> int:
        """Remove some events that are older than `before` and not beyond a position; return 0 when none is left."""
        moment = check_datetime("before", before)
        return await self._write(prune_archived_events, moment, through)
