"""Axes and periods: where ticks are, and how numbers, durations and times are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_TIME_STEPS = (
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY, 91 * _DAY, 364 * _DAY),
)
_SPAN_MARKS = (
    *(1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
    *(60.0, 600.0, 3_600.0, 6 * 3_600.0, 86_400.0, 7 * 86_400.0, 28 * 86_400.0, 364 * 86_400.0),
)


@dataclass(frozen=True)
class Scale:
    """From values to places, with the marks along the way."""

    place: Callable[[float], float]
    marks: Sequence[tuple[float, str]]
    """Values and what is written beside them."""


def linear(most: float, start: float, end: float, marks: int = 4) -> Scale:
    """From nothing to at least `most`, at round numbers."""
    step = _round_step(max(most, 1e-9) / marks)
    top = step * max(1, math.ceil(most / step - 1e-9))
    values = [step * number for number in range(round(top / step) + 1)]
    return Scale(lambda value: start + (end - start) * value / top, [(value, short(value)) for value in values])


def spans(least: float, most: float, start: float, end: float) -> Scale:
    """Seconds on a logarithmic axis, marked where people have words for them."""
    least = max(least, 1e-6)
    low = max((mark for mark in _SPAN_MARKS if mark <= least), default=_SPAN_MARKS[0])
    high = min((mark for mark in _SPAN_MARKS if mark >= max(most, low * 10)), default=max(most, low * 10))
    width = math.log(high / low)

    def place(value: float) -> float:
        return start + (end - start) * math.log(min(max(value, low), high) / low) / width

    marks = [mark for mark in _SPAN_MARKS if low <= mark <= high]
    every = 1 + (len(marks) - 1) // 6
    return Scale(place, [(mark, span(mark)) for mark in marks[::every]])


def times(first: int, last: int, start: float, end: float, marks: int = 8) -> Scale:
    """Seconds since 1970 on an axis in UTC."""
    length = max(last - first, 1)
    step = next((step for step in _TIME_STEPS if length / step <= marks), _TIME_STEPS[-1])
    # weeks begin on a Monday, as the first of 1970 was a Thursday
    offset = 4 * _DAY if step >= 7 * _DAY else 0
    begin = -(-(first - offset) // step) * step + offset
    values = list(range(begin, last + 1, step)) or [first]
    return Scale(
        lambda value: start + (end - start) * (value - first) / length,
        [(value, moment(value, step, with_day=place == 0)) for place, value in enumerate(values)],
    )


def bucket_size(length: int, finest: int, most: int = 120) -> int:
    """Seconds of a bucket: at most `most` buckets cover the length, and none is finer than `finest`."""
    return next(step for step in (*_TIME_STEPS, max(length, 1)) if step >= finest and length / step <= most)


def moment(at: int, step: int, *, with_day: bool = False) -> str:
    """A time as a mark of an axis whose marks are so far apart."""
    when = datetime.fromtimestamp(at, UTC)
    if step >= _DAY:
        return f"{when:%b} {when.day}" if step < 91 * _DAY else f"{when:%b %Y}"
    at_midnight = (when.hour, when.minute) == (0, 0)
    if at_midnight:
        return f"{when:%b} {when.day}"
    return f"{when:%b} {when.day}, {when:%H:%M}" if with_day else f"{when:%H:%M}"


def exact(at: int) -> str:
    """A time in full."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


_SPAN_WORDS = (
    (1e-6, 1e-3, "µs"),
    (1e-3, 1, "ms"),
    (1, 120, "s"),
    (60, 7_200, "min"),
    (3_600, 172_800, "h"),
    (86_400, math.inf, "d"),
)


def span(seconds: float | None) -> str:
    """A span as people say it: 12 ms, 3.4 s, 2 min."""
    if seconds is None:
        return "–"
    if seconds <= 0:
        return "0 s"
    whole = next(
        ((unit, word) for unit, _, word in reversed(_SPAN_WORDS) if unit >= _MINUTE and seconds % unit == 0), None
    )
    unit, word = whole or next((unit, word) for unit, end, word in _SPAN_WORDS if seconds < end)
    value = seconds / unit
    return f"{value:.0f} {word}" if value >= 10 or value == round(value) else f"{value:.1f} {word}"


def short(value: float) -> str:
    """A number in few characters: 950, 1.2k, 3M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.1f}".removesuffix(".0") + letter
    return f"{value:.3g}"


def share(value: float | None) -> str:
    """A share of all as per cent."""
    if value is None:
        return "–"
    if 0 < value < 0.0005:
        return "< 0.1 %"
    caption = f"{value:.1%}" if value < 0.0995 else f"{value:.0%}"
    return caption.replace(".0%", "%").replace("%", " %")


def count(value: int) -> str:
    """A number in full."""
    return f"{value:,}"


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough - 1e-12)


@dataclass(frozen=True)
class Periods:
    """When the first begins, how long each is, and how many there are; times in seconds since 1970."""

    first: int
    step: int
    count: int

    @property
    def starts(self) -> range:
        """When each begins."""
        return range(self.first, self.end, self.step)

    @property
    def end(self) -> int:
        """When the last one ends."""
        return self.first + self.step * self.count

    def number(self, at: int) -> int:
        """Which one a time lies in."""
        return (at - self.first) // self.step

    def caption(self, number: int) -> str:
        """One of them, in words."""
        start = self.first + number * self.step
        return f"{exact(start)}, {_LENGTHS.get(self.step) or f'{self.step // 60} min'}"


_LENGTHS = {60: "1 min", 3_600: "1 h", 86_400: "1 day", 7 * 86_400: "1 week"}


def periods_between(first: int, last: int, finest: int, fewest: int = 12, most: int = 120) -> Periods:
    """At most `most` periods that cover both times, none finer than `finest`.

    At least a few, with a margin on both sides: what happened within a minute is not drawn as wide as the page.
    """
    step = bucket_size(last - first + finest, finest, most)
    begin = first // step * step
    count = (last - begin) // step + 1
    missing = max(0, fewest - count)
    return Periods(begin - missing // 2 * step, step, count + missing)
