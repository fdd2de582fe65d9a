"""What was missed while nothing fired: which planned times are made up for, and which are passed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, takewhile

from longshore.core.moments import SECOND, to_micros
from longshore.core.planned_times import planned_times
from longshore.core.repeat import Repeat

ON_TIME = 60 * SECOND
"""Under `catch_up="none"` a run this late still counts as on time: a tick is never exact."""
MOST_MADE_UP = 20
"""How many missed runs of a schedule one pass makes up for under `catch_up="all"`; the next pass goes on. A few, so
that many who have slept get on together."""
MOST_MISSED = 5_000
"""How many missed runs are made up for in all: the last ones, three days of minutes and more. Older ones are passed
over, or a schedule of every second that slept for a year would bury its queue."""
_LOOKBACKS = tuple(4 * 8**further for further in range(10))
"""How far to look back for the last run, in the shortest steps of an expression: so few are walked through."""


def due_runs(
    repeat: Repeat, first: int, now: int, left: int | None, most: int = MOST_MADE_UP
) -> tuple[list[int], int | None]:
    """Which planned times from `first` on to run now, and the next one to wait for (None: no more).

    `left` is how many runs the limit still allows, `most` how many are wanted in this pass.
    """
    due, upcoming = _due_runs(repeat, first, now, most if left is None else min(most, left))
    return list(due), upcoming


@lru_cache(maxsize=64)  # many schedules come at the same times: the whole hour, every minute
def _due_runs(repeat: Repeat, first: int, now: int, most: int) -> tuple[tuple[int, ...], int | None]:
    begin = skip_missed(repeat, first, now)
    due, upcoming = due_now(repeat, chain([begin], planned_times(repeat, begin, begin)), now, most)
    return tuple(due), upcoming


def due_now(repeat: Repeat, times: Iterator[int], now: int, most: int = MOST_MADE_UP) -> tuple[list[int], int | None]:
    """Of these planned times those to run now, by the catch-up policy, and the next one to wait for."""
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
    """Where to begin counting from `first`, past those missed runs that are passed over anyway.

    A schedule that slept for a year is not walked run by run: `every` is a division, and for cron the last run is
    looked for further and further back.
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
    """The first of the last `MOST_MISSED` planned times, or `first` if there are not so many."""
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
        lookback *= max(2, MOST_MISSED * 11 // 10 // (len(found) + 1))  # as if they came as often before
