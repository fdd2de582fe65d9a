"""Times as integer microseconds since 1970 in UTC, and conversions from and to `datetime`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from longshore.core.errors import InvalidArgument

Duration = timedelta | float | int
"""A length of time: a timedelta, or a number of seconds."""

Moment = datetime | timedelta | float | int
"""A point in time, or a duration that the store adds to its own clock."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
EARLIEST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """An aware datetime as microseconds."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


@lru_cache(maxsize=4096)  # jobs of one batch share most of their times
def from_micros(micros: int) -> datetime:
    """Microseconds as an aware UTC datetime."""
    return _EPOCH + timedelta(microseconds=micros)


def optional_moment(micros: int | None) -> datetime | None:
    """Like `from_micros`, but pass None through."""
    return None if micros is None else from_micros(micros)


def optional_span(micros: int | None) -> timedelta | None:
    """Convert microseconds to a duration; pass None through."""
    return None if micros is None else timedelta(microseconds=micros)


def check_datetime(field: str, value: object) -> int:
    """Return an aware datetime as microseconds. Reject a naive one: its time zone is unknown."""
    if not isinstance(value, datetime):
        raise InvalidArgument(field, f"must be an aware datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidArgument(field, "must be an aware datetime; this one has no time zone (add tzinfo=UTC)")
    micros = to_micros(value)
    if not EARLIEST <= micros <= LATEST:
        raise InvalidArgument(field, "must lie between the years 1 and 9999 in UTC")
    return micros


def check_duration(field: str, value: object, *, positive: bool = True) -> int:
    """Return a timedelta or a number of seconds as microseconds."""
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:  # NaN
            raise InvalidArgument(field, "must be a number of seconds, not nan")
        micros = LATEST + 1 if value > LATEST else -1 if value < 0 else round(value * SECOND)
    else:
        raise InvalidArgument(field, f"must be a timedelta or a number of seconds, not {type(value).__name__}")
    if micros < 0 or (positive and micros == 0):
        raise InvalidArgument(field, f"must be {'more than' if positive else 'at least'} 0 seconds, not {value}")
    if micros > LATEST:
        raise InvalidArgument(field, "must not reach beyond the year 9999")
    return micros


def check_moment(field: str, value: object, now: int) -> int:
    """Return a point in time as microseconds. A duration counts from `now`, the store's clock."""
    if isinstance(value, datetime):
        return check_datetime(field, value)
    micros = now + check_duration(field, value, positive=False)
    if micros > LATEST:
        raise InvalidArgument(field, "must not reach beyond the year 9999")
    return micros


def span(value: Duration | None) -> timedelta | None:
    """Return a duration as a timedelta."""
    return value if value is None or isinstance(value, timedelta) else timedelta(seconds=value)


def duration_text(length: timedelta) -> str:
    """A duration for people: seconds, minutes or hours by its size."""
    seconds = length.total_seconds()
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
