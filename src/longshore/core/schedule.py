"""`Schedule`: a job that is enqueued repeatedly, how an occurrence fires, and how missed ones are caught up."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import NamedTuple

from longshore.core.errors import InvalidArgument
from longshore.core.job import Job, new_job_like, run_id
from longshore.core.job_record import Record, record_like, record_of
from longshore.core.repeat import SHOWN, Repeat, first_time, planned_times
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, from_micros, optional_moment, span, to_micros
from longshore.core.validation import check_name, check_tags, new_id

ON_TIME = 60 * SECOND
"""Under `catch_up="none"`, a run up to this late counts as on time: the scheduler's ticks are not exact."""
MOST_CAUGHT_UP = 20
"""The most missed runs of a schedule that one pass enqueues under `catch_up="all"`; the next pass continues. It is
small so that many schedules progress together."""
MOST_MISSED = 5_000
"""The most missed runs caught up in all: the last ones, over three days of minutes. Older ones are skipped, so that a
schedule of every second does not flood its queue after a year."""
_LOOKBACKS = tuple(4 * 8**further for further in range(10))
"""How far to look back for the last run, in the shortest steps of an expression, so that few are visited."""


def due_runs(
    repeat: Repeat, first: int, now: int, left: int | None, most: int = MOST_CAUGHT_UP
) -> tuple[list[int], int | None]:
    """The planned times from `first` on to run now, and the next one to wait for (None: no more).

    `left` is the number of runs that the limit still allows, `most` the number wanted in this pass.
    """
    due, upcoming = _due_runs(repeat, first, now, most if left is None else min(most, left))
    return list(due), upcoming


@lru_cache(maxsize=64)  # many schedules share their times, like the full hour
def _due_runs(repeat: Repeat, first: int, now: int, most: int) -> tuple[tuple[int, ...], int | None]:
    begin = skip_missed(repeat, first, now)
    due, upcoming = due_now(repeat, chain([begin], planned_times(repeat, begin, begin)), now, most)
    return tuple(due), upcoming


def due_now(repeat: Repeat, times: Iterator[int], now: int, most: int = MOST_CAUGHT_UP) -> tuple[list[int], int | None]:
    """Select the planned times to run now, by the catch-up policy, and the next one to wait for."""
    if repeat.catch_up == "all":
        due: list[int] = []
        for planned in times:
            if planned > now or len(due) == most:
                return due, planned
            due.append(planned)
        return due, None
    last: int | None = None
    upcoming: int | None = None
    for planned in times:
        if planned > now:
            upcoming = planned
            break
        last = planned
    missed = last is None or (repeat.catch_up == "none" and now - last > ON_TIME)
    return ([] if missed or last is None else [last]), upcoming


def skip_missed(repeat: Repeat, first: int, now: int) -> int:
    """The planned time to continue from, past the missed runs that are skipped anyway.

    It does not visit every missed run: `every` needs a division, and for cron it looks further and further back for the
    last run.
    """
    until = now if repeat.end is None else min(now, to_micros(repeat.end))
    if first >= until:
        return first
    if repeat.catch_up == "all":
        return _last_few(repeat, first, until)
    step = repeat.step
    if step is not None:
        return first + (until - first) // step * step
    for lookback in _LOOKBACKS:
        since = until - lookback * repeat.expression.shortest_step * SECOND
        if since <= first:
            return first
        found = next(planned_times(repeat, since, since), None)
        if found is not None and found <= until:
            return found
    return first


def _last_few(repeat: Repeat, first: int, until: int) -> int:
    """The first of the last `MOST_MISSED` planned times, or `first` if there are fewer."""
    step = repeat.step
    if step is not None:
        return max(first, first + ((until - first) // step + 1 - MOST_MISSED) * step)
    lookback = MOST_MISSED * repeat.expression.shortest_step * SECOND
    if until - first < lookback:
        return first
    while True:
        since = max(until - lookback, first - 1)
        times = takewhile(lambda planned: planned <= until, planned_times(repeat, since, since))
        found = deque(times, MOST_MISSED)
        if len(found) == MOST_MISSED:
            return found[0]
        if since < first:
            return first
        lookback *= max(2, MOST_MISSED * 11 // 10 // (len(found) + 1))  # assume that they were as frequent before


LONGEST_SCHEDULE_ID = 200
CLOCK_SET_BACK = 60 * SECOND
"""A clock that is behind by less catches up soon, and runs that it passes again exist already."""
_SOON = timedelta(days=1)

Stretch = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is enqueued repeatedly: `job` is the template of each occurrence. See docs/schedules.md."""

    id: str
    job: Job
    repeat: Repeat
    paused: bool = False
    next_run_at: datetime | None = None
    """None if it has ended: its limit is reached, or no planned time is left. A paused schedule keeps its time."""
    last_run_at: datetime | None = None
    """The planned time of its last run."""
    last_job_id: str | None = None
    run_count: int = 0
    """Planned runs; manual runs are not counted."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    error: str = ""
    """Why it paused itself: its jobs could not be created any more."""
    passed_over: Stretch | None = None
    """The last range of planned times without jobs: from the first of them to the next run."""


class Firing(NamedTuple):
    """What a due schedule does: the jobs of its planned times, and its next time once they are stored."""

    jobs: list[Record]
    planned: list[int]
    upcoming: int | None


def schedule_from(job: Job, repeat: Repeat, schedule_id: str | None) -> Schedule:
    """A schedule that enqueues this job repeatedly.

    Without an id, its queue, type, data and times identify it: adding it twice stores one schedule.
    """
    if not isinstance(repeat, Repeat):
        raise InvalidArgument("repeat", f"must be a Repeat, not {type(repeat).__name__}; {SHOWN}")
    if job.status is JobStatus.CREATED:
        raise InvalidArgument("hold", "cannot be set on a job that a schedule enqueues")
    if schedule_id is None:
        described = repr((str(job.queue), job.type, job.payload, repeat)).encode("utf-8", "surrogatepass")
        schedule_id = f"repeat-{hashlib.sha256(described).hexdigest()[:32]}"
    return Schedule(id=schedule_id, job=job, repeat=repeat)


@contextmanager
def schedule_errors(id_field: str) -> Iterator[None]:
    """Name the caller's own field in the error about a schedule or its job."""
    try:
        yield
    except InvalidArgument as error:
        field = error.field.removeprefix("schedule.job.")
        raise InvalidArgument(id_field if field == "schedule.id" else field, error.problem) from None


def check_schedule(schedule: object, now: int) -> Schedule:
    """Return the schedule with its template reduced to what every run shares, or raise InvalidArgument."""
    if not isinstance(schedule, Schedule):
        raise InvalidArgument("schedule", f"must be a Schedule, not {type(schedule).__name__}")
    if len(check_name("schedule.id", schedule.id)) > LONGEST_SCHEDULE_ID:
        raise InvalidArgument(
            "schedule.id", f"must be at most {LONGEST_SCHEDULE_ID} characters: the ids of its jobs start with it"
        )
    if not isinstance(schedule.repeat, Repeat):
        raise InvalidArgument("schedule.repeat", f"must be a Repeat, not {type(schedule.repeat).__name__}; {SHOWN}")
    if not isinstance(schedule.paused, bool):
        raise InvalidArgument("schedule.paused", f"must be True or False, not {schedule.paused!r}")
    job = schedule.job
    if not isinstance(job, Job):
        raise InvalidArgument("schedule.job", f"must be a Job, not {type(job).__name__}")
    try:
        record_of(job, now)
    except InvalidArgument as error:
        raise InvalidArgument(f"schedule.job.{error.field}", error.problem) from None
    if job.status is not JobStatus.INITIAL_PENDING:
        raise InvalidArgument("schedule.job.status", "must be INITIAL_PENDING: a schedule accepts its jobs")
    for name in ("depends_on", "idempotency_key", "run_at"):
        if getattr(job, name):
            raise InvalidArgument(f"schedule.job.{name}", "cannot be set on a job that a schedule enqueues")
    if isinstance(job.expires_at, datetime):
        raise InvalidArgument("schedule.job.expires_at", "must be a duration, counted from each run")
    pattern = new_job_like(
        job,
        id=schedule.id,
        tags=check_tags("schedule.job.tags", job.tags),
        delay=span(job.delay),
        expires_at=span(job.expires_at),
        timeout=span(job.timeout),
        parent_id=job.parent_id,
        options=dict(job.options),
    )
    return dataclasses.replace(schedule, job=pattern, passed_over=None)


def put(given: Schedule, known: Schedule | None, now: int, *, keep_pause: bool) -> Schedule:
    """The schedule to store, if this one is given and `known` has the same id.

    Its run history is kept. The same times keep the plan, so that due runs are still enqueued, even if the limit or the
    end changed. New times, or the end of a pause, plan from now. A pause after an error ends when the schedule is
    stored again.
    """
    moment = from_micros(now)
    if known is None:
        fresh = dataclasses.replace(
            given, run_count=0, last_run_at=None, last_job_id=None, created_at=moment, updated_at=moment, error=""
        )
        return dataclasses.replace(fresh, next_run_at=optional_moment(_first_planned(fresh.repeat, now)))
    known = planned_back(known, now) if is_ahead(known, now) else known
    kept = dataclasses.replace(
        given,
        run_count=known.run_count,
        last_run_at=known.last_run_at,
        last_job_id=known.last_job_id,
        created_at=known.created_at,
        updated_at=moment,
        paused=known.paused if keep_pause and not known.error else given.paused,
        next_run_at=known.next_run_at,
        passed_over=known.passed_over,
        error="",
    )
    if not known.repeat.same_times(kept.repeat):
        return _moved_on(kept, kept.last_run_at, _replanned(kept, now, kept.last_run_at))
    if known.paused and not kept.paused:
        return resumed(kept, now)
    return kept if known.repeat == kept.repeat else dataclasses.replace(kept, next_run_at=_still_planned(kept, now))


def _first_planned(repeat: Repeat, now: int) -> int | None:
    """The first run of a new schedule."""
    if not repeat.immediate:
        return first_time(repeat, now)
    first = now if repeat.start is None else max(now, to_micros(repeat.start))
    return None if repeat.end is not None and first > to_micros(repeat.end) else first


def paused(schedule: Schedule, now: int, error: str = "") -> Schedule:
    """Pause it: it keeps its next time, and fires nothing until it is resumed."""
    return dataclasses.replace(schedule, paused=True, error=error, updated_at=from_micros(now))


def resumed(schedule: Schedule, now: int) -> Schedule:
    """Resume it at the next planned time; times during the pause are skipped."""
    upcoming = _replanned(schedule, now, schedule.next_run_at or schedule.last_run_at)
    resumed_schedule = dataclasses.replace(schedule, paused=False, error="", updated_at=from_micros(now))
    return _moved_on(resumed_schedule, schedule.next_run_at, upcoming)


def _moved_on(schedule: Schedule, since: datetime | None, upcoming: int | None) -> Schedule:
    """Plan the upcoming time; times from `since` until then are skipped."""
    planned = optional_moment(upcoming)
    stretch = None if since is None or planned is None or planned <= since else (since, planned)
    return dataclasses.replace(schedule, next_run_at=planned, passed_over=_longer(schedule.passed_over, stretch))


def _longer(before: Stretch | None, stretch: Stretch | None) -> Stretch | None:
    """The later range; the longer one, if one follows the other within a day."""
    if before is None or stretch is None:
        return stretch or before
    keeps = stretch[0] - before[1] < _SOON and before[1] - before[0] > stretch[1] - stretch[0]
    return before if keeps else stretch


def is_ahead(schedule: Schedule, now: int) -> bool:
    """Whether it was changed at a time in the future: then the clock has been set back since."""
    return schedule.updated_at is not None and to_micros(schedule.updated_at) > now + CLOCK_SET_BACK


def planned_back(schedule: Schedule, now: int) -> Schedule:
    """Plan as if the clock had never been ahead, without running anything twice.

    If it fired at times in the future, the times before them were skipped and run now. Times that have jobs do not run
    again: the schedule waits until they have passed.
    """
    since: int | None = now if schedule.last_run_at is None else None
    if schedule.passed_over is not None and to_micros(schedule.passed_over[1]) > now:
        since = max(now, to_micros(schedule.passed_over[0]) - 1)
    planned = schedule.next_run_at
    if since is not None:
        upcoming = optional_moment(_replanned(schedule, since, schedule.last_run_at or planned))
        if upcoming is not None and (planned is None or upcoming < planned):
            planned = upcoming
    return dataclasses.replace(schedule, next_run_at=planned, updated_at=from_micros(now))


def _replanned(schedule: Schedule, now: int, anchor: datetime | None) -> int | None:
    left = _left(schedule)
    if left is not None and left < 1:
        return None
    return first_time(schedule.repeat, now, None if anchor is None else to_micros(anchor))


def _still_planned(schedule: Schedule, now: int) -> datetime | None:
    """Its next planned time, if its limit, its end and its policies still allow it."""
    planned, repeat = schedule.next_run_at, schedule.repeat
    if planned is None or (repeat.cron is not None and to_micros(planned) > now):  # a clock change may affect it
        since = max(now, to_micros(schedule.last_run_at)) if schedule.last_run_at and planned else now
        return optional_moment(_replanned(schedule, since, schedule.last_run_at))
    left = _left(schedule)
    over = (left is not None and left < 1) or (repeat.end is not None and planned > repeat.end)
    return None if over else planned


def _left(schedule: Schedule) -> int | None:
    """The number of runs that its limit still allows."""
    return None if schedule.repeat.limit is None else schedule.repeat.limit - schedule.run_count


def firing(schedule: Schedule, now: int, most: int = MOST_CAUGHT_UP) -> Firing:
    """The jobs to enqueue now, at most `most`. Raise InvalidArgument if its times cannot be computed any more."""
    assert schedule.next_run_at is not None  # a due schedule has one
    planned, upcoming = due_runs(schedule.repeat, to_micros(schedule.next_run_at), now, _left(schedule), most)
    runs = [record_like(schedule.job, run_id(schedule.id, from_micros(at)), schedule.id, now) for at in planned]
    return Firing(runs, planned, upcoming)


def fired(schedule: Schedule, firing: Firing, made: int, now: int) -> Schedule:
    """The schedule after its jobs were stored. `made` of them are new; the other times had jobs already."""
    jobs, planned, upcoming = firing
    due, reached = schedule.next_run_at, optional_moment(planned[0] if planned else upcoming)
    skipped = (due, reached) if due and reached and due < reached else None
    count = schedule.run_count + made
    ended = schedule.repeat.limit is not None and count >= schedule.repeat.limit
    return dataclasses.replace(
        schedule,
        run_count=count,
        last_run_at=from_micros(planned[-1]) if planned else schedule.last_run_at,
        last_job_id=jobs[-1].id if planned else schedule.last_job_id,
        next_run_at=None if ended else optional_moment(upcoming),
        updated_at=from_micros(now),
        passed_over=_longer(schedule.passed_over, skipped),
    )


def run_by_hand(schedule: Schedule) -> Job:
    """A job for a manual run, with a new id."""
    return schedule.job.replace(id=new_id(), schedule_id=schedule.id, created_at=None)


def preview(schedule: Schedule, count: int, now: int) -> list[datetime]:
    """Its next planned times within its limit and end. A paused schedule is shown as if it were resumed now."""
    left = _left(schedule)
    if schedule.next_run_at is None or schedule.paused:
        upcoming = None if schedule.next_run_at is None else _replanned(schedule, now, schedule.next_run_at)
    else:
        due, upcoming = due_runs(schedule.repeat, to_micros(schedule.next_run_at), now, left)
        left = None if left is None else left - len(due)
    if upcoming is None:
        return []
    coming = chain([upcoming], planned_times(schedule.repeat, upcoming, upcoming))
    wanted = count if left is None else min(count, left)
    return [from_micros(planned) for planned in islice((t for t in coming if t > now), wanted)]
