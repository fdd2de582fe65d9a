"""`Repeat`: how often work repeats, and the occurrences that follow from it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from typing import Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from longshore.core.cron import CronExpression, moments_after, read_cron, written_out
from longshore.core.errors import InvalidArgument
from longshore.core.times import LATEST, SECOND, Duration, check_datetime, check_duration, from_micros, to_micros
from longshore.core.validation import check_number

CatchUp = Literal["none", "last", "all"]
OnGap = Literal["next", "skip"]
OnOverlap = Literal["first", "second", "both"]
LONGEST_TEXT = 255
SHOWN = 'write Repeat(cron="30 2 * * *", tz="Europe/Berlin") or Repeat(every=60)'
"""The hint in the error for a value of another type."""
_SHORTEST = SECOND // 1000
_known_zones = cache(available_timezones)  # it reads a folder of many files


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """When to repeat: exactly one of `cron` (local time of `tz`) and `every` (elapsed time)."""

    cron: str | None = None
    every: Duration | None = None
    tz: str = "UTC"
    limit: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    on_gap: OnGap = "next"
    """For a time of day that a change of the clocks skips: `next` runs at the first moment after it, `skip` does not
    run. It does not apply to a cron expression that names no hour, like `*/30 * * * *`."""
    on_overlap: OnOverlap = "first"
    """For a time of day that occurs twice: run at the `first`, the `second`, or `both`. An expression that names no
    hour always runs at both."""
    catch_up: CatchUp = "last"
    """For occurrences missed while no scheduler ran: enqueue `none`, the `last`, or `all` (up to a limit)."""

    immediate: bool = field(default=False, repr=False)
    """Whether a new schedule runs at once, or at a future `start`. Storing it again does not run it."""

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise InvalidArgument("repeat", "give either cron or every" + (", not both" if self.cron else ""))
        if self.every is not None:
            every = check_duration("repeat.every", self.every)
            if every < _SHORTEST:
                raise InvalidArgument("repeat.every", "must be at least a millisecond")
            object.__setattr__(self, "every", timedelta(microseconds=every))
        if self.limit is not None:
            check_number("repeat.limit", self.limit, least=1)
        for name in ("start", "end"):
            moment = getattr(self, name)
            if moment is not None:
                # in UTC, so that equal moments compare as the same text
                object.__setattr__(self, name, from_micros(check_datetime(f"repeat.{name}", moment)))
        if self.start is not None and self.end is not None and self.start > self.end:
            raise InvalidArgument("repeat.end", "must not be before repeat.start: it would never run")
        for name, choices in (("on_gap", OnGap), ("on_overlap", OnOverlap), ("catch_up", CatchUp)):
            allowed = get_args(choices)
            if getattr(self, name) not in allowed:
                raise InvalidArgument(f"repeat.{name}", f"must be {_listed(allowed)}, not {getattr(self, name)!r}")
        if not isinstance(self.immediate, bool):
            raise InvalidArgument("repeat.immediate", f"must be True or False, not {self.immediate!r}")
        _check_length("repeat.tz", self.tz)
        zone_of(self.tz)
        _check_length("repeat.cron", self.cron)
        if self.cron is not None:
            read_cron(self.cron)

    @property
    def expression(self) -> CronExpression:
        """The parsed cron expression."""
        return read_cron(self.cron)

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of the cron expression."""
        return zone_of(self.tz)

    def same_times(self, other: Repeat) -> bool:
        """Whether both have the same times. It ignores the limit, the end and the policies."""
        ours, theirs = (None if one.cron is None else written_out(one.cron) for one in (self, other))
        return (ours, self.every, self.tz, self.start) == (theirs, other.every, other.tz, other.start)

    @property
    def step(self) -> int | None:
        """`every` in microseconds; None for cron."""
        return None if self.every is None else check_duration("repeat.every", self.every)


def _check_length(field: str, text: object) -> None:
    """Check the length before parsing: parsing time grows with it."""
    if isinstance(text, str) and len(text) > LONGEST_TEXT:
        raise InvalidArgument(field, f"must be at most {LONGEST_TEXT} characters, not {len(text):,}")


def zone_of(name: object) -> ZoneInfo:
    """Return the time zone of this name, or raise InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument("repeat.tz", f"must be the name of a time zone, not {type(name).__name__}")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = difflib.get_close_matches(name[:50], _known_zones(), 1)
        hint = f"did you mean {near[0]}?" if near else "write it like Europe/Berlin"
        raise InvalidArgument("repeat.tz", f"{name!r} is not a known time zone; {hint}") from None


def _listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def planned_times(repeat: Repeat, after: int | None, created_at: int) -> Iterator[int]:
    """The planned times after `after`, the last one, or from the start. `every` counts from `after`."""
    start = created_at if repeat.start is None else to_micros(repeat.start)
    end = LATEST if repeat.end is None else to_micros(repeat.end)
    for planned in _steps(repeat, after, start) if repeat.every is not None else _times_of_day(repeat, after, start):
        if planned > end:
            return
        yield planned


def _steps(repeat: Repeat, after: int | None, start: int) -> Iterator[int]:
    step = repeat.step
    assert step is not None  # the caller checked `every`
    if repeat.start is not None and (after is None or after < start):
        planned = start
    else:
        planned = (start if after is None else after) + step
    while planned <= LATEST:
        yield planned
        planned += step


def _times_of_day(repeat: Repeat, after: int | None, start: int) -> Iterator[int]:
    begin = start - 1 if after is None else max(after, start - 1)
    return moments_after(begin, repeat.expression, repeat.zone, repeat.on_gap, repeat.on_overlap)


def first_time(repeat: Repeat, now: int, anchor: int | None = None) -> int | None:
    """The first planned time from now on, for a schedule planned now; None if there is none.

    Earlier times were never planned, so there is nothing to catch up. `every` counts from its anchor (a planned time of
    this schedule), else from its start, else from now.
    """
    step = repeat.step
    if step is None:
        return next(planned_times(repeat, now, now), None)
    start = None if repeat.start is None else to_micros(repeat.start)
    if anchor is not None and (start is None or anchor >= start):
        planned = anchor + ((now - anchor) // step + 1) * step
    elif start is not None:
        planned = max(start, start - (start - now) // step * step)
    else:
        planned = now + step
    return planned if planned <= (LATEST if repeat.end is None else to_micros(repeat.end)) else None


def next_times(repeat: Repeat, count: int, *, after: datetime, anchor: datetime | None = None) -> list[datetime]:
    """The next planned times, strictly after `after`, for display."""
    since = to_micros(after)
    first = first_time(repeat, since, None if anchor is None else to_micros(anchor))
    if first == since:
        first = next(planned_times(repeat, first, first), None)
    if first is None or count < 1:
        return []
    return [from_micros(first), *map(from_micros, islice(planned_times(repeat, first, first), count - 1))]
