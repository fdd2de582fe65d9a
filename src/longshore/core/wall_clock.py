"""From what a clock on the wall shows to the moments at which it shows it: one, none or two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from longshore.core.cron_expression import CronExpression
from longshore.core.moments import LATEST, SECOND, from_micros, to_micros

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
