"""Parallel reads of a store's table: schema, filters and rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow
import pyarrow.compute
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from longshore.backends.export import COLUMNS, Condition, Kind, Operator, Part, Wanted
from longshore.core.times import to_micros
from longshore.spark.options import Address

_NAMES = pyarrow.list_(pyarrow.field("element", pyarrow.string()))
_TYPES: dict[Kind, tuple[DataType, pyarrow.DataType]] = {
    Kind.TEXT: (StringType(), pyarrow.string()),
    Kind.INTEGER: (LongType(), pyarrow.int64()),
    Kind.MOMENT: (TimestampType(), pyarrow.timestamp("us", tz="UTC")),
    Kind.SPAN: (DoubleType(), pyarrow.float64()),
    Kind.FLAG: (BooleanType(), pyarrow.bool_()),
    Kind.DATA: (BinaryType(), pyarrow.binary()),
    Kind.NAMES: (ArrayType(StringType()), _NAMES),
}
"""The declared types of a column, for Spark and for Arrow."""


def spark_schema(table: str, columns: Sequence[str]) -> StructType:
    """The declared types of these columns; durations are in seconds."""
    schema = StructType()
    for name in columns:
        schema = schema.add(name, _TYPES[COLUMNS[table][name]][0])
    return schema


def as_declared(batch: pyarrow.RecordBatch, table: str, columns: Sequence[str]) -> pyarrow.RecordBatch:
    """Convert the rows to the declared types."""
    kinds = [COLUMNS[table][name] for name in columns]
    schema = pyarrow.schema([(name, _TYPES[kind][1]) for name, kind in zip(columns, kinds, strict=True)])
    arrays = [_converted(batch.column(place), kind) for place, kind in enumerate(kinds)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(column: pyarrow.Array, kind: Kind) -> pyarrow.Array:
    if kind is Kind.SPAN:
        return pyarrow.compute.divide(column.cast(pyarrow.float64()), 1_000_000.0)
    if kind is Kind.NAMES:  # most jobs share a few sets of tags, so each is parsed once
        known = column.dictionary_encode()
        lists = pyarrow.array([json.loads(text) if text else [] for text in known.dictionary.to_pylist()], _NAMES)
        return lists.take(known.indices)
    declared = _TYPES[kind][1]
    return column if column.type == declared else column.cast(declared)


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
    """Return the filter as a condition of the store, or None to leave it to Spark.

    Text is compared for equality only, because the sort orders differ.
    """
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
    """Return the value as the store keeps it, or None if the store cannot have it."""
    if kind is Kind.MOMENT and isinstance(value, datetime):
        return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))
    if kind is Kind.INTEGER and type(value) is int and -_LARGEST <= value < _LARGEST:
        return value
    if kind is Kind.TEXT and isinstance(value, str) and "\0" not in value:
        return value
    return None


@dataclass
class TablePart(InputPartition):
    """The part of a table that one task reads."""

    part: Part


def read_part(
    address: Address, table: str, columns: Sequence[str], conditions: Sequence[Condition], part: Part
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a part with the declared types."""
    with address.reading() as store:
        for batch in store.batches(Wanted(table, columns, conditions), part):
            if batch.num_rows:
                yield as_declared(batch, table, columns)


class TableReader(DataSourceReader):
    """Reads all rows and leaves filters to Spark."""

    def __init__(self, address: Address, table: str, columns: Sequence[str], parts: int) -> None:
        self._address = address
        self._table = table
        self._columns = list(columns)
        self._parts = parts
        self._conditions: list[Condition] = []

    def partitions(self) -> list[InputPartition]:
        with self._address.reading() as store:
            parts = store.parts(self._table, self._parts)
        return [TablePart(part) for part in parts or [Part(0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, TablePart)
        return read_part(self._address, self._table, self._columns, self._conditions, partition.part)


class FilteringReader(TableReader):
    """Passes filters on to the store."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for wanted in filters:
            condition = condition_of(wanted, self._table)
            if condition is None:
                yield wanted
            else:
                self._conditions.append(condition)
