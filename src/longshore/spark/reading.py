"""Reading a table: parts are planned once, and each is read by a task of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from longshore.backends.export import Condition, Part, Wanted
from longshore.spark.filters import condition_of
from longshore.spark.options import Address
from longshore.spark.schemas import as_declared

if TYPE_CHECKING:
    import pyarrow


@dataclass
class TablePart(InputPartition):
    """What one task reads."""

    part: Part


def read_part(
    address: Address, table: str, columns: Sequence[str], conditions: Sequence[Condition], part: Part
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a part, with the types that were declared."""
    with address.reading() as store:
        for batch in store.batches(Wanted(table, columns, conditions), part):
            if batch.num_rows:
                yield as_declared(batch, table, columns)


class TableReader(DataSourceReader):
    """Reads everything, and leaves filters to Spark."""

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
    """Has the store leave out what a filter would."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for wanted in filters:
            condition = condition_of(wanted, self._table)
            if condition is None:
                yield wanted
            else:
                self._conditions.append(condition)
