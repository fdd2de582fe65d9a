"""What Spark asks for of a table, told to the store where the store means the same by it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from longshore.backends.export import COLUMNS, Condition, Kind, Operator
from longshore.core.times import to_micros

_COMPARED: dict[type[Filter], Operator] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_ORDERED = (Kind.INTEGER, Kind.MOMENT)
_LARGEST = 2**63


def condition_of(wanted: Filter, table: str) -> Condition | None:
    """The same for the store, or None if it is left to Spark: text is compared for equality only, as orders differ."""
    path: tuple[str, ...] = getattr(wanted, "attribute", ())
    if len(path) != 1 or path[0] not in COLUMNS[table]:
        return None
    column = path[0]
    kind = COLUMNS[table][column]
    if kind not in (*_ORDERED, Kind.TEXT):
        return None
    if isinstance(wanted, IsNull):
        return Condition(column, "is null")
    if isinstance(wanted, IsNotNull):
        return Condition(column, "is not null")
    if isinstance(wanted, In):
        values = [_stored(value, kind) for value in wanted.value]
        return None if not values or None in values else Condition(column, "in", tuple(values))
    operator = _COMPARED.get(type(wanted))
    if operator is None or (operator != "=" and kind not in _ORDERED):
        return None
    value = _stored(getattr(wanted, "value", None), kind)
    return None if value is None else Condition(column, operator, value)


def _stored(value: Any, kind: Kind) -> Any:
    """The value as the store keeps it, or None if it keeps no such value."""
    if kind is Kind.MOMENT and isinstance(value, datetime):
        return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))
    if kind is Kind.INTEGER and type(value) is int and -_LARGEST <= value < _LARGEST:
        return value
    if kind is Kind.TEXT and isinstance(value, str) and "\0" not in value:
        return value
    return None
