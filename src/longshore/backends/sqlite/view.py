"""Looking into the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import apsw

from longshore.backends.sql.columns import Row
from longshore.backends.sql.view import Seen, SQLView
from longshore.backends.sqlite.search import search
from longshore.backends.sqlite.statements import SQL
from longshore.backends.view import LogEnds
from longshore.core.filtering import JobFilter


class SQLiteView(SQLView):
    """Everything that only looks, on one connection."""

    _sql = SQL

    def __init__(self, connection: apsw.Connection, seen: Seen | None = None) -> None:
        super().__init__(seen)
        self._connection = connection

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        return self._connection.execute(statement, values)

    def _one(self, statement: str, *values: Any) -> Row | None:
        return self._connection.execute(statement, values).fetchone()

    def _listed(self, values: Iterable[Any]) -> str:
        return json.dumps(list(values))

    def _place(self, position: int) -> tuple[int]:
        return (position,)

    def _positioned(self, row: Row) -> tuple[int, Row]:
        return row[0], row[1:]

    def _found(self, wanted: JobFilter, before: int | None, limit: int) -> Iterator[Row]:
        return search(self._connection, wanted, before, self.counts_by_queue(), limit)

    def log_ends(self, queue: str | None) -> LogEnds:
        ((log, _, next_event),) = self._rows(SQL.meta)
        ((anywhere,),) = self._rows(SQL.pruned_anywhere)
        pruned = (anywhere,) if queue is None else self._one(SQL.pruned, queue)
        last = next_event - 1
        return LogEnds(log, 0 if pruned is None else pruned[0], anywhere, last, last)
