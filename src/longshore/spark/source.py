"""The data source `longshore`, as Spark calls it."""

from __future__ import annotations

import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from longshore.core.errors import InvalidArgument
from longshore.spark import options
from longshore.spark.sink import JobWriter, StreamingJobWriter, refuse_a_run_id, refuse_overwriting
from longshore.spark.stream import EventFollower, refuse_other_tables
from longshore.spark.table_reader import FilteringReader, TableReader, spark_schema


class LongshoreSource(DataSource):
    """Jobs, events and logs of a queue."""

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
        refuse_a_run_id(self.options.get("runId"))
        return StreamingJobWriter(options.address(self.options), schema)

    def _refuse_other_writes(self, wanted: str, overwrite: bool) -> None:
        if overwrite:
            refuse_overwriting()
        if self.options.get("path", "jobs") != "jobs":
            raise InvalidArgument("path", f"only jobs are written: {wanted}")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        refuse_other_tables(options.table(self.options))
        at_most = options.number(self.options, "maxEventsPerBatch", 0, most=1_000_000_000)
        return EventFollower(
            options.address(self.options),
            schema.fieldNames(),
            parts=options.number(self.options, "partitions", 4),
            at_most=at_most or None,
            starting=self.options.get("startingAt", "earliest"),
        )


def _filters_are_offered() -> bool:
    """Whether Spark asks on behalf of a filter.

    A reader that takes filters is an error where `spark.sql.python.filterPushdown.enabled` is off, as it is unless
    somebody set it; and only the program that offers filters is started where it is on.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    offering = "pyspark.sql.worker.data_source_pushdown_filters"
    return offering in sys.modules or offering in sys.argv or (main is not None and main.name == offering)
