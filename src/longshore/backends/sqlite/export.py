"""Exports a file in parts: rows through apsw, turned into Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pyarrow

from longshore.backends.export import COLUMNS, Kind, Part, Wanted
from longshore.backends.port import LogEnds
from longshore.backends.sql.reads import SQLBulkReader, even_parts, parts_by_uid
from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.connection import Opener, close_quietly, explained
from longshore.backends.sqlite.reads import SQLiteReader

_AT_ONCE = 10_000


_TYPES = {
    Kind.TEXT: pyarrow.string(),
    Kind.INTEGER: pyarrow.int64(),
    Kind.MOMENT: pyarrow.int64(),
    Kind.SPAN: pyarrow.int64(),
    Kind.FLAG: pyarrow.int64(),
    Kind.DATA: pyarrow.binary(),
    Kind.NAMES: pyarrow.string(),
}


@contextmanager
def read(path: Path, open_reading: Opener) -> Iterator[FileReader]:
    """A reader on its own connection, closed at the end."""
    connection = open_reading()
    try:
        with explained(path, connection):
            connection.pragma("query_only", True)
            yield FileReader(connection)
    finally:
        close_quietly(connection)


class FileReader(SQLBulkReader):
    """A file, read in bulk. There is one writer at a time, so events come in the order of their numbers."""

    _sql = SQL
    _expressions = {  # noqa: RUF012 - read only
        "events": {"xid": "NULL", "number": "n"},
        "logs": {"job_uid": "uid", "job_id": "id", "logged_at": "at"},
    }

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def log_ends(self) -> LogEnds:
        return SQLiteReader(self._connection, lambda: 0).log_ends(None)

    def position_after(self, start: int, events: int, last: int) -> int:
        found = self._connection.execute(SQL.event_after, (start, last, events - 1)).fetchone()
        return last if found is None else int(found[0])

    def parts(self, table: str, count: int, within: Part | None = None) -> list[Part]:
        if table == "events":
            span = self._span("job_events")
            first = last = self.log_ends().last
            if span is not None:
                first = span[0] - 1
            return even_parts(within or Part(first, last), count)
        return parts_by_uid(self._span("jobs"), count)

    def _span(self, table: str) -> tuple[int, int] | None:
        ((lowest, highest),) = self._connection.execute(self._named("span_of", table))
        return None if lowest is None else (lowest, highest)

    def batches(self, wanted: Wanted, part: Part) -> Iterator[pyarrow.RecordBatch]:
        schema = pyarrow.schema([(name, _TYPES[COLUMNS[wanted.table][name]]) for name in wanted.columns])
        statement, values = self._select(wanted, part)
        cursor = self._connection.execute(statement, values)
        while rows := list(islice(cursor, _AT_ONCE)):
            columns = zip(*rows, strict=True)
            arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

    def _value(self, value: Any, values: list[Any]) -> str:
        values.append(value)
        return "?"

    def _within(self, table: str, part: Part, values: list[Any]) -> list[str]:
        values += part
        number = "n" if table == "events" else "uid"
        return [f"{number} > ?", f"{number} <= ?"]
