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
from longshore.core.schedule import MOST_MADE_UP, Schedule, check_schedule
from longshore.core.times import EARLIEST, SECOND
from longshore.core.transitions import note

JOBS_AT_ONCE = 500
"""Jobs that one pass makes, some 50 milliseconds for which others wait; schedules left over are due in the next one."""
BYTES_AT_ONCE = 4 << 20
"""And bytes of payload, unless a single job has more."""
PUNCTUAL = 60 * SECOND
"""A schedule that is no later than this comes before those that have slept: their time has passed anyway."""


COMPARED_EVERY = 30 * SECOND
"""How often schedules are looked for that a clock since set back left in the future: all are read for it."""


class Clocks:
    """When this process last compared the store's clock with those of its schedules."""

    def __init__(self) -> None:
        self._compared_at: int | None = None

    def to_be_compared(self, now: int) -> bool:
        """Whether it is time to do so; each yes counts as done."""
        if self._compared_at is not None and 0 <= now - self._compared_at < COMPARED_EVERY:
            return False
        self._compared_at = now
        return True


class Fired(NamedTuple):
    """What one pass did: the jobs it made, and the schedules it had to pause."""

    jobs: list[Job]
    stopped: list[Schedule]
    planned_back: list[Schedule]
    """Those that a clock since set back had left waiting for a time too far ahead."""


@operation()
def put_schedule(tx: Transaction, schedule: Schedule, keep_pause: bool) -> Schedule:
    """Stores a new schedule, or gives the one with its id a new pattern and new times."""
    given = check_schedule(schedule, tx.now)
    known = next(iter(tx.schedules([given.id])), None)
    kept = plans.put(given, known, tx.now, keep_pause=keep_pause)
    tx.put_schedules([kept])
    if kept.paused is not (known is not None and known.paused):
        _tell(tx, kept)
    _sign(tx, kept, "schedule.changed")
    return kept


@operation()
def pause_schedule(tx: Transaction, schedule_id: str) -> Schedule:
    """Told only if that is news."""
    schedule = _known(tx, schedule_id)
    if schedule.paused:
        return schedule
    return _keep(tx, plans.paused(schedule, tx.now))


@operation()
def resume_schedule(tx: Transaction, schedule_id: str) -> Schedule:
    """Told only if that is news."""
    schedule = _known(tx, schedule_id)
    if not schedule.paused:
        return schedule
    return _keep(tx, plans.resumed(schedule, tx.now))


@operation()
def run_schedule(tx: Transaction, schedule_id: str) -> Job:
    """Stores one more job like those it makes."""
    record = record_of(plans.run_by_hand(_known(tx, schedule_id)), tx.now)
    store_records(tx, [record])
    return job_of(record)


def _known(tx: Transaction, schedule_id: str) -> Schedule:
    for schedule in tx.schedules([schedule_id]):
        return schedule
    raise ScheduleNotFound(schedule_id)


def _keep(tx: Transaction, schedule: Schedule) -> Schedule:
    tx.put_schedules([schedule])
    _tell(tx, schedule)
    return schedule


def _tell(tx: Transaction, schedule: Schedule) -> None:
    event = "schedule.paused" if schedule.paused else "schedule.resumed"
    detail = {"schedule_id": schedule.id} | ({"error": schedule.error} if schedule.error else {})
    tx.write_event(note(str(schedule.job.queue), event, tx.now, detail, schedule.job.type))


def _sign(tx: Transaction, schedule: Schedule, event: str) -> None:
    """That a schedule is there or gone leaves no trace by itself: it is told if somebody says who they are."""
    if actor():
        detail = {"schedule_id": schedule.id}
        tx.write_event(note(str(schedule.job.queue), event, tx.now, detail, schedule.job.type))


@operation()
def remove_schedule(tx: Transaction, schedule_id: str) -> bool:
    """False if there was none."""
    for schedule in tx.schedules([schedule_id]):
        _sign(tx, schedule, "schedule.removed")
    return tx.remove_schedule(schedule_id)


@operation()
def fire_due_schedules(tx: Transaction, limit: int, clocks: Clocks) -> Fired:
    """Makes jobs that are due, and moves each schedule on to its next time, in one transaction of bounded length.

    A schedule whose jobs cannot be made any more is paused, so that it never holds up the others. Now and then, and as
    soon as the clock is seen to have been set back, those are looked for that wait for a time too far ahead.
    """
    planned_back = _plan_back(tx, limit) if clocks.to_be_compared(tx.now) else []
    ready: list[tuple[Schedule, plans.Firing]] = []
    stopped: list[Schedule] = []
    jobs_left, bytes_left = JOBS_AT_ONCE, BYTES_AT_ONCE
    for schedule in _due(tx, limit):
        size = max(len(schedule.job.payload), 1)
        if ready and (jobs_left < 1 or bytes_left < size):
            break
        try:
            firing = plans.firing(schedule, tx.now, max(1, min(MOST_MADE_UP, jobs_left, bytes_left // size)))
            ready.append((schedule, firing))
            jobs_left -= len(firing.jobs)
            bytes_left -= len(firing.jobs) * size
        except InvalidArgument as error:  # its zone or pattern is no longer good
            stopped.append(plans.paused(schedule, tx.now, str(error)))
    known = tx.statuses([record.id for _, firing in ready for record in firing.jobs]) if ready else {}
    made: list[Record] = []
    moved: list[Schedule] = []
    for schedule, firing in ready:
        fresh = [record for record in firing.jobs if record.id not in known or _is_a_strangers(tx, record)]
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
        _tell(tx, schedule)
    return Fired([job_of(record) for record in made], stopped, planned_back)


def _plan_back(tx: Transaction, limit: int) -> list[Schedule]:
    ahead = tx.schedules_ahead(tx.now + plans.CLOCK_SET_BACK, limit)
    back = [plans.planned_back(schedule, tx.now) for schedule in ahead]
    if back:
        tx.put_schedules(back)
    return [now for before, now in zip(ahead, back, strict=True) if now.next_run_at != before.next_run_at]


def _is_a_strangers(tx: Transaction, record: Record) -> bool:
    """Whether the id of this run is that of a job its schedule never made; then the run gets another one."""
    taken = tx.jobs_seen([record.id]).get(record.id)
    if taken is None or taken.schedule_id == record.schedule_id:
        return False
    for number in count(1):
        other = f"{record.id}~{number}"
        taken = tx.jobs_seen([other]).get(other)
        if taken is None or taken.schedule_id == record.schedule_id:
            record.id = other
            return taken is None
    raise AssertionError("unreachable: numbers do not end")


def _due(tx: Transaction, limit: int) -> list[Schedule]:
    """The punctual ones first, however many have slept."""
    due = tx.schedules_due(tx.now - PUNCTUAL, tx.now, limit)
    return due if len(due) == limit else due + tx.schedules_due(EARLIEST - 1, tx.now - PUNCTUAL, limit - len(due))
