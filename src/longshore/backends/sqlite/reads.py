"""SQLite's reader: lookups and searches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apsw

from longshore.backends.port import LogEnds, Search
from longshore.backends.sql.reads import Seen, SQLLookups, SQLReader
from longshore.backends.sql.rows import Row, tombstone_of_row
from longshore.backends.sql.statements import STATUS_WORDS
from longshore.backends.sqlite import SQL
from longshore.core.clock import ClockStep
from longshore.core.job_record import Record, Tombstone
from longshore.core.status import ELIGIBLE, JobStatus
from longshore.core.times import from_micros, to_micros

_LISTED = "IN (SELECT value FROM json_each(?))"
_READ_AT_ONCE = 500
_FEW = 20_000
"""Up to this many jobs of a status are read through its index and sorted; beyond it, a scan by uid finds enough
soon."""

_ELIGIBLE = f"({STATUS_WORDS['claim_sources']})"


class _Conditions(NamedTuple):
    texts: list[str]
    values: list[Any]

    def add(self, text: str, *values: Any) -> None:
        self.texts.append(text)
        self.values.extend(values)


def _first_in(
    connection: apsw.Connection, queue: str, status: JobStatus, count: int, conditions: _Conditions, search: Search
) -> list[int]:
    """The first jobs of one queue and status: by an index or, if many jobs have the status, in the order of uid.

    SQLite uses a partial index only if the query repeats the index's condition.
    """
    if status is JobStatus.INITIAL_PENDING and count <= _FEW:
        indexes = [("INDEXED BY jobs_claimable", SQL.waiting), ("INDEXED BY jobs_blocked", "blocked = 1")]
    elif status is JobStatus.RUNNING:
        indexes = [("INDEXED BY jobs_held", "lease_token IS NOT NULL")]
    elif status is JobStatus.COMPLETED and count <= _FEW:
        indexes = [("INDEXED BY jobs_by_end", "finalized_at IS NOT NULL")]
    elif status in (JobStatus.INITIAL_PENDING, JobStatus.COMPLETED):
        indexes = [("NOT INDEXED", "true")]
    else:
        indexes = [("INDEXED BY jobs_by_status", SQL.uncommon_status)]
    uids: list[int] = []
    for index, condition in indexes:
        texts = [f"queue = ? AND status = '{status}' AND {condition}", *conditions.texts]
        uids += _uids(connection, f"jobs {index}", _Conditions(texts, [queue, *conditions.values]), search)
    return uids


def _uids(connection: apsw.Connection, source: str, conditions: _Conditions, search: Search) -> list[int]:
    where = " AND ".join(conditions.texts) or "1"
    order = "ASC" if search.oldest_first else "DESC"
    rows = connection.execute(
        f"SELECT uid FROM {source} WHERE {where} ORDER BY uid {order} LIMIT ?", (*conditions.values, search.limit)
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
        columns = ("CAST(id AS BLOB)", "CAST(type AS BLOB)", "CAST(error_message AS BLOB)", "payload")
        anywhere = " OR ".join(f"instr({column}, ?) > 0" for column in columns)
        conditions.add(f"({anywhere})", *[wanted.text.encode("utf-8", "surrogatepass")] * len(columns))
    return conditions


def step_of_row(row: Row) -> ClockStep:
    """A row of `clock_step`."""
    at, by = row
    return ClockStep(from_micros(at), timedelta(microseconds=by))


class SQLiteQueries:
    """Runs statements on a connection to the file."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, *values: Any) -> Iterator[Row]:
        return self._connection.execute(statement, values)

    def one(self, statement: str, *values: Any) -> Row | None:
        return self._connection.execute(statement, values).fetchone()

    def run(self, statement: str, *values: Any) -> int:
        self._connection.execute(statement, values)
        return self._connection.changes()

    def many(self, statement: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(statement, rows)

    def listed(self, values: Iterable[Any]) -> str:
        return json.dumps(list(values))

    def log_position(self, position: int) -> tuple[int]:
        return (position,)

    log_range = log_position

    def positioned(self, row: Row) -> tuple[int, Row]:
        return row[0], row[1:]


class SQLiteReader(SQLReader):
    """Reads on one connection."""

    def __init__(self, connection: apsw.Connection, clock: Callable[[], int], seen: Seen | None = None) -> None:
        super().__init__(SQL, SQLiteQueries(connection), seen)
        self.connection = connection
        self._clock = clock

    def time(self) -> int:
        return self._clock()

    def clock_step(self) -> ClockStep | None:
        row = self._one(SQL.clock_step)
        return None if row is None else step_of_row(row)

    def records_by_key(self, pairs: Sequence[tuple[str, str]], since: int) -> dict[tuple[str, str], Record | Tombstone]:
        return records_by_key(self, pairs, since)

    def _found(self, search: Search) -> Iterator[Row]:
        """Rows that match all conditions except `wanted.data`, read one by one."""
        if search.wanted.data:
            search = search._replace(limit=max(search.limit, _READ_AT_ONCE))
        while True:
            uids = self._first(search)
            for uid in uids:
                yield from self.connection.execute(SQL.job_by_uid, (uid,))
            if len(uids) < search.limit:
                return
            search = search._replace(past=uids[-1])

    def _first(self, search: Search) -> list[int]:
        wanted = search.wanted
        conditions = _conditions(search)
        if not wanted.statuses or wanted.ids or wanted.tags or wanted.parent_id or wanted.schedule_id:
            for column, names in (("status", wanted.statuses), ("queue", wanted.queues)):
                if names:
                    conditions.add(f"{column} {_LISTED}", json.dumps(list(names)))
            return _uids(self.connection, "jobs", conditions, search)
        uids: list[int] = []
        for queue, of in self.counts_by_queue().items():
            for status in {JobStatus(status) for status in wanted.statuses}:
                if of.get(status) and (not wanted.queues or queue in wanted.queues):
                    uids += _first_in(self.connection, queue, status, of[status], conditions, search)
        return sorted(uids, reverse=not search.oldest_first)[: search.limit]

    def count_delayed(self, queues: Sequence[str] | None, now: int) -> int:
        delayed = 0
        for queue in self._eligible_queues(queues):
            for priority in self._priorities(queue):
                for statement in (SQL.delayed_fifo, SQL.delayed_lifo):
                    ((here,),) = self._rows(statement, queue, priority, now)
                    delayed += here
            ((blocked,),) = self._rows(SQL.delayed_blocked, queue, now)
            delayed += blocked
        return delayed

    def next_due(self, queues: Sequence[str] | None, after: int) -> int | None:
        names = self._eligible_queues(queues)
        ((first,),) = self._rows(SQL.next_due, self._listed(names), after) if names else [(None,)]
        return None if first is None else int(first)

    def _eligible_queues(self, queues: Sequence[str] | None) -> Sequence[str]:
        if queues is not None:
            return queues
        return [name for name, counts in self.counts_by_queue().items() if not ELIGIBLE.isdisjoint(counts)]

    def log_ends(self, queue: str | None) -> LogEnds:
        ((log, _, next_event),) = self._rows(SQL.meta)
        ((anywhere,),) = self._rows(SQL.pruned_anywhere)
        pruned = (anywhere,) if queue is None else self._one(SQL.pruned, queue)
        last = next_event - 1
        return LogEnds(log, 0 if pruned is None else pruned[0], anywhere, last, last, last)


def records_by_key(
    lookups: SQLLookups, pairs: Sequence[tuple[str, str]], since: int
) -> dict[tuple[str, str], Record | Tombstone]:
    """The jobs of (queue, idempotency key) pairs, or the tombstones of those removed after `since`."""
    known: dict[tuple[str, str], Record | Tombstone] = {}
    for pair in pairs:
        rows = list(lookups._rows(SQL.job_behind_key, *pair))
        if rows:
            (known[pair],) = lookups._records(rows)
        elif row := lookups._one(SQL.tombstone_behind_key, *pair, since):
            known[pair] = tombstone_of_row(row)
    return known
