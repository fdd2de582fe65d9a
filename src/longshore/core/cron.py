"""Cron expressions and local time: parsing, time zones and changes of daylight saving time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from longshore.core.errors import InvalidArgument
from longshore.core.times import LATEST, SECOND, from_micros, to_micros

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_HOURS = frozenset(range(24))
_SOME_DAY = datetime(2026, 1, 1)  # noqa: DTZ001 - a clock without a zone is the point here


def written_out(text: str) -> str:
    """The fields of the expression; an alias is replaced by its meaning."""
    fields = " ".join(text.split())
    return _ALIASES.get(fields, fields)


class CronExpression:
    """Five fields (or six, the first being seconds), as Debian's cron reads them."""

    __slots__ = ("_text", "names_hours", "shortest_step")

    def __init__(self, text: str) -> None:
        self._text = written_out(text)
        read = CronSim(self._text, _SOME_DAY)
        self.names_hours = read.hours != _HOURS
        """Whether it speaks of certain hours of the day, or of every one, however that is written: `*`, `*/1`, `0-23`.
        The former are times of day; the latter goes by the minutes that pass."""
        self.shortest_step = 60 if len(read.seconds) == 1 else 1
        """Seconds that lie between two of its times at least."""

    def times_after(self, wall: datetime) -> Iterator[datetime]:
        """The next times, naive and local, ignoring DST."""
        try:
            yield from CronSim(self._text, wall)
        except (OverflowError, CronSimError):  # the calendar ends with the year 9999, or no day ever matches
            return


@lru_cache(maxsize=1024)  # the same few expressions are asked for again and again
def _read(text: str) -> CronExpression:
    return CronExpression(text)


def read_cron(text: object) -> CronExpression:
    """The expression, or InvalidArgument that says what is wrong with it."""
    if not isinstance(text, str):
        raise InvalidArgument("repeat.cron", f"must be text, not {type(text).__name__}")
    try:
        return _read(text)
    except CronSimError as error:
        raise InvalidArgument("repeat.cron", f"{text!r} is not a cron expression: {_told(text, str(error))}") from None


def _told(text: str, problem: str) -> str:
    """A message that says what is wrong and how to correct it."""
    fields = written_out(text).split()
    if len(fields) not in (5, 6):
        return f"it has {len(fields)} fields; five are right (minute hour day month weekday), or six with seconds first"
    named = dict(zip(_FIELDS[-len(fields) :], fields, strict=True))
    for name, field in named.items():
        if problem == f"Bad {name}":
            never = f", in the month {named['month']}" if name == "day-of-month" and named["month"] != "*" else ""
            return f"{field!r} is no {name.replace('-', ' ')} that there is{never}"
    return problem


_DAY = 86_400 * SECOND
_MICROSECOND = timedelta(microseconds=1)


def moments_after(
    begin: int, expression: CronExpression, zone: ZoneInfo, on_gap: str, on_overlap: str
) -> Iterator[int]:
    """The moments after `begin` at which the zone's clocks show a time the expression names, in their order.

    A time of day that is left out or comes twice is treated as told. An expression that names no hour is not asked:
    it runs whenever the clocks show a minute that it names, so in both passes, and at no other moment.
    """
    if not expression.names_hours:
        on_gap, on_overlap = "skip", "both"
    last = begin
    try:
        wall = _first_look(begin, zone)
    except OverflowError:  # the zone's calendar ends before UTC's does
        return
    for moment in _in_order(wall, expression, zone, on_gap, on_overlap):
        if moment > LATEST:
            return
        if moment > last:  # several times that are left out become one moment, which may itself be named
            last = moment
            yield moment


def _in_order(
    wall: datetime, expression: CronExpression, zone: ZoneInfo, on_gap: str, on_overlap: str
) -> Iterator[int]:
    again: deque[int] = deque()
    """Second passes of times whose first pass is over, until the clocks come there."""
    for shown in expression.times_after(wall):
        earlier = zone.utcoffset(shown) or timedelta()
        later = zone.utcoffset(shown.replace(fold=1)) or timedelta()
        moment = _as_if_in_utc(shown) - earlier // _MICROSECOND
        twice = None
        if earlier > later:  # the clocks are set back over it
            second = _as_if_in_utc(shown) - later // _MICROSECOND
            if on_overlap == "second":
                moment = second
            elif on_overlap == "both":
                twice = second
        elif earlier < later:  # the clocks are set forward over it
            if on_gap == "skip":
                continue
            moment = _when_set_forward(moment - (later - earlier) // _MICROSECOND, moment, zone)
        while again and again[0] <= moment:
            yield again.popleft()
        yield moment
        if twice is not None:
            again.append(twice)
    yield from again


def _first_look(begin: int, zone: ZoneInfo) -> datetime:
    """What a clock shows at `begin`, or less if it is about to be set back: those times come again, after `begin`."""
    offset = min(_offset(begin, zone), _offset(min(begin + _DAY, LATEST - _DAY), zone))
    return from_micros(begin).replace(tzinfo=None) + timedelta(microseconds=offset)


def _when_set_forward(before: int, after: int, zone: ZoneInfo) -> int:
    """The very moment between these two at which the clocks are set forward; it is a whole second."""
    was = _offset(before, zone)
    while after - before > SECOND:
        middle = before + (after - before) // (2 * SECOND) * SECOND
        if _offset(middle, zone) == was:
            before = middle
        else:
            after = middle
    return after


def _offset(moment: int, zone: ZoneInfo) -> int:
    return (from_micros(moment).astimezone(zone).utcoffset() or timedelta()) // _MICROSECOND


def _as_if_in_utc(wall: datetime) -> int:
    return to_micros(wall.replace(tzinfo=UTC))
