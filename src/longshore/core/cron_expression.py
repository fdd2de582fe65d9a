"""A cron expression: read once, and the times of day it names, on a clock without a zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError

from longshore.core.errors import InvalidArgument

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
    """The expression in fields, however it is spaced; an alias as what it stands for."""
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
        """The times it names after this one, as a clock on the wall shows them that nobody ever sets."""
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
    """What is wrong, for somebody who has to put it right."""
    fields = written_out(text).split()
    if len(fields) not in (5, 6):
        return f"it has {len(fields)} fields; five are right (minute hour day month weekday), or six with seconds first"
    named = dict(zip(_FIELDS[-len(fields) :], fields, strict=True))
    for name, field in named.items():
        if problem == f"Bad {name}":
            never = f", in the month {named['month']}" if name == "day-of-month" and named["month"] != "*" else ""
            return f"{field!r} is no {name.replace('-', ' ')} that there is{never}"
    return problem
