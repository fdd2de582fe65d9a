"""Looking into the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import apsw

from longshore.backends.sql.columns import Row, record_of_row, tombstone_of_row
from longshore.backends.sql.view import Seen, SQLView
from longshore.backends.sqlite.search import found
from longshore.backends.sqlite.statements import SQL
from longshore.backends.view import LogEnds, Search
from longshore.core.clock import ClockStep
from longshore.core.job_record import Record, Tombstone
from longshore.core.status import ELIGIBLE
from longshore.core.times import from_micros


def step_of_row(row: Row) -> ClockStep:
    """A row of `clock_step`."""
    at, by = row
    return ClockStep(from_micros(at), timedelta(microseconds=by))


class SQLiteView(SQLView):
    """Everything that only looks, on one connection."""

    _sql = SQL

    def __init__(self, connection: apsw.Connection, clock: Callable[[], int], seen: Seen | None = None) -> None:
        super().__init__(seen)
        self._connection = connection
        self._clock = clock

    def time(self) -> int:
        return self._clock()

    def clock_step(self) -> ClockStep | None:
        row = self._one(SQL.clock_step)
        return None if row is None else step_of_row(row)

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

    def jobs_behind(self, pairs: Sequence[tuple[str, str]], since: int) -> dict[tuple[str, str], Record | Tombstone]:
        known: dict[tuple[str, str], Record | Tombstone] = {}
        for pair in pairs:
            if row := self._one(SQL.job_behind_key, *pair):
                known[pair] = self._whole(record_of_row(row))
            elif row := self._one(SQL.tombstone_behind_key, *pair, since):
                known[pair] = tombstone_of_row(row)
        return known

    def _found(self, search: Search) -> Iterator[Row]:
        return found(self._connection, search, self.counts_by_queue())

    def count_delayed(self, queues: Sequence[str] | None, now: int) -> int:
        delayed = 0
        for queue in self._queues_in_line(queues):
            for priority in self._priorities(queue):
                for statement in (SQL.delayed_in_line, SQL.delayed_lifo):
                    ((here,),) = self._rows(statement, queue, priority, now)
                    delayed += here
            ((parked,),) = self._rows(SQL.delayed_parked, queue, now)
            delayed += parked
        return delayed

    def next_due(self, queues: Sequence[str] | None, after: int) -> int | None:
        names = self._queues_in_line(queues)
        ((first,),) = self._rows(SQL.next_due, self._listed(names), after) if names else [(None,)]
        return None if first is None else int(first)

    def _queues_in_line(self, queues: Sequence[str] | None) -> Sequence[str]:
        if queues is not None:
            return queues
        return [name for name, counts in self.counts_by_queue().items() if not ELIGIBLE.isdisjoint(counts)]

    def log_ends(self, queue: str | None) -> LogEnds:
        ((log, _, next_event),) = self._rows(SQL.meta)
        ((anywhere,),) = self._rows(SQL.pruned_anywhere)
        pruned = (anywhere,) if queue is None else self._one(SQL.pruned, queue)
        last = next_event - 1
        return LogEnds(log, 0 if pruned is None else pruned[0], anywhere, last, last, last)
