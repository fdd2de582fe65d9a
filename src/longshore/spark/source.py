"""The data source `longshore`, in batches and as a stream of the event log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from longshore.backends.export import Part
from longshore.backends.port import event_cursor, event_number
from longshore.core.errors import InvalidArgument
from longshore.spark import options
from longshore.spark.options import Address
from longshore.spark.sink import JobWriter, StreamingJobWriter
from longshore.spark.table_reader import FilteringReader, TablePart, TableReader, read_part, spark_schema

if TYPE_CHECKING:
    import pyarrow


_START = ""
"""The offset before the first event that is still kept."""


class EventFollower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of the event log; each batch is the range between two cursors.

    A cursor never passes an open transaction: on PostgreSQL an event that commits late comes after the cursor,
    whatever its number.
    """

    def __init__(
        self, address: Address, columns: Sequence[str], *, parts: int, at_most: int | None, starting: str
    ) -> None:
        self._address = address
        self._columns = list(columns)
        self._parts = parts
        self._at_most = at_most
        self._starting = starting
        self._target: int | None = None
        """The last event of a run with the trigger `availableNow`."""

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        if self._starting == "earliest":
            return {"cursor": _START}
        ends = self._address.log_ends()
        if self._starting == "latest":
            return {"cursor": event_cursor(ends, ends.last)}
        event_number(self._starting, ends)  # raises if the cursor is invalid
        return {"cursor": self._starting}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._at_most is None else ReadMaxRows(self._at_most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._address.log_ends().last

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        with self._address.reading() as store:
            ends = store.log_ends()
            after = event_number(start["cursor"] or None, ends)
            last = ends.last if self._target is None else min(ends.last, self._target)
            if last <= after:
                return {"cursor": str(start["cursor"])}
            if isinstance(limit, ReadMaxRows):
                last = store.position_after(after, limit.max_rows, last)
            return {"cursor": event_cursor(ends, last)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with self._address.reading() as store:
            ends = store.log_ends()
            after = event_number(start["cursor"] or None, ends)
            # events pruned after a batch was planned do not make its end unreadable
            through = event_number(end["cursor"] or None, ends._replace(pruned_through=0))
            return [TablePart(part) for part in store.parts("events", self._parts, Part(after, through))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, TablePart)
        return read_part(self._address, "events", self._columns, (), partition.part)


class LongshoreSource(DataSource):
    """The jobs, events and logs of a store."""

    @classmethod
    def name(cls) -> str:
        return "longshore"

    def schema(self) -> StructType:
        table = options.table(self.options)
        return spark_schema(table, options.columns(self.options, table))

    def reader(self, schema: StructType) -> DataSourceReader:
        kind = FilteringReader if _filters_are_offered() else TableReader
        table = options.table(self.options)
        parts = options.number(self.options, "partitions", 4 if table == "events" else 1)
        return kind(options.address(self.options), table, schema.fieldNames(), parts)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        self._refuse_other_writes('save("jobs")', overwrite)
        return JobWriter(options.address(self.options), schema, self.options.get("runId"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        self._refuse_other_writes('start("jobs")', overwrite)
        if self.options.get("runId") is not None:  # one name for all batches would store the first one only
            raise InvalidArgument(
                "runId",
                "is for one write; a stream's batches are named by its checkpoint and their numbers: leave it out",
            )
        return StreamingJobWriter(options.address(self.options), schema)

    def _refuse_other_writes(self, wanted: str, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                "mode",
                'overwrite would delete jobs that have not run; use mode("append"), and cancel or delete jobs by id',
            )
        if self.options.get("path", "jobs") != "jobs":
            raise InvalidArgument("path", f"only jobs can be written; use {wanted}")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        table = options.table(self.options)
        if table != "events":
            raise InvalidArgument("path", f'{table!r} cannot be followed: use readStream with load("events")')
        at_most = options.number(self.options, "maxEventsPerBatch", 0, most=1_000_000_000)
        return EventFollower(
            options.address(self.options),
            schema.fieldNames(),
            parts=options.number(self.options, "partitions", 4),
            at_most=at_most or None,
            starting=self.options.get("startingAt", "earliest"),
        )


def _filters_are_offered() -> bool:
    """Whether Spark pushes filters down.

    A reader with `pushFilters` is an error if `spark.sql.python.filterPushdown.enabled` is off, which is the default.
    If it is on, Spark starts a special worker program.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    offering = "pyspark.sql.worker.data_source_pushdown_filters"
    return offering in sys.modules or offering in sys.argv or (main is not None and main.name == offering)
