"""Schedules: stored, changed, triggered by hand, and fired, one job for each occurrence."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from longshore.backends.operations.enqueue import store_records
from longshore.backends.port import Transaction, operation
from longshore.core import schedule as plans
from longshore.core.actor import actor
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.job import Job
from longshore.core.job_record import Record, job_of, record_of
from longshore.core.schedule import MOST_CAUGHT_UP, Schedule, check_schedule
from longshore.core.times import EARLIEST, SECOND
from longshore.core.transitions import note

JOBS_AT_ONCE = 500
"""The most jobs of one pass: about 50 milliseconds for which other writers wait. The next pass continues."""
BYTES_AT_ONCE = 4 << 20
"""The most bytes of payload of one pass, unless a single job has more."""
PUNCTUAL = 60 * SECOND
"""A schedule that is at most this late runs before overdue ones."""


COMPARED_EVERY = 30 * SECOND
"""How often to look for schedules that a clock, set back since, left in the future. It reads all schedules."""


class Clocks:
    """When this process last compared the store's clock with its schedules."""

    def __init__(self) -> None:
        self._compared_at: int | None = None

    def due(self, now: int) -> bool:
        """Whether to compare now; a True answer counts as done."""
        if self._compared_at is not None and 0 <= now - self._compared_at < COMPARED_EVERY:
            return False
        self._compared_at = now
        return True


class Fired(NamedTuple):
    """The result of one pass: the jobs it enqueued, and the schedules it paused."""

    jobs: list[Job]
    stopped: list[Schedule]
    planned_back: list[Schedule]
    """Schedules that waited for a time too far ahead, because the clock was set back."""


@operation()
def put_schedule(tx: Transaction, schedule: Schedule, keep_pause: bool) -> Schedule:
    """Store a new schedule, or change the template and times of the one with its id."""
    given = check_schedule(schedule, tx.now)
    known = next(iter(tx.schedules([given.id])), None)
    kept = plans.put(given, known, tx.now, keep_pause=keep_pause)
    tx.put_schedules([kept])
    if kept.paused is not (known is not None and known.paused):
        _record_pause(tx, kept)
    _record_change(tx, kept, "schedule.changed")
    return kept


@operation()
def pause_schedule(tx: Transaction, schedule_id: str) -> Schedule:
    """Pause the schedule; record an event only if that changes it."""
    schedule = _known(tx, schedule_id)
    if schedule.paused:
        return schedule
    return _keep(tx, plans.paused(schedule, tx.now))


@operation()
def resume_schedule(tx: Transaction, schedule_id: str) -> Schedule:
    """Resume the schedule; record an event only if that changes it."""
    schedule = _known(tx, schedule_id)
    if not schedule.paused:
        return schedule
    return _keep(tx, plans.resumed(schedule, tx.now))


@operation()
def run_schedule(tx: Transaction, schedule_id: str) -> Job:
    """Store one more job of the schedule."""
    record = record_of(plans.run_by_hand(_known(tx, schedule_id)), tx.now)
    store_records(tx, [record])
    return job_of(record)


def _known(tx: Transaction, schedule_id: str) -> Schedule:
    for schedule in tx.schedules([schedule_id]):
        return schedule
    raise ScheduleNotFound(schedule_id)


def _keep(tx: Transaction, schedule: Schedule) -> Schedule:
    tx.put_schedules([schedule])
    _record_pause(tx, schedule)
    return schedule


def _record_pause(tx: Transaction, schedule: Schedule) -> None:
    event = "schedule.paused" if schedule.paused else "schedule.resumed"
    detail = {"schedule_id": schedule.id} | ({"error": schedule.error} if schedule.error else {})
    tx.write_event(note(str(schedule.job.queue), event, tx.now, detail, schedule.job.type))


def _record_change(tx: Transaction, schedule: Schedule, event: str) -> None:
    """Record an event if the caller has an actor: without one, the change writes no event."""
    if actor():
        detail = {"schedule_id": schedule.id}
        tx.write_event(note(str(schedule.job.queue), event, tx.now, detail, schedule.job.type))


@operation()
def remove_schedule(tx: Transaction, schedule_id: str) -> bool:
    """Remove the schedule; return False if there was none."""
    for schedule in tx.schedules([schedule_id]):
        _record_change(tx, schedule, "schedule.removed")
    return tx.remove_schedule(schedule_id)


@operation()
def fire_due_schedules(tx: Transaction, limit: int, clocks: Clocks) -> Fired:
    """Enqueue due jobs and move each schedule to its next time, in one transaction of bounded length.

    A schedule whose jobs cannot be created any more is paused, so that it does not block the others. From time to time,
    and after the clock was set back, it also corrects schedules that wait for a time too far ahead.
    """
    planned_back = _plan_back(tx, limit) if clocks.due(tx.now) else []
    ready: list[tuple[Schedule, plans.Firing]] = []
    stopped: list[Schedule] = []
    jobs_left, bytes_left = JOBS_AT_ONCE, BYTES_AT_ONCE
    for schedule in _due(tx, limit):
        size = max(len(schedule.job.payload), 1)
        if ready and (jobs_left < 1 or bytes_left < size):
            break
        try:
            firing = plans.firing(schedule, tx.now, max(1, min(MOST_CAUGHT_UP, jobs_left, bytes_left // size)))
            ready.append((schedule, firing))
            jobs_left -= len(firing.jobs)
            bytes_left -= len(firing.jobs) * size
        except InvalidArgument as error:  # its time zone or template is no longer valid
            stopped.append(plans.paused(schedule, tx.now, str(error)))
    known = tx.statuses([record.id for _, firing in ready for record in firing.jobs]) if ready else {}
    made: list[Record] = []
    moved: list[Schedule] = []
    for schedule, firing in ready:
        fresh = [record for record in firing.jobs if record.id not in known or _id_is_foreign(tx, record)]
        made += fresh
        moved.append(plans.fired(schedule, firing, len(fresh), tx.now))
    if made:
        store_records(tx, made)
    overslept = [now for (before, _), now in zip(ready, moved, strict=True) if now.passed_over != before.passed_over]
    if moved:
        tx.move_schedules(moved)
    if stopped or overslept:
        tx.put_schedules(stopped + overslept)
    for schedule in stopped:
        _record_pause(tx, schedule)
    return Fired([job_of(record) for record in made], stopped, planned_back)


def _plan_back(tx: Transaction, limit: int) -> list[Schedule]:
    ahead = tx.schedules_ahead(tx.now + plans.CLOCK_SET_BACK, limit)
    back = [plans.planned_back(schedule, tx.now) for schedule in ahead]
    if back:
        tx.put_schedules(back)
    return [now for before, now in zip(ahead, back, strict=True) if now.next_run_at != before.next_run_at]


def _id_is_foreign(tx: Transaction, record: Record) -> bool:
    """Whether the id of this run belongs to a job of another origin; then the run gets another id."""
    taken = tx.jobs_seen([record.id]).get(record.id)
    if taken is None or taken.schedule_id == record.schedule_id:
        return False
    for number in count(1):
        other = f"{record.id}~{number}"
        taken = tx.jobs_seen([other]).get(other)
        if taken is None or taken.schedule_id == record.schedule_id:
            record.id = other
            return taken is None
    raise AssertionError("unreachable: the numbers are unlimited")


def _due(tx: Transaction, limit: int) -> list[Schedule]:
    """The due schedules, punctual ones first."""
    due = tx.schedules_due(tx.now - PUNCTUAL, tx.now, limit)
    return due if len(due) == limit else due + tx.schedules_due(EARLIEST - 1, tx.now - PUNCTUAL, limit - len(due))
