"""SQLite's reader: lookups and searches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apsw

from longshore.backends.port import LogEnds, Search
from longshore.backends.sql.reads import Seen, SQLReader
from longshore.backends.sql.rows import Row, record_of_row, tombstone_of_row
from longshore.backends.sqlite import SQL
from longshore.core.clock import ClockStep
from longshore.core.job_record import Record, Tombstone
from longshore.core.status import ELIGIBLE, JobStatus
from longshore.core.times import from_micros, to_micros

_LISTED = "IN (SELECT value FROM json_each(?))"
_READ_AT_ONCE = 500
_FEW = 20_000
"""Up to here all jobs in a status are fetched through its index and sorted; beyond, the newest are met soon enough."""

# which index leads straight to the jobs of a queue in a status; a partial index is used only if told its own words
_ELIGIBLE = "('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')"
_IN_LINE = f"status IN {_ELIGIBLE} AND blocked = 0"
_UNSTARTED = f"queue = ? AND status = 'INITIAL_PENDING' AND {_IN_LINE}"
_PARKED = "queue = ? AND status = 'INITIAL_PENDING' AND blocked = 1"
_RUNNING = "queue = ? AND status = 'RUNNING' AND lease_token IS NOT NULL"
_COMPLETED = "queue = ? AND status = 'COMPLETED' AND finalized_at IS NOT NULL"
_OTHER = "queue = ? AND status = '{status}' AND status NOT IN ('INITIAL_PENDING', 'RUNNING', 'COMPLETED')"


class _Conditions(NamedTuple):
    texts: list[str]
    values: list[Any]

    def add(self, text: str, *values: Any) -> None:
        self.texts.append(text)
        self.values.extend(values)


Counts = Mapping[str, Mapping[JobStatus, int]]


def found(connection: apsw.Connection, search: Search, counts: Counts) -> Iterator[tuple[Any, ...]]:
    """Rows that match all but `wanted.data`, read one by one."""
    if search.wanted.data:
        search = search._replace(limit=max(search.limit, _READ_AT_ONCE))
    while True:
        uids = _first(connection, search, counts)
        for uid in uids:
            yield from connection.execute(SQL.job_by_uid, (uid,))
        if len(uids) < search.limit:
            return
        search = search._replace(past=uids[-1])


def _first(connection: apsw.Connection, search: Search, counts: Counts) -> list[int]:
    wanted = search.wanted
    conditions = _conditions(search)
    if not wanted.statuses or wanted.ids or wanted.tags or wanted.parent_id or wanted.schedule_id:
        for column, names in (("status", wanted.statuses), ("queue", wanted.queues)):
            if names:
                conditions.add(f"{column} {_LISTED}", json.dumps(list(names)))
        return _uids(connection, "jobs", conditions, search)
    uids: list[int] = []
    for queue, of in counts.items():
        for status in {JobStatus(status) for status in wanted.statuses}:
            if of.get(status) and (not wanted.queues or queue in wanted.queues):
                uids += _first_in(connection, queue, status, of[status], conditions, search)
    return sorted(uids, reverse=not search.oldest_first)[: search.limit]


def _first_in(
    connection: apsw.Connection, queue: str, status: JobStatus, count: int, conditions: _Conditions, search: Search
) -> list[int]:
    """The first in one queue and status: by its index, or for a crowd by walking on from the first of all."""
    if status is JobStatus.INITIAL_PENDING and count <= _FEW:
        places = [
            ("jobs INDEXED BY jobs_claimable", _UNSTARTED),
            ("jobs INDEXED BY jobs_blocked", _PARKED),
        ]
    elif status is JobStatus.RUNNING:
        places = [("jobs INDEXED BY jobs_held", _RUNNING)]
    elif status is JobStatus.COMPLETED and count <= _FEW:
        places = [("jobs INDEXED BY jobs_by_end", _COMPLETED)]
    elif status in (JobStatus.INITIAL_PENDING, JobStatus.COMPLETED):
        places = [("jobs NOT INDEXED", f"queue = ? AND status = '{status}'")]
    else:
        places = [("jobs INDEXED BY jobs_by_status", _OTHER.format(status=status))]
    uids: list[int] = []
    for place, condition in places:
        here = _Conditions([condition, *conditions.texts], [queue, *conditions.values])
        uids += _uids(connection, place, here, search)
    return uids


def _uids(connection: apsw.Connection, place: str, conditions: _Conditions, search: Search) -> list[int]:
    where = " AND ".join(conditions.texts) or "1"
    order = "ASC" if search.oldest_first else "DESC"
    rows = connection.execute(
        f"SELECT uid FROM {place} WHERE {where} ORDER BY uid {order} LIMIT ?", (*conditions.values, search.limit)
    )
    return [uid for (uid,) in rows]


def _conditions(search: Search) -> _Conditions:
    wanted = search.wanted
    conditions = _Conditions([], [])
    if search.past is not None:
        conditions.add("uid > ?" if search.oldest_first else "uid < ?", search.past)
    if search.due is not None:
        conditions.add(f"(status NOT IN {_ELIGIBLE} OR eligible_at {'<=' if search.due else '>'} ?)", search.now)
    for column, names in (("type", wanted.types), ("id", wanted.ids)):
        if names:
            conditions.add(f"{column} {_LISTED}", json.dumps(list(names)))
    for tag in wanted.tags:
        conditions.add("uid IN (SELECT uid FROM job_tags WHERE tag = ?)", tag)
    for column in ("assignee_id", "parent_id", "schedule_id", "concurrency_key"):
        if getattr(wanted, column) is not None:
            conditions.add(f"{column} = ?", getattr(wanted, column))
    if wanted.created_after is not None:
        conditions.add("created_at > ?", to_micros(wanted.created_after))
    if wanted.created_before is not None:
        conditions.add("created_at < ?", to_micros(wanted.created_before))
    if wanted.error:
        conditions.add("instr(CAST(error_message AS BLOB), ?) > 0", wanted.error.encode("utf-8", "surrogatepass"))
    if wanted.text:
        places = ("CAST(id AS BLOB)", "CAST(type AS BLOB)", "CAST(error_message AS BLOB)", "payload")
        anywhere = " OR ".join(f"instr({place}, ?) > 0" for place in places)
        conditions.add(f"({anywhere})", *[wanted.text.encode("utf-8", "surrogatepass")] * len(places))
    return conditions


def step_of_row(row: Row) -> ClockStep:
    """A row of `clock_step`."""
    at, by = row
    return ClockStep(from_micros(at), timedelta(microseconds=by))


class SQLiteReader(SQLReader):
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
            ((blocked,),) = self._rows(SQL.delayed_blocked, queue, now)
            delayed += blocked
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
