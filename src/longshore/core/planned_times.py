"""When a repetition comes: its planned times in order, one after the other without drift."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from longshore.core.moments import LATEST, from_micros, to_micros
from longshore.core.repeat import Repeat
from longshore.core.wall_clock import moments_after


def planned_times(repeat: Repeat, after: int | None, created_at: int) -> Iterator[int]:
    """The planned times after `after` (the last planned one), or from the beginning; `every` is anchored to it."""
    start = created_at if repeat.start is None else to_micros(repeat.start)
    end = LATEST if repeat.end is None else to_micros(repeat.end)
    for planned in _steps(repeat, after, start) if repeat.every is not None else _times_of_day(repeat, after, start):
        if planned > end:
            return
        yield planned


def _steps(repeat: Repeat, after: int | None, start: int) -> Iterator[int]:
    step = repeat.step
    assert step is not None  # it is an interval
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
    """The first planned time from now on, for a plan that is made now; None if there is none.

    What lies before now was never planned, so nothing of it is made up for. `every` is counted from its anchor (a
    planned time of this schedule) if it has one, else from its start, else from now.
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
    """The next few times, for showing: strictly after `after`."""
    since = to_micros(after)
    first = first_time(repeat, since, None if anchor is None else to_micros(anchor))
    if first == since:
        first = next(planned_times(repeat, first, first), None)
    if first is None or count < 1:
        return []
    return [from_micros(first), *map(from_micros, islice(planned_times(repeat, first, first), count - 1))]
