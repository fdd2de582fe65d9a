"""Looking into the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from longshore.backends.postgres.search import search
from longshore.backends.postgres.session import Session
from longshore.backends.sql.columns import Row
from longshore.backends.sql.view import Seen, SQLView
from longshore.backends.statements import Statements
from longshore.backends.view import LogEnds
from longshore.core.filtering import JobFilter

_N_BITS = 63


def position_of(xid: int, n: int) -> int:
    """A place in the log as one number: first the transaction, then the event within it."""
    return xid << _N_BITS | n


class PostgresView(SQLView):
    """Everything that only looks, in one transaction."""

    def __init__(self, session: Session, sql: Statements, seen: Seen | None = None) -> None:
        super().__init__(seen)
        self._session = session
        self._sql = sql

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        return iter(self._session.rows(statement, values))

    def _listed(self, values: Iterable[Any]) -> list[Any]:
        return list(values)

    def _place(self, position: int) -> tuple[Any, ...]:
        return str(position >> _N_BITS), position & (1 << _N_BITS) - 1

    def _positioned(self, row: Row) -> tuple[int, Row]:
        return position_of(row[0], row[1]), row[2:]

    def _found(self, wanted: JobFilter, before: int | None, limit: int) -> Iterator[Row]:
        return search(self._session, self._sql, wanted, before, limit)

    def log_ends(self, queue: str | None) -> LogEnds:
        ((log, next_xid),) = self._rows(self._sql.meta)
        anywhere = position_of(*(self._one(self._sql.pruned_anywhere) or (0, 0)))
        pruned = None if queue is None else self._one(self._sql.pruned, queue)
        of_queue = 0 if pruned is None else position_of(*pruned[:2])
        last = position_of(*(self._one(self._sql.last_event) or (0, 0)))
        return LogEnds(log, anywhere if queue is None else of_queue, anywhere, last, position_of(next_xid, 0))
