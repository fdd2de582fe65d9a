"""One connection in use: statements with `$1`, rows as tuples, whether the connection is ours or the caller's own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Literal
from psycopg.types.numeric import Int8Dumper

from longshore.backends.postgres.connecting import Connection, Watchdog
from longshore.backends.sql.columns import Row


class Session(Protocol):
    """What a transaction needs of a connection."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows a statement finds."""
        ...

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement changed."""
        ...

    def many(self, statement: str, rows: Sequence[Row]) -> int:
        """How many rows a statement changed in all, run once for each row of values."""
        ...

    def copy(self, statement: str, rows: Iterable[Row]) -> None:
        """Sends rows to a COPY."""
        ...


class OwnSession:
    """On a connection of the pool, in autocommit mode: BEGIN and COMMIT are statements like others."""

    def __init__(self, connection: Connection, watchdog: Watchdog) -> None:
        self.connection = connection
        self._watchdog = watchdog
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        # one type for all integers, or each size would be prepared as a statement of its own
        self._cursor.adapters.register_dumper(int, Int8Dumper)
        self._kept: dict[str, str] = {}
        self._numbers = itertools.count()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._watchdog.watching(self.connection):
            return self._cursor.execute(statement, values, binary=True).fetchall()

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        with self._watchdog.watching(self.connection):
            return self._cursor.execute(statement, values).rowcount

    def many(self, statement: str, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        if len(rows) == 1:
            return self.run(statement, rows[0])
        with self._watchdog.watching(self.connection):
            self._cursor.executemany(statement, rows)
        return self._cursor.rowcount

    def copy(self, statement: str, rows: Iterable[Row]) -> None:
        with self._watchdog.watching(self.connection), self._cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def called(self, statement: str, *values: str) -> str:
        """A statement for `simply`, with few values: parsed and planned once, where the session is ours."""
        given = [Literal(value).as_string(self.connection) for value in values]
        if self.connection.prepare_threshold is None:
            return re.sub(r"\$(\d)(?=::)", lambda place: given[int(place[1]) - 1], statement)
        name = self._kept.get(statement)
        if name is None:
            name = f"longshore_{next(self._numbers)}"
            self.simply(f"PREPARE {name} AS {statement}")
            self._kept[statement] = name
        return f"EXECUTE {name}({', '.join(given)})" if given else f"EXECUTE {name}"

    def forget(self) -> None:
        """After a rollback: the driver takes back all that was prepared, whoever did it."""
        self._kept.clear()

    def simply(self, statements: str) -> Iterator[Row]:
        """Several statements without values in one message; the rows of the last, if it has any."""
        with self._watchdog.watching(self.connection):
            cursor = self.connection.execute(statements)
        while cursor.nextset():
            continue
        return iter(cursor.fetchall() if cursor.description else ())
