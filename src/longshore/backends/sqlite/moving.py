"""Moving out of a file: one snapshot of it, from which rows are read and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw

from longshore.backends.moving import Settings
from longshore.backends.sql.columns import Row
from longshore.backends.sql.moving import SQLHouse
from longshore.backends.sqlite.connection import Opener, close_quietly, explained
from longshore.backends.sqlite.statements import SQL
from longshore.core.moments import SECOND, from_micros

_LONGEST_SILENCE = 60 * SECOND
"""A worker heard of within this time counts as alive."""
_NEVER = 2**63 - 1
_NAMED = 3


@contextmanager
def leave(path: Path, open_reading: Opener, clock: Callable[[], int]) -> Iterator[LeftFile]:
    """The file at this moment; closed when done with."""
    with ExitStack() as stack:
        connection, glance = (_opened(stack, open_reading) for _ in range(2))
        stack.enter_context(explained(path, connection))
        connection.pragma("query_only", True)
        yield LeftFile(path, connection, glance, clock)


def _opened(stack: ExitStack, open_reading: Opener) -> apsw.Connection:
    connection = open_reading()
    stack.callback(close_quietly, connection)
    return connection


class LeftFile(SQLHouse):
    """A file that is moved out of: all is read in one transaction, and a second connection sees what is new."""

    _sql = SQL

    def __init__(
        self, path: Path, connection: apsw.Connection, glance: apsw.Connection, clock: Callable[[], int]
    ) -> None:
        self.name = f"sqlite:///{path}"
        self._connection = connection
        self._glance = glance
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._connection.execute("BEGIN")
        self.log, self._next_uid, self.next_event = self._one(SQL.meta)

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        return self._connection.execute(statement, values)

    def signs_of_life(self) -> list[str]:
        now = self._clock()
        heard = [
            f"worker {worker_id} was heard of {max(0, now - seen_at) // SECOND} seconds ago"
            for worker_id, seen_at in self._rows(SQL.workers_heard_since, now - _LONGEST_SILENCE)
        ]
        held = [
            f"{owner or 'somebody'} holds {jobs} {'job' if jobs == 1 else 'jobs'} {_until(ends)}"
            for owner, jobs, ends in self._rows(SQL.leases_in_force, now)
        ]
        return _few(heard) + _few(held)

    def rows(self, table: str, block: range) -> Iterator[Row]:
        return self._rows(self._named("rows_of", table), block.start, block.stop)

    def settings(self) -> Settings:
        return Settings(
            list(self._rows(SQL.queues)),
            list(self._rows(SQL.rows_of_concurrency_keys)),
            list(self._rows(SQL.rows_of_schedules)),
            list(self._rows(SQL.rows_of_api_tokens)),
            [name for (name,) in self._rows(SQL.queues_ever_seen)],
            self._next_uid,
            self.next_event,
        )

    def events_since(self) -> int:
        ((_, _, next_event),) = self._glance.execute(SQL.meta)
        return int(next_event - self.next_event)

    def look_again(self) -> None:
        self._connection.execute("COMMIT")
        self._begin()


def _until(moment: int) -> str:
    if moment == _NEVER:
        return "under a lease without an end"
    return f"until {_clock_time(from_micros(moment))} UTC"


def _clock_time(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S")


def _few(signs: list[str]) -> list[str]:
    more = len(signs) - _NAMED
    return signs if more <= 0 else [*signs[:_NAMED], f"and {more} more"]
