"""Streams the event log: offsets are cursors of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from longshore.backends.export import Part
from longshore.backends.port import event_cursor, event_number
from longshore.core.errors import InvalidArgument
from longshore.spark.options import Address
from longshore.spark.table_reader import TablePart, read_part

if TYPE_CHECKING:
    import pyarrow


_START = ""
"""The offset before the first event that is still kept."""


class EventFollower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Each batch is what lies between two cursors.

    A cursor only ever stands before what is certain: on PostgreSQL an event whose transaction commits late comes
    after it, whatever its number.
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
        """Where a run over what is there now ends."""

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        if self._starting == "earliest":
            return {"cursor": _START}
        with self._address.reading() as store:
            ends = store.log_ends()
        if self._starting == "latest":
            return {"cursor": event_cursor(ends, ends.last)}
        event_number(self._starting, ends)  # or it says what is wrong with it
        return {"cursor": self._starting}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._at_most is None else ReadMaxRows(self._at_most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with self._address.reading() as store:
            self._target = store.log_ends().last

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
            # what is pruned of the log after a batch was planned does not make its end unreadable
            through = event_number(end["cursor"] or None, ends._replace(pruned_through=0))
            return [TablePart(part) for part in store.parts("events", self._parts, Part(after, through))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, TablePart)
        return read_part(self._address, "events", self._columns, (), partition.part)


def refuse_other_tables(table: str) -> None:
    """Only the log is something that goes on."""
    if table != "events":
        raise InvalidArgument("path", f'{table!r} cannot be followed: use readStream with load("events")')
