"""One job being changed: the only place where a status is set, so that no store can make an illegal move."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from longshore.core.acting import actor as acting_now
from longshore.core.errors import InvalidTransition, JobNotInflight, LeaseLost
from longshore.core.job import Lease
from longshore.core.lifecycle import ELIGIBLE, FINAL, HOLDS_CAPACITY, LEGAL_PAIRS, JobStatus
from longshore.core.record import Record, copy_of


class EventRow(NamedTuple):
    """One row of `job_events`, in column order, before the store numbers it."""

    job_uid: int | None
    job_id: str | None
    job_seq: int
    queue: str
    type: str | None
    event: str
    from_status: JobStatus | None
    to_status: JobStatus | None
    epoch: int
    execution: int
    assignee_id: str | None
    actor: str
    occurred_at: int
    detail: str | None


def note(
    queue: str, event: str, now: int, detail: Mapping[str, Any] | None = None, type_: str | None = None
) -> EventRow:
    """An event that is no job's, signed by whoever is acting."""
    told = None if detail is None else json.dumps(detail, ensure_ascii=False)
    return EventRow(None, None, 0, queue, type_, event, None, None, 0, 0, None, acting_now(), now, told)


class Change:
    """A record under way from where it was (`was`, `was_retries`, `was_owner`) to where it is, with its events."""

    __slots__ = ("events", "now", "record", "was", "was_owner", "was_retries")

    def __init__(self, record: Record, now: int) -> None:
        self.record = record
        self.now = now
        self.was = record.status
        self.was_retries = record.retry_count
        self.was_owner = record.lease_owner
        self.events: list[EventRow] = []

    @property
    def freed(self) -> str | None:
        """The worker whose capacity this change gave back."""
        gave_back = self.was in HOLDS_CAPACITY and self.record.status not in HOLDS_CAPACITY
        return self.was_owner if gave_back else None

    def move(self, target: JobStatus, event: str, detail: Mapping[str, Any] | None = None, actor: str = "") -> None:
        """Makes one legal move and records it."""
        record = self.record
        source = record.status
        if (source, target) not in LEGAL_PAIRS:
            raise InvalidTransition(record.id, source, target, "the table of legal transitions has no such arrow")
        record.status = target
        record.updated_at = self.now
        if source in HOLDS_CAPACITY and target not in HOLDS_CAPACITY:
            record.lease_owner = record.lease_token = record.lease_expires_at = None
        if target in ELIGIBLE:
            record.stand_in_line(self.now)
        else:
            record.parked = False
            if target is JobStatus.CANCELLING:
                record.cancel_asked_at = self.now
        if target in FINAL and record.finalized_at is None:
            record.finalized_at = self.now
        self._write(event, source, target, detail, actor)

    def tell(self, event: str, detail: Mapping[str, Any] | None = None, actor: str = "") -> None:
        """Records something that is no transition."""
        self._write(event, None, None, detail, actor)

    def tell_when_due(self) -> None:
        """After it became eligible: `job.delayed` if it must wait, `job.promoted` if it may run at once."""
        record = self.record
        if record.waits(self.now):
            self.tell("job.delayed", {"until": record.run_at})
        else:
            self.tell("job.promoted")

    def _write(
        self,
        event: str,
        source: JobStatus | None,
        target: JobStatus | None,
        detail: Mapping[str, Any] | None,
        actor: str,
    ) -> None:
        self.events.append(event_of(self.record, self.now, event, source, target, detail, actor))


def event_of(
    record: Record,
    now: int,
    event: str,
    source: JobStatus | None = None,
    target: JobStatus | None = None,
    detail: Mapping[str, Any] | None = None,
    actor: str = "",
) -> EventRow:
    """The job's next event; counted on the record."""
    record.job_seq += 1
    row = (
        record.uid,
        record.id,
        record.job_seq,
        record.queue,
        record.type,
        event,
        source,
        target,
        record.epoch,
        record.executions,
        record.assignee_id,
        actor or acting_now(),
        now,
        None if detail is None else json.dumps(detail, ensure_ascii=False),
    )
    return tuple.__new__(EventRow, row)  # several per job: EventRow(...) would cost twice this


def added(record: Record, now: int) -> EventRow:
    """The first event of a new job."""
    first = copy_of(record)
    first.job_seq = 0
    return event_of(first, now, "job.added", None, record.status, belongings(record))


def belongings(record: Record) -> dict[str, str] | None:
    """What a job belongs to: told with its first event, so that the log alone can tell its history by key."""
    if record.concurrency_key is None and record.schedule_id is None and record.parent_id is None:
        return None
    told = {"key": record.concurrency_key, "schedule_id": record.schedule_id, "parent_id": record.parent_id}
    return {name: value for name, value in told.items() if value is not None}


def check_lease(record: Record, lease: Lease | None, now: int, target: JobStatus) -> None:
    """The fence: raises unless this lease is the job's live one. None is "whoever calls", and is let through."""
    if lease is None:
        return
    if record.status not in HOLDS_CAPACITY:
        raise JobNotInflight(record.id, record.status, target, "nobody holds it any more")
    if record.lease_expires_at is not None and record.lease_expires_at <= now:
        raise LeaseLost(record.id, "expired")
    if record.lease_token != lease.token or record.epoch != lease.epoch:
        raise LeaseLost(record.id, "mismatch")
