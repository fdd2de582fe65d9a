"""Parse durations, times and other values of the command line."""

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
    """Return the seconds of 90, 90s, 5m, 2h, 1d or 1w."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        must = "not be negative" if text.strip().startswith("-") else "be a duration such as 90s, 5m, 2h or 1d"
        raise InvalidArgument(field, f"must {must}; got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def moment(field: str, text: str) -> datetime | float:
    """Return a time with a zone, such as 2026-05-01T12:00Z, or a duration from now in seconds."""
    if _SPAN.fullmatch(text.strip().lower()):
        return duration(field, text)
    return exact_time(field, text)


def exact_time(field: str, text: str) -> datetime:
    """Return a time; refuses one without a time zone."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            field, f"must be a time such as 2026-05-01T12:00Z, or a duration such as 5m where allowed; got {text!r}"
        ) from None
    if found.tzinfo is None:
        raise InvalidArgument(
            field, f"needs a time zone; write {text.strip()}Z for UTC, or append an offset such as +02:00"
        )
    return found


def past(field: str, text: str) -> datetime:
    """Return a time; a duration is subtracted from this machine's clock."""
    found = moment(field, text)
    return found if isinstance(found, datetime) else machine_time() - timedelta(seconds=found)


def limit(field: str, text: str) -> int | None:
    """Return a number, or None for `none`, which means no limit."""
    if text.strip().lower() == _NONE:
        return None
    if not text.strip().isdecimal():
        raise InvalidArgument(field, f"must be a number, or none for no limit; got {text!r}")
    return int(text)


def rate(field: str, text: str) -> Rate | None:
    """Return a count per duration, such as 10/1m, or None for `none`, which means no limit."""
    from longshore.core.limits import Rate

    if text.strip().lower() == _NONE:
        return None
    count, slash, per = text.partition("/")
    if not slash or not count.strip().isdecimal():
        raise InvalidArgument(
            field, f"must be a rate such as 10/1m (10 starts per minute), or none for no limit; got {text!r}"
        )
    seconds = duration(field, per if per.strip()[:1].isdigit() else f"1{per.strip()}")
    try:
        return Rate(int(count), seconds)
    except InvalidArgument as error:
        raise InvalidArgument(field, error.problem) from None


def backoff(field: str, text: str) -> float | dict[str, Any]:
    """Return the wait between attempts from 5s, exponential:2s, or JSON as in the HTTP API."""
    if text.lstrip().startswith("{"):
        found = read_json(field, text.encode("utf-8", "surrogateescape"))
        assert isinstance(found, dict)  # the text starts with a brace and is valid JSON
        return found
    kind, colon, wait = text.partition(":")
    if not colon:
        return duration(field, text)
    return {"type": kind.strip(), "delay": duration(field, wait)}


def keep_count(field: str, text: str | None) -> bool | int:
    """Return whether to remove final jobs (yes or no), or how many of them to keep."""
    if text is None or text.lower() in ("no", "false"):
        return False
    if text.lower() in ("yes", "true"):
        return True
    if not text.isdecimal():
        raise InvalidArgument(field, f"must be yes, no, or how many to keep; got {text!r}")
    return int(text)


def data(text: str | None) -> Any:
    """Return a job's data from JSON text, @file, or - for standard input."""
    if text is None:
        return None
    if text == "-":
        return read_json("data", sys.stdin.buffer.read(LARGEST_PAYLOAD + 1))
    if text.startswith("@"):
        return read_json("data", file_bytes("data", text[1:]))
    try:
        return read_json("data", text.encode("utf-8", "surrogateescape"))
    except InvalidArgument as error:
        raise InvalidArgument("data", f"{error.problem}; quote a string as JSON: '{json.dumps('hello')}'") from None


def file_bytes(field: str, name: str) -> bytes:
    """Read a file; an unreadable one is an invalid argument."""
    try:
        return Path(name).read_bytes()
    except OSError as error:
        hint = "" if Path(name).is_absolute() else "; the path is relative to the working directory"
        raise InvalidArgument(field, f"cannot read {name}: {error.strerror}{hint}") from None


def paths(given: list[str] | None) -> dict[str, Any]:
    """Parse filters on data such as `address.city=Bergen`. A value that is valid JSON is read as JSON."""
    found: dict[str, Any] = {}
    for one in given or []:
        path, equals, value = one.partition("=")
        if not path or not equals:
            raise InvalidArgument("data", f"must be path=value, such as address.city=Bergen; got {one!r}")
        try:
            found[path] = json.loads(value)
        except ValueError:
            found[path] = value
    return found
