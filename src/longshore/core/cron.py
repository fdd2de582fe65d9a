"""Repeating work: when a schedule is due next, and which of its missed times are made up for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus
from longshore.core.moments import (
    LATEST,
    SECOND,
    Duration,
    check_datetime,
    check_duration,
    from_micros,
    span,
    to_micros,
)
from longshore.core.names import check_name, check_names
from longshore.core.numbers import check_number
from longshore.core.record import record_of

CatchUp = Literal["none", "last", "all"]
ON_TIME = 60 * SECOND
"""Under `catch_up="none"` a run this late still counts as on time: a tick is never exact."""
MOST_MADE_UP = 100
"""How many missed runs one pass makes up for under `catch_up="all"`; the next pass goes on."""
_LOOKBACKS = (3_600 * SECOND, 2 * 86_400 * SECOND, 62 * 86_400 * SECOND)
LONGEST_SCHEDULE_ID = 200
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """When to repeat: exactly one of `cron` (in `tz`, daylight saving respected) and `every`."""

    cron: str | None = None
    every: Duration | None = None
    tz: str = "UTC"
    limit: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    on_gap: Literal["next"] = "next"
    """A local time that does not exist: run at the next moment that does."""
    on_overlap: Literal["first"] = "first"
    """A local time that comes twice: run at the first."""
    catch_up: CatchUp = "last"

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise InvalidArgument("repeat", "needs exactly one of cron and every")
        if self.every is not None:
            every = check_duration("repeat.every", self.every)
            if every < SECOND // 1000:
                raise InvalidArgument("repeat.every", "must be at least a millisecond")
            object.__setattr__(self, "every", timedelta(microseconds=every))
        if self.limit is not None and check_number("repeat.limit", self.limit) < 1:
            raise InvalidArgument("repeat.limit", "must be at least 1, or None for no limit")
        for name, moment in (("repeat.start", self.start), ("repeat.end", self.end)):
            if moment is not None:
                check_datetime(name, moment)
        if self.start is not None and self.end is not None and self.start > self.end:
            raise InvalidArgument("repeat.end", "must not be before repeat.start: it would never run")
        if self.on_gap != "next" or self.on_overlap != "first":
            raise InvalidArgument("repeat", "on_gap must be 'next' and on_overlap must be 'first'")
        if self.catch_up not in ("none", "last", "all"):
            raise InvalidArgument("repeat.catch_up", f"must be none, last or all, not {self.catch_up!r}")
        zone = _zone(self.tz)
        if self.cron is not None:
            if not isinstance(self.cron, str):
                raise InvalidArgument("repeat.cron", f"must be text, not {type(self.cron).__name__}")
            try:
                CronSim(_plain(self.cron), datetime(2026, 1, 1, tzinfo=zone))
            except CronSimError as error:
                raise InvalidArgument("repeat.cron", f"{self.cron!r} is not a cron expression: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job to be made again and again; `job` is the pattern, each run gets an id of its own."""

    id: str
    job: Job
    repeat: Repeat
    paused: bool = False
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    last_job_id: str | None = None
    run_count: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None


def check_schedule(schedule: object, now: int) -> Schedule:
    """The schedule with its pattern cut down to what every run shares, if its id, pattern and times are good."""
    if not isinstance(schedule, Schedule):
        raise InvalidArgument("schedule", f"must be a Schedule, not {type(schedule).__name__}")
    if len(check_name("schedule.id", schedule.id)) > LONGEST_SCHEDULE_ID:
        raise InvalidArgument(
            "schedule.id", f"must be at most {LONGEST_SCHEDULE_ID} characters, as run ids begin with it"
        )
    if not isinstance(schedule.repeat, Repeat):
        raise InvalidArgument("schedule.repeat", f"must be a Repeat, not {type(schedule.repeat).__name__}")
    job = schedule.job
    if not isinstance(job, Job):
        raise InvalidArgument("schedule.job", f"must be a Job, not {type(job).__name__}")
    try:
        record_of(job, now)
    except InvalidArgument as error:
        raise InvalidArgument(f"schedule.job.{error.field}", error.problem) from None
    if job.status is not JobStatus.INITIAL_PENDING:
        raise InvalidArgument("schedule.job.status", "must be INITIAL_PENDING: each run is accepted as it is made")
    for name in ("depends_on", "idempotency_key", "run_at"):
        if getattr(job, name):
            raise InvalidArgument(f"schedule.job.{name}", "cannot be set on a job that is made again and again")
    if isinstance(job.expires_at, datetime):
        raise InvalidArgument("schedule.job.expires_at", "must be a duration, counted anew for every run")
    pattern = Job(
        id=schedule.id,
        type=job.type,
        payload=job.payload,
        queue=str(job.queue),
        tags=check_names("schedule.job.tags", job.tags),
        priority=job.priority,
        lifo=job.lifo,
        delay=span(job.delay),
        expires_at=span(job.expires_at),
        timeout=span(job.timeout),
        max_attempts=job.max_attempts,
        max_crashes=job.max_crashes,
        concurrency_key=job.concurrency_key,
        parent_id=job.parent_id,
        options=dict(job.options),
    )
    return dataclasses.replace(schedule, job=pattern)


def planned_times(repeat: Repeat, after: int | None, created_at: int) -> Iterator[int]:
    """The planned times after `after` (the last planned one), or from the beginning; `every` is anchored to it."""
    start = created_at if repeat.start is None else to_micros(repeat.start)
    end = LATEST if repeat.end is None else to_micros(repeat.end)
    for planned in _raw_times(repeat, after, start):
        if planned > end:
            return
        yield planned


def _raw_times(repeat: Repeat, after: int | None, start: int) -> Iterator[int]:
    if repeat.every is not None:
        step = check_duration("repeat.every", repeat.every)
        if repeat.start is not None and (after is None or after < start):
            planned = start
        else:
            planned = (start if after is None else after) + step
        while planned <= LATEST:
            yield planned
            planned += step
        return
    assert repeat.cron is not None  # Repeat has exactly one of the two
    begin = start - 1 if after is None else max(after, start - 1)
    local = from_micros(begin).astimezone(_zone(repeat.tz))
    try:
        for moment in CronSim(_plain(repeat.cron), local):
            planned = to_micros(moment)
            if planned > begin:  # begun inside an hour that comes twice, it would give the first of the two again
                yield planned
    except (OverflowError, CronSimError):  # the calendar ends with the year 9999, or no day ever matches
        return


def due_now(repeat: Repeat, times: Iterator[int], now: int, left: int | None) -> tuple[list[int], int | None]:
    """Which planned times to run now, by the catch-up policy, and the next one to wait for (None: no more)."""
    if repeat.catch_up == "all":
        most = MOST_MADE_UP if left is None else min(MOST_MADE_UP, left)
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
    """Where to begin counting from `first` when all but the last missed run are passed over anyway.

    A schedule that slept for a year is not walked run by run: `every` is a division, and for cron the last run is
    looked for further and further back.
    """
    until = now if repeat.end is None else min(now, to_micros(repeat.end))
    if repeat.catch_up == "all" or first >= until:
        return first
    if repeat.every is not None:
        step = check_duration("repeat.every", repeat.every)
        return first + (until - first) // step * step
    for lookback in _LOOKBACKS:
        since = until - lookback
        if since <= first:
            return first
        found = next(planned_times(repeat, since, since), None)
        if found is not None and found <= until:
            return found
    return first


def next_times(repeat: Repeat, count: int, *, after: datetime) -> list[datetime]:
    """The next few times, for showing: strictly after `after`."""
    since = to_micros(after)
    begin = since
    if repeat.every is not None and repeat.start is not None:
        begin = skip_missed(dataclasses.replace(repeat, catch_up="last"), to_micros(repeat.start), since)
    times = chain([begin], planned_times(repeat, begin, begin))
    return [from_micros(planned) for planned in islice((t for t in times if t > since), count)]


def _plain(cron: str) -> str:
    return _ALIASES.get(cron.strip(), cron)


def _zone(name: object) -> ZoneInfo:
    if not isinstance(name, str):
        raise InvalidArgument("repeat.tz", f"must be the name of a time zone, not {type(name).__name__}")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidArgument("repeat.tz", f"{name!r} is no known time zone; write it like Europe/Berlin") from None
