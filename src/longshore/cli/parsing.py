"""Parses durations, times and other values given on the command line."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore.core.clock import machine_time
from longshore.core.errors import InvalidArgument
from longshore.core.validation import LARGEST_PAYLOAD, read_json

if TYPE_CHECKING:
    from longshore.core.limits import Rate

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw]?)")
_NONE = "none"


def duration(field: str, text: str) -> float:
    """Seconds from 90, 90s, 5m, 2h, 1d or 1w."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(field, f"must be a length of time like 90s, 5m, 2h or 1d, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def moment(field: str, text: str) -> datetime | float:
    """A time with its zone, like 2026-05-01T12:00Z, or a length of time from now on."""
    if _SPAN.fullmatch(text.strip().lower()):
        return duration(field, text)
    return exact_time(field, text)


def exact_time(field: str, text: str) -> datetime:
    """A time with its zone."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            field, f"must be a time like 2026-05-01T12:00Z (or, where it may, a span like 5m), not {text!r}"
        ) from None
    if found.tzinfo is None:
        raise InvalidArgument(field, f"needs a time zone: write {text.strip()}Z for UTC, or +02:00 at its end")
    return found


def past(field: str, text: str) -> datetime:
    """A time, or a length of time before now, by the clock of this machine."""
    found = moment(field, text)
    return found if isinstance(found, datetime) else machine_time() - timedelta(seconds=found)


def limit(field: str, text: str) -> int | None:
    """A number, or `none` for no limit."""
    if text.strip().lower() == _NONE:
        return None
    if not text.strip().isdecimal():
        raise InvalidArgument(field, f"must be a number, or none for no limit; not {text!r}")
    return int(text)


def rate(field: str, text: str) -> Rate | None:
    """A count per time span, like 10/1m, or `none` for no limit."""
    from longshore.core.limits import Rate

    if text.strip().lower() == _NONE:
        return None
    count, slash, per = text.partition("/")
    if not slash or not count.strip().isdecimal():
        raise InvalidArgument(field, f"must be like 10/1m (ten starts a minute), or none for no limit; not {text!r}")
    seconds = duration(field, per if per.strip()[:1].isdigit() else f"1{per.strip()}")
    try:
        return Rate(int(count), seconds)
    except InvalidArgument as error:
        raise InvalidArgument(field, error.problem) from None


def backoff(field: str, text: str) -> float | dict[str, Any]:
    """The wait between tries: 5s, exponential:2s, or JSON as the API takes it."""
    if text.lstrip().startswith("{"):
        found = read_json(field, text.encode("utf-8", "surrogateescape"))
        assert isinstance(found, dict)  # it begins like one, and was read
        return found
    kind, colon, wait = text.partition(":")
    if not colon:
        return duration(field, text)
    return {"type": kind.strip(), "delay": duration(field, wait)}


def kept(field: str, text: str | None) -> bool | int:
    """Whether to remove what has ended, or how many to keep: yes, no or a number."""
    if text is None or text.lower() in ("no", "false"):
        return False
    if text.lower() in ("yes", "true"):
        return True
    if not text.isdecimal():
        raise InvalidArgument(field, f"must be yes, no, or how many to keep; not {text!r}")
    return int(text)


def data(text: str | None) -> Any:
    """A job's data: JSON, @file with JSON in it, or - for JSON on standard input."""
    if text is None:
        return None
    if text == "-":
        return read_json("data", sys.stdin.buffer.read(LARGEST_PAYLOAD + 1))
    if text.startswith("@"):
        return read_json("data", file_bytes("data", text[1:]))
    try:
        return read_json("data", text.encode("utf-8", "surrogateescape"))
    except InvalidArgument as error:
        raise InvalidArgument("data", f"{error.problem}; text needs its quotes: '{json.dumps('hello')}'") from None


def file_bytes(field: str, name: str) -> bytes:
    """What is in a file, or a plain word for why it cannot be read."""
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise InvalidArgument(field, f"{name} cannot be read: {error.strerror}") from None


def paths(given: list[str] | None) -> dict[str, Any]:
    """`address.city=Bergen` and the like, for a filter on data; a value that is JSON is taken as JSON."""
    found: dict[str, Any] = {}
    for one in given or []:
        path, equals, value = one.partition("=")
        if not path or not equals:
            raise InvalidArgument("data", f"must be written path=value, like address.city=Bergen; not {one!r}")
        try:
            found[path] = json.loads(value)
        except ValueError:
            found[path] = value
    return found
