"""The attempts at a job, told from its events: who had it, from when to when, and how that ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from longshore.core.job import JobEvent
from longshore.core.lifecycle import HOLDS_CAPACITY, JobStatus


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution; `outcome` is the event that ended it, or `running`."""

    execution: int
    epoch: int
    worker: str | None
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str = "running"
    status: JobStatus | None = None
    """What it left the job in."""
    error: str = ""


def attempts_of(events: Iterable[JobEvent]) -> list[Attempt]:
    """From one job's events, in whatever order; those that were pruned are missing here, too."""
    attempts: list[Attempt] = []
    open_one: Attempt | None = None
    for event in sorted(events, key=lambda one: one.job_seq):
        if event.to_status is None:
            continue
        if event.to_status is JobStatus.RUNNING:
            open_one = Attempt(event.execution, event.epoch, event.assignee_id, event.occurred_at)
            attempts.append(open_one)
        elif open_one is not None and event.to_status not in HOLDS_CAPACITY:
            attempts[-1] = replace(
                open_one,
                ended_at=event.occurred_at,
                outcome=event.event,
                status=event.to_status,
                error=str(event.detail.get("error") or event.detail.get("reason") or ""),
            )
            open_one = None
    return attempts
