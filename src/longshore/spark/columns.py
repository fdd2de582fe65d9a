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

from longshore.backends.bulk_insert import text_of
from longshore.core.errors import InvalidArgument
from longshore.core.job_record import Record, record_of
from longshore.core.validation import check_json, new_id
from longshore.runtime.job_options import job_from

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


_OF_ONE_ROW = frozenset({"data", "job_id", "idempotency_key"})
_KNOWN_AT_ONCE = 10_000


class RowsAsTexts:
    """Rows as jobs that were checked and can be laid aside; what many rows have in common is checked once."""

    def __init__(self, *, data_is_text: bool) -> None:
        self._data_is_text = data_is_text
        self._alike: dict[tuple[Any, ...], Record] = {}

    def text(self, row: Mapping[str, Any]) -> str:
        """A null is what is left out. InvalidArgument names the column."""
        try:
            return self._text({name: value for name, value in row.items() if value is not None})
        except InvalidArgument as error:
            raise InvalidArgument(f"column {error.field}", error.problem) from None

    def _text(self, given: dict[str, Any]) -> str:
        data = given.pop("data", None)
        if self._data_is_text and data is not None:
            data = _parsed(data)
        if _OF_ONE_ROW.isdisjoint(given) and "tags" not in given:
            record = self._like(given)
            record.id = new_id()
            record.payload = check_json("data", data)
            return text_of(record, chosen=False)
        return text_of(_record(given, data), chosen="job_id" in given)

    def _like(self, given: dict[str, Any]) -> Record:
        """A record of the same columns, checked; its id and data are the next row's to set."""
        values = tuple(given.items())
        if (known := self._alike.get(values)) is None:
            if len(self._alike) >= _KNOWN_AT_ONCE:
                self._alike.clear()
            known = self._alike[values] = _record(given, None)
        return known


def _record(given: dict[str, Any], data: Any) -> Record:
    if "type" not in given:
        raise InvalidArgument("type", "is null: every job has one")
    for name in ("run_at", "expires_at"):
        if name in given:
            given[name] = _aware(given[name])
    return record_of(job_from(**given, data=data), 0)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArgument(
            "data", f"must be JSON where it is text, and this is not: {text[:80]!r}; use to_json(…), or a struct"
        ) from None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
