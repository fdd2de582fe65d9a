"""What the tables look like in Spark, and how columns become what Spark expects."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pyarrow
import pyarrow.compute
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

from longshore.backends.export import COLUMNS, Kind

_SPARK: dict[Kind, DataType] = {
    Kind.TEXT: StringType(),
    Kind.INTEGER: LongType(),
    Kind.MOMENT: TimestampType(),
    Kind.SPAN: DoubleType(),
    Kind.FLAG: BooleanType(),
    Kind.DATA: BinaryType(),
    Kind.NAMES: ArrayType(StringType()),
}
_NAMES = pyarrow.list_(pyarrow.field("element", pyarrow.string()))
_ARROW: dict[Kind, pyarrow.DataType] = {
    Kind.TEXT: pyarrow.string(),
    Kind.INTEGER: pyarrow.int64(),
    Kind.MOMENT: pyarrow.timestamp("us", tz="UTC"),
    Kind.SPAN: pyarrow.float64(),
    Kind.FLAG: pyarrow.bool_(),
    Kind.DATA: pyarrow.binary(),
    Kind.NAMES: _NAMES,
}


def spark_schema(table: str, columns: Sequence[str]) -> StructType:
    """The declared types of these columns; a span is in seconds."""
    schema = StructType()
    for name in columns:
        schema = schema.add(name, _SPARK[COLUMNS[table][name]])
    return schema


def as_declared(batch: pyarrow.RecordBatch, table: str, columns: Sequence[str]) -> pyarrow.RecordBatch:
    """The same rows with the types that were declared."""
    kinds = [COLUMNS[table][name] for name in columns]
    schema = pyarrow.schema([(name, _ARROW[kind]) for name, kind in zip(columns, kinds, strict=True)])
    arrays = [_CHANGED.get(kind, _cast(kind))(batch.column(place)) for place, kind in enumerate(kinds)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(kind: Kind) -> Callable[[pyarrow.Array], pyarrow.Array]:
    return lambda column: column if column.type == _ARROW[kind] else column.cast(_ARROW[kind])


def _seconds(column: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.compute.divide(column.cast(pyarrow.float64()), 1_000_000.0)


def _names(column: pyarrow.Array) -> pyarrow.Array:
    """Most jobs have the same few sets of tags: each is read once."""
    known = column.dictionary_encode()
    lists = pyarrow.array([json.loads(text) if text else [] for text in known.dictionary.to_pylist()], _NAMES)
    return lists.take(known.indices)


_CHANGED: dict[Kind, Callable[[pyarrow.Array], pyarrow.Array]] = {Kind.SPAN: _seconds, Kind.NAMES: _names}
