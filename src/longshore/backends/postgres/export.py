"""Export a schema in parts, as Arrow batches from the ADBC driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow
from adbc_driver_postgresql import dbapi
from psycopg.sql import Literal

from longshore.backends.export import Part, Wanted
from longshore.backends.port import LogEnds
from longshore.backends.postgres.connection import OwnSession, Server, hide_user
from longshore.backends.postgres.reads import PostgresReader, event_key, find_horizon, position_of
from longshore.backends.postgres.schema import long_sessions
from longshore.backends.sql.reads import SQLBulkReader, parts_by_uid
from longshore.backends.sql.statements import Statements
from longshore.core.errors import BackendUnavailable


@contextmanager
def read(server: Server, schema: str, sql: Statements) -> Iterator[SchemaReader]:
    """Provide a reader with its own connections, and close them at the end."""
    with long_sessions(server, schema, 1) as (session,):
        yield SchemaReader(server, session, sql)


class SchemaReader(SQLBulkReader):
    """Reads a schema in bulk; the log only up to the oldest transaction that may still write to it."""

    _expressions = {  # noqa: RUF012 - read only
        "events": {"xid": "xid::text::bigint", "number": "n"},
        "logs": {"job_uid": "uid", "job_id": "id", "logged_at": "at"},
    }

    def __init__(self, server: Server, session: OwnSession, sql: Statements) -> None:
        self._server = server
        self._session = session
        self._sql = sql

    def log_ends(self) -> LogEnds:
        # the horizon first: later statements see all events before it
        horizon = find_horizon(self._session, self._sql)
        return PostgresReader(self._session, self._sql, horizon=horizon).log_ends(None)

    def position_after(self, start: int, events: int, last: int) -> int:
        found = self._session.rows(self._sql.event_after, (*event_key(start), *event_key(last), events - 1))
        return last if not found else position_of(found[0][0], found[0][1])

    def parts(self, table: str, count: int, within: Part | None = None) -> list[Part]:
        if table != "events":
            ((lowest, highest),) = self._session.rows(self._sql.span_of_jobs)
            return parts_by_uid(None if lowest is None else (lowest, highest), count)
        whole = within or Part(0, self.log_ends().last)
        ((events,),) = self._session.rows(self._sql.count_events, (*event_key(whole.after), *event_key(whole.through)))
        size = max(1, -(-events // count))
        parts: list[Part] = []
        after = whole.after
        while after < whole.through and len(parts) < count:
            through = whole.through if len(parts) == count - 1 else self.position_after(after, size, whole.through)
            parts.append(Part(after, through))
            after = through
        return parts

    def batches(self, wanted: Wanted, part: Part) -> Iterator[pyarrow.RecordBatch]:
        statement, _ = self._select(wanted, part)
        try:
            with dbapi.connect(self._server.conninfo) as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                yield from cursor.fetch_record_batch()
        except dbapi.Error as error:
            words = " ".join(hide_user(str(error)).split())
            raise BackendUnavailable(
                f"PostgreSQL at {self._server.name} did not return the requested rows ({words}); try again"
            ) from None

    def _value(self, value: Any, values: list[Any]) -> str:  # noqa: ARG002 - a COPY takes no values
        return str(int(value)) if isinstance(value, int) else Literal(value).as_string(None)

    def _within(self, table: str, part: Part, values: list[Any]) -> list[str]:  # noqa: ARG002 - as above
        if table != "events":
            return [f"uid > {part.after:d}", f"uid <= {part.through:d}"]
        (xid, n), (last_xid, last_n) = event_key(part.after), event_key(part.through)
        return [f"(xid, n) > ('{int(xid):d}'::xid8, {n:d})", f"(xid, n) <= ('{int(last_xid):d}'::xid8, {last_n:d})"]
