"""Limits: how many more jobs of a queue or key may start now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from longshore.core.errors import InvalidArgument
from longshore.core.times import Duration, check_duration, optional_span
from longshore.core.validation import check_number

_MICROSECOND = timedelta(microseconds=1)
UNLIMITED = 2**62
"""Free slots where there is no limit: more than any number of jobs, and still an integer."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts per window of `per`, counted from 1970: `Rate(10, per=60)`. See docs/limits.md."""

    count: int
    per: Duration

    def __post_init__(self) -> None:
        check_number("rate.count", self.count, least=1)
        object.__setattr__(self, "per", timedelta(microseconds=check_duration("rate.per", self.per)))

    @property
    def per_micros(self) -> int:
        """The window's length in microseconds."""
        assert isinstance(self.per, timedelta)  # __post_init__ converted it
        return self.per // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Limits:
    """A queue's limits: jobs running at once, in all and per key, and starts per window. None means no limit."""

    running: int | None = None
    per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """How many jobs have started in the window that began at `start`."""

    start: int = 0
    count: int = 0

    def at(self, rate: Rate, now: int) -> Window:
        """The window that contains `now`: this one or a new one. A small step back of the clock opens no new window."""
        start = now - now % rate.per_micros
        return self if start <= self.start <= start + rate.per_micros else Window(start, 0)

    def after(self, starts: int) -> Window:
        """The same window with this many more starts."""
        return Window(self.start, self.count + starts)

    def end(self, rate: Rate) -> int:
        """When the next window begins under this rate."""
        return self.start - self.start % rate.per_micros + rate.per_micros


UNUSED = Window()
"""A window in which nothing has started."""


def window_of(start: int, count: int) -> Window:
    """A window from its two stored numbers; unused windows share one object."""
    return Window(start, count) if count else UNUSED


def free_slots_under(limit: int | None, running: int) -> int:
    """How many more jobs may run at once."""
    return UNLIMITED if limit is None else max(0, limit - running)


def free_slots_in(rate: Rate | None, window: Window, now: int) -> int:
    """How many more jobs may start in the current window."""
    return UNLIMITED if rate is None else max(0, rate.count - window.at(rate, now).count)


def check_limit(field: str, value: object) -> int | None:
    """Check a limit on running jobs: None for no limit, else at least 1. To stop a queue, pause it."""
    return None if value is None else check_number(field, value, least=1)


def check_rate(field: str, value: object) -> Rate | None:
    """Check a rate; None means no limit."""
    if value is None or isinstance(value, Rate):
        return value
    raise InvalidArgument(field, f"must be Rate(count, per), or None for no limit; got {type(value).__name__}")


def rate_of(count: int | None, per_micros: int | None) -> Rate | None:
    """A rate from its two stored numbers."""
    span = optional_span(per_micros)
    return None if count is None or span is None else Rate(count, span)
