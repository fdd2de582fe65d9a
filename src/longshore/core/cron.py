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
_RANGES = ("0 to 59", "0 to 59", "0 to 23", "1 to 31 or L", "1 to 12 or JAN to DEC", "0 to 7 or SUN to SAT")
_HOURS = frozenset(range(24))
_SOME_DAY = datetime(2026, 1, 1)  # noqa: DTZ001 - cron expressions are matched in naive local time


def written_out(text: str) -> str:
    """The expression with its fields separated by single spaces and an alias expanded."""
    fields = " ".join(text.split())
    return _ALIASES.get(fields, fields)


class CronExpression:
    """A cron expression of five fields, or six with seconds first, with the rules of Debian's cron."""

    __slots__ = ("_text", "names_hours", "shortest_step")

    def __init__(self, text: str) -> None:
        self._text = written_out(text)
        read = CronSim(self._text, _SOME_DAY)
        self.names_hours = read.hours != _HOURS
        """Whether it names certain hours of the day. `*`, `*/1` and `0-23` name every hour, so such an expression
        follows elapsed minutes instead of times of day."""
        self.shortest_step = 60 if len(read.seconds) == 1 else 1
        """The shortest time between two occurrences, in seconds."""

    def times_after(self, wall: datetime) -> Iterator[datetime]:
        """The next occurrences as naive local times, ignoring DST."""
        try:
            yield from CronSim(self._text, wall)
        except (OverflowError, CronSimError):  # the year 9999 is passed, or no day ever matches
            return


@lru_cache(maxsize=1024)  # schedules share few expressions
def _read(text: str) -> CronExpression:
    return CronExpression(text)


def read_cron(text: object) -> CronExpression:
    """Parse the expression, or raise InvalidArgument that says what is wrong."""
    if not isinstance(text, str):
        raise InvalidArgument("repeat.cron", f"must be text, not {type(text).__name__}")
    try:
        return _read(text)
    except CronSimError as error:
        problem = _describe_error(text, str(error))
        raise InvalidArgument("repeat.cron", f"{text!r} is not a cron expression: {problem}") from None


def _describe_error(text: str, problem: str) -> str:
    """Say what is wrong with the expression and how to correct it."""
    fields = written_out(text).split()
    if len(fields) not in (5, 6):
        return f"it has {len(fields)} fields; write five (minute hour day month weekday), or six with seconds first"
    named = dict(zip(_FIELDS[-len(fields) :], fields, strict=True))
    allowed = dict(zip(_FIELDS, _RANGES, strict=True))
    for name, field in named.items():
        if problem == f"Bad {name}":
            in_month = name == "day-of-month" and named["month"] != "*"
            why = f", in the month {named['month']}" if in_month else f"; {name.partition('-')[0]}s are {allowed[name]}"
            return f"{field!r} is not a valid {name.replace('-', ' ')}{why}"
    return problem


_DAY = 86_400 * SECOND
_MICROSECOND = timedelta(microseconds=1)


def moments_after(
    begin: int, expression: CronExpression, zone: ZoneInfo, on_gap: str, on_overlap: str
) -> Iterator[int]:
    """The occurrences after `begin`, in order, as the local time of the zone shows them.

    `on_gap` and `on_overlap` decide about times of day that a change of the clocks skips or repeats. They do not apply
    to an expression that names no hour: it runs at every matching minute, in both passes of a repeated hour.
    """
    if not expression.names_hours:
        on_gap, on_overlap = "skip", "both"
    last = begin
    try:
        wall = _search_start(begin, zone)
    except OverflowError:  # the zone's calendar ends before UTC's
        return
    for moment in _in_order(wall, expression, zone, on_gap, on_overlap):
        if moment > LATEST:
            return
        if moment > last:  # several skipped times map to one moment, which may be an occurrence itself
            last = moment
            yield moment


def _in_order(
    wall: datetime, expression: CronExpression, zone: ZoneInfo, on_gap: str, on_overlap: str
) -> Iterator[int]:
    again: deque[int] = deque()
    """Second passes of repeated times, held until the order reaches them."""
    for shown in expression.times_after(wall):
        earlier = zone.utcoffset(shown) or timedelta()
        later = zone.utcoffset(shown.replace(fold=1)) or timedelta()
        moment = _as_if_in_utc(shown) - earlier // _MICROSECOND
        twice = None
        if earlier > later:  # the clocks are set back: this time occurs twice
            second = _as_if_in_utc(shown) - later // _MICROSECOND
            if on_overlap == "second":
                moment = second
            elif on_overlap == "both":
                twice = second
        elif earlier < later:  # the clocks are set forward: this time is skipped
            if on_gap == "skip":
                continue
            moment = _when_set_forward(moment - (later - earlier) // _MICROSECOND, moment, zone)
        while again and again[0] <= moment:
            yield again.popleft()
        yield moment
        if twice is not None:
            again.append(twice)
    yield from again


def _search_start(begin: int, zone: ZoneInfo) -> datetime:
    """The local time at `begin`, or earlier if the clocks are set back within a day: those times occur again."""
    offset = min(_offset(begin, zone), _offset(min(begin + _DAY, LATEST - _DAY), zone))
    return from_micros(begin).replace(tzinfo=None) + timedelta(microseconds=offset)


def _when_set_forward(before: int, after: int, zone: ZoneInfo) -> int:
    """The moment between these two at which the clocks are set forward, to the second."""
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
