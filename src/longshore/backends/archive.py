"""Archiving: deletes finished jobs and events from a store once another system holds them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.backends.operations.persist import remove
from longshore.backends.port import RunsOperations, Transaction, operation
from longshore.core.times import check_datetime

AT_ONCE = 500
"""Jobs, or events, that one transaction lets go of."""


class Archived(NamedTuple):
    """A job as it is held elsewhere: up to which of its own events."""

    job_id: str
    job_seq: int


@operation()
def remove_archived_jobs(tx: Transaction, jobs: Sequence[Archived]) -> int:
    """What went on since it was archived (a dead job that was brought back, a line in its log) stays."""
    held = dict(jobs)
    found = tx.jobs_by_id(list(held))
    going = [record for record in found.values() if record.status.final and record.job_seq == held[record.id]]
    remove(tx, going, "archive")
    return len(going)


@operation()
def prune_archived_events(tx: Transaction, before: int, through: int) -> int:
    """Queue by queue, a bounded number at a time."""
    removed = 0
    for queue in tx.queue_states(None):
        if removed < AT_ONCE:
            removed += tx.prune_events(queue, before, AT_ONCE - removed, through)
    return removed


class SupportsArchive(RunsOperations):
    """A backend that removes what another system holds."""

    async def remove_archived_jobs(self, jobs: Sequence[Archived]) -> int:
        """Removes those of the jobs that are final and have not changed since; returns how many."""
        return await self._write(remove_archived_jobs, jobs)

    async def prune_archived_events(self, before: datetime, through: int) -> int:
        """Removes some events that are older and not beyond a position of the log; 0 when nothing is left to do."""
        moment = check_datetime("before", before)
        return await self._write(prune_archived_events, moment, through)
