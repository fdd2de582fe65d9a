"""Schedules: kept, changed, and fired: one job for each planned time, whoever else fires too."""

from __future__ import annotations

import dataclasses
from itertools import chain

from longshore.backends.transaction import Transaction
from longshore.backends.verbs.submission import store_records
from longshore.core.cron import Schedule, check_schedule, due_now, planned_times, skip_missed
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.moments import from_micros, optional_moment, to_micros
from longshore.core.record import Record, job_of, record_of


def put_schedule(tx: Transaction, schedule: Schedule) -> Schedule:
    """Stores a new schedule, or gives the one with its id a new pattern and new times."""
    schedule = check_schedule(schedule, tx.now)
    known = next((kept for kept in tx.schedules() if kept.id == schedule.id), None)
    now = from_micros(tx.now)
    if known is None:
        kept = dataclasses.replace(
            schedule, run_count=0, last_run_at=None, last_job_id=None, created_at=now, updated_at=now
        )
    else:
        kept = dataclasses.replace(
            schedule,
            run_count=known.run_count,
            last_run_at=known.last_run_at,
            last_job_id=known.last_job_id,
            created_at=known.created_at,
            updated_at=now,
        )
    if known is not None and known.repeat == kept.repeat:
        kept = dataclasses.replace(kept, next_run_at=known.next_run_at)
    else:
        kept = dataclasses.replace(kept, next_run_at=optional_moment(_first_run(kept, tx.now)))
    tx.put_schedule(kept)
    return kept


def _first_run(schedule: Schedule, now: int) -> int | None:
    if schedule.repeat.limit is not None and schedule.run_count >= schedule.repeat.limit:
        return None
    if schedule.repeat.every is None:
        return next(planned_times(schedule.repeat, now, now), None)
    last = None if schedule.last_run_at is None else to_micros(schedule.last_run_at)
    return next(planned_times(schedule.repeat, last, now), None)


def fire_due_schedules(tx: Transaction, limit: int) -> list[Job]:
    """Makes the jobs that are due, and moves each schedule on to its next time, in one transaction.

    A schedule whose jobs cannot be made any more is paused, so that it never holds up the others.
    """
    made: list[Record] = []
    for schedule in tx.schedules_due(limit):
        try:
            made += _fire(tx, schedule)
        except InvalidArgument:  # raised before anything is written: its zone or pattern is no longer good
            tx.put_schedule(dataclasses.replace(schedule, paused=True, updated_at=from_micros(tx.now)))
    return [job_of(record) for record in made]


def _fire(tx: Transaction, schedule: Schedule) -> list[Record]:
    assert schedule.next_run_at is not None  # or it would not be due
    repeat = schedule.repeat
    left = None if repeat.limit is None else repeat.limit - schedule.run_count
    first = skip_missed(repeat, to_micros(schedule.next_run_at), tx.now)
    times = chain([first], planned_times(repeat, first, first))
    due, upcoming = due_now(repeat, times, tx.now, left)
    records = [record_of(_run_of(schedule, planned), tx.now) for planned in due]
    known = tx.statuses([record.id for record in records])
    fresh = [record for record in records if record.id not in known]
    store_records(tx, fresh)
    count = schedule.run_count + len(due)
    done = repeat.limit is not None and count >= repeat.limit
    tx.put_schedule(
        dataclasses.replace(
            schedule,
            run_count=count,
            last_run_at=from_micros(due[-1]) if due else schedule.last_run_at,
            last_job_id=records[-1].id if records else schedule.last_job_id,
            next_run_at=None if done else optional_moment(upcoming),
            updated_at=from_micros(tx.now),
        )
    )
    return fresh


def _run_of(schedule: Schedule, planned: int) -> Job:
    moment = from_micros(planned).isoformat().replace("+00:00", "Z")
    return schedule.job.replace(id=f"{schedule.id}@{moment}", schedule_id=schedule.id, created_at=None)
