"""The names that other systems use for a job's current status, for views only. The event log uses our own statuses."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from longshore.core.job import Job
from longshore.core.status import ELIGIBLE, JobStatus

Vocabulary = Literal["orchestrator", "taskharbor", "bullmq"]

S = JobStatus

# status: (orchestration platform, TaskHarbor, BullMQ style); `_NOT_DUE` overrides an eligible job that is not due yet
_DUE: dict[JobStatus, tuple[str | None, str | None, str | None]] = {
    S.CREATED: ("CREATED", None, None),
    S.WAITING_CHILDREN: ("CREATED", "scheduled", "WAITING_CHILDREN"),
    S.INITIAL_PENDING: ("QUEUED", "ready", "PENDING"),
    S.RUNNING: ("RUNNING", "inflight", "ACTIVE"),
    S.CANCELLING: ("RUNNING", "inflight", "ACTIVE"),
    S.FAILED_RETRY: ("QUEUED", "ready", "PENDING"),
    S.UNKNOWN_RETRY: ("QUEUED", "ready", "PENDING"),
    S.COMPLETED: ("SUCCESS", "done", "COMPLETED"),
    S.DEAD: ("DEAD", "dlq", "FAILED"),
    S.STOPPED: ("CANCELLED", "cancelled", "CANCELLED"),
    S.UNSCHEDULED: ("CANCELLED", "cancelled", "CANCELLED"),
    S.UNKNOWN_STOPPED: ("CANCELLED", "cancelled", "CANCELLED"),
}
_NOT_DUE: dict[JobStatus, tuple[str, str, str]] = {
    S.INITIAL_PENDING: ("QUEUED", "scheduled", "DELAYED"),
    S.FAILED_RETRY: ("RETRY", "scheduled", "DELAYED"),
    S.UNKNOWN_RETRY: ("RETRY", "scheduled", "DELAYED"),
}
_COLUMN: dict[Vocabulary, int] = {"orchestrator": 0, "taskharbor": 1, "bullmq": 2}


def word_for(status: JobStatus, vocabulary: Vocabulary, *, due: bool = True) -> str | None:
    """The other system's name for this status, or None if it has none."""
    row = _NOT_DUE[status] if not due and status in ELIGIBLE else _DUE[status]
    return row[_COLUMN[vocabulary]]


def word_for_job(job: Job, vocabulary: Vocabulary, now: datetime) -> str | None:
    """The other system's name for the job's status at this time."""
    due = not isinstance(job.run_at, datetime) or job.run_at <= now
    return word_for(job.status, vocabulary, due=due)


def statuses_for(word: str, vocabulary: Vocabulary) -> frozenset[JobStatus]:
    """Our statuses for another system's name, whether the job is due or not."""
    column = _COLUMN[vocabulary]
    found = {status for status, row in _DUE.items() if row[column] == word}
    return frozenset(found | {status for status, row in _NOT_DUE.items() if row[column] == word})
