"""A DataFrame's columns as jobs: which there may be, of which types, and what a row becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from longshore.backends.staging import text_of
from longshore.core.errors import InvalidArgument
from longshore.core.record import record_of
from longshore.runtime.adding import job_from

Check = Callable[[DataType], bool]


def _is(*kinds: type[DataType]) -> Check:
    return lambda found: isinstance(found, kinds)


def _names(found: DataType) -> bool:
    return isinstance(found, ArrayType) and isinstance(found.elementType, StringType)


def _seconds(found: DataType) -> bool:
    return isinstance(found, NumericType) and not isinstance(found, DecimalType)


_TEXT = (_is(StringType), "text")
_NUMBER = (_is(IntegralType), "a whole number")
_MOMENT = (_is(TimestampType), "a timestamp")
_SECONDS = (_seconds, "seconds, as a number")

_KNOWN: Mapping[str, tuple[Check, str]] = {
    "type": _TEXT,
    "data": (_is(StringType, StructType, MapType, ArrayType), "a struct, a map, an array, or JSON as text"),
    "queue": _TEXT,
    "tags": (_names, "an array of text"),
    "priority": _NUMBER,
    "run_at": _MOMENT,
    "delay": _SECONDS,
    "expires_at": _MOMENT,
    "timeout": _SECONDS,
    "attempts": _NUMBER,
    "max_crashes": _NUMBER,
    "lifo": (_is(BooleanType), "true or false"),
    "job_id": _TEXT,
    "idempotency_key": _TEXT,
    "concurrency_key": _TEXT,
    "parent_id": _TEXT,
}


def check_columns(schema: StructType) -> None:
    """Whether these columns can become jobs; what cannot is named, with what it should be."""
    for field in schema.fields:
        if field.name not in _KNOWN:
            raise InvalidArgument(
                f"column {field.name}", f"is nothing that a job has; the columns may be {', '.join(_KNOWN)}"
            )
        fits, wanted = _KNOWN[field.name]
        if not fits(field.dataType):
            raise InvalidArgument(f"column {field.name}", f"must be {wanted}, not {field.dataType.simpleString()}")
    if "type" not in schema.fieldNames():
        raise InvalidArgument("column type", "is missing: every job has one")


def staged_text(row: Mapping[str, Any], *, data_is_text: bool) -> str:
    """A row as a job that was checked and can be laid aside; a null is what is left out."""
    given = {name: value for name, value in row.items() if value is not None}
    try:
        if "type" not in given:
            raise InvalidArgument("type", "is null: every job has one")
        if data_is_text and "data" in given:
            given["data"] = _parsed(given["data"])
        for name in ("run_at", "expires_at"):
            if name in given:
                given[name] = _aware(given[name])
        return text_of(record_of(job_from(**given), 0), chosen="job_id" in given)
    except InvalidArgument as error:
        raise InvalidArgument(f"column {error.field}", error.problem) from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArgument(
            "data", f"must be JSON where it is text, and this is not: {text[:80]!r}; use to_json(…), or a struct"
        ) from None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
