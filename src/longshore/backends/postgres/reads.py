"""PostgreSQL's reader: lookups and searches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from longshore.backends.port import KeyState, LogEnds, Search
from longshore.backends.postgres.connection import Session
from longshore.backends.sql.reads import Seen, SQLLookups, SQLReader
from longshore.backends.sql.rows import Row, tombstone_of_row
from longshore.backends.sql.statements import Statements
from longshore.core.clock import Clock
from longshore.core.job_record import Record, Tombstone
from longshore.core.status import JobStatus
from longshore.core.times import to_micros

_READ_AT_ONCE = 500


def found(session: Session, sql: Statements, search: Search) -> Iterator[Row]:
    """Yield the rows that match all conditions except `wanted.data`, a page at a time."""
    enough = max(search.limit, _READ_AT_ONCE) if search.wanted.data else search.limit
    order = f"ORDER BY uid {'ASC' if search.oldest_first else 'DESC'} LIMIT {enough:d}"
    while True:
        conditions = _Conditions()
        _add(conditions, search, sql)
        rows = session.rows(f"{sql.all_jobs} WHERE {conditions.text} {order}", conditions.values)
        yield from rows
        if len(rows) < enough:
            return
        search = search._replace(past=rows[-1][0])


class _Conditions:
    """Conditions with their values, numbered in the order of addition."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._texts: list[str] = []

    def add(self, text: str, value: Any) -> None:
        """Add a condition; `{}` in its text is replaced by the number of the value."""
        self.values.append(value)
        self._texts.append(text.replace("{}", f"${len(self.values)}"))

    @property
    def text(self) -> str:
        return " AND ".join(self._texts) or "true"


def _add(conditions: _Conditions, search: Search, sql: Statements) -> None:
    wanted = search.wanted
    if search.past is not None:
        conditions.add("uid > {}" if search.oldest_first else "uid < {}", search.past)
    if search.due is not None:
        conditions.add(f"(NOT {sql.eligible} OR eligible_at {'<=' if search.due else '>'} {{}})", search.now)
    lists = (
        ("status", [JobStatus(status).value for status in wanted.statuses]),
        ("queue", list(wanted.queues)),
        ("type", list(wanted.types)),
        ("id", list(wanted.ids)),
    )
    for column, names in lists:
        if names:
            conditions.add(f"{column} = ANY({{}}::text[])", names)
    for tag in wanted.tags:
        conditions.add(sql.carries_tag, tag)
    for column in ("assignee_id", "parent_id", "schedule_id", "concurrency_key"):
        if getattr(wanted, column) is not None:
            conditions.add(f"{column} = {{}}", getattr(wanted, column))
    if wanted.created_after is not None:
        conditions.add("created_at > {}", to_micros(wanted.created_after))
    if wanted.created_before is not None:
        conditions.add("created_at < {}", to_micros(wanted.created_before))
    if wanted.error:
        conditions.add("position({}::bytea IN convert_to(error_message, 'UTF8')) > 0", _bytes(wanted.error))
    if wanted.text:
        columns = ("convert_to(id, 'UTF8')", "convert_to(type, 'UTF8')", "convert_to(error_message, 'UTF8')", "payload")
        anywhere = " OR ".join(f"position({{}}::bytea IN {column}) > 0" for column in columns)
        conditions.add(f"({anywhere})", _bytes(wanted.text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_MOST_READS = 10
"""How often the horizon is read again if a transaction ends while it is read."""


_N_BITS = 63


def position_of(xid: int, n: int) -> int:
    """Return a position in the log as one number: the transaction, then the event within it."""
    return xid << _N_BITS | n


def event_key(position: int) -> tuple[str, int]:
    """Return the transaction and number of a position, as parameters."""
    return str(position >> _N_BITS), position & (1 << _N_BITS) - 1


def array_text(values: Iterable[Any]) -> str:
    """Return numbers, flags, names or bytes as the text of an array; the driver is ten times slower."""
    written = [
        '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if isinstance(value, str)
        else _ELEMENTS[type(value)](value)
        for value in values
    ]
    return "{" + ",".join(written) + "}"


_ELEMENTS: dict[type, Callable[[Any], str]] = {
    int: str,
    bool: lambda flag: "t" if flag else "f",
    bytes: lambda data: '"\\\\x' + data.hex() + '"',
    type(None): lambda _: "NULL",
}


@dataclass
class PostgresQueries:
    """Runs statements on a session, and records whether any of them may have locked rows."""

    _session: Session
    _sql: Statements
    _horizon: int | None = None
    holds_rows: bool = False
    """Whether it may have locked rows that other transactions wait for."""

    @property
    def horizon(self) -> int:
        """The transaction before which the log may be read; read once, so that all reads agree."""
        if self._horizon is None:
            self._horizon = find_horizon(self._session, self._sql)
        return self._horizon

    def rows(self, statement: str, *values: Any) -> Iterator[Row]:
        self.holds_rows = self.holds_rows or "UPDATE" in statement
        return iter(self._session.rows(statement, values))

    def one(self, statement: str, *values: Any) -> Row | None:
        return next(self.rows(statement, *values), None)

    def run(self, statement: str, *values: Any) -> int:
        self.holds_rows = True
        return self._session.run(statement, values)

    def many(self, statement: str, rows: Iterable[Row]) -> None:
        self._session.many(statement, list(rows))

    listed = staticmethod(array_text)

    def log_position(self, position: int) -> tuple[Any, ...]:
        return event_key(position)

    def log_range(self, after: int) -> tuple[Any, ...]:
        return *event_key(after), str(self.horizon)

    def positioned(self, row: Row) -> tuple[int, Row]:
        return position_of(row[0], row[1]), row[2:]


class PostgresReader(SQLReader):
    """All reads, in one transaction."""

    def __init__(
        self,
        session: Session,
        sql: Statements,
        seen: Seen | None = None,
        horizon: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._log = PostgresQueries(session, sql, horizon)
        super().__init__(sql, self._log, seen)
        self._clock = clock
        self._session = session

    def time(self) -> int:
        if self._clock is not None:
            return to_micros(self._clock.now())
        ((now,),) = self._rows(self._sql.now)
        return int(now)

    def records_by_key(self, pairs: Sequence[tuple[str, str]], since: int) -> dict[tuple[str, str], Record | Tombstone]:
        return records_by_key(self, self._sql, pairs, since)

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        states = super().key_states(queue, keys)
        for key, jobs in self._rows(self._sql.released_slots, queue, self._listed(keys)):
            states[key].running_count -= jobs
        return states

    def _found(self, search: Search) -> Iterator[Row]:
        return found(self._session, self._sql, search)

    def count_delayed(self, queues: Sequence[str] | None, now: int) -> int:
        ((delayed,),) = self._rows(self._sql.count_delayed, self._listed(self._eligible_queues(queues)), now)
        return int(delayed)

    def next_due(self, queues: Sequence[str] | None, after: int) -> int | None:
        ((first,),) = self._rows(self._sql.next_due, self._listed(self._eligible_queues(queues)), after)
        return None if first is None else int(first)

    def _eligible_queues(self, queues: Sequence[str] | None) -> Iterable[str]:
        return {name for (name,) in self._rows(self._sql.known_queues)} if queues is None else queues

    def log_ends(self, queue: str | None) -> LogEnds:
        ((log, next_xid),) = self._rows(self._sql.meta)
        anywhere = position_of(*(self._one(self._sql.pruned_anywhere) or (0, 0)))
        pruned = None if queue is None else self._one(self._sql.pruned, queue)
        of_queue = 0 if pruned is None else position_of(*pruned[:2])
        last = position_of(*(self._one(self._sql.last_event, str(self._log.horizon)) or (0, 0)))
        pruned_through = anywhere if queue is None else of_queue
        end, certain = position_of(next_xid, 0), position_of(self._log.horizon, 0)
        return LogEnds(log, pruned_through, anywhere, max(last, anywhere), end, certain)


def records_by_key(
    lookups: SQLLookups, sql: Statements, pairs: Sequence[tuple[str, str]], since: int
) -> dict[tuple[str, str], Record | Tombstone]:
    """The jobs of (queue, idempotency key) pairs, or the tombstones of those removed after `since`."""
    wanted = [lookups._listed(names) for names in zip(*pairs, strict=True)]
    known: dict[tuple[str, str], Record | Tombstone] = {}
    for tombstone in map(tombstone_of_row, lookups._rows(sql.tombstones_behind_keys, *wanted, since)):
        known[tombstone.queue, tombstone.idempotency_key or ""] = tombstone
    for record in lookups._records(lookups._rows(sql.jobs_behind_keys, *wanted)):
        known[record.queue, record.idempotency_key or ""] = record
    return known


def find_horizon(session: Session, sql: Statements) -> int:
    """Return the transaction before which the log may be read. Outside a transaction each read has a new snapshot."""
    for _ in range(_MOST_READS):
        ((horizon, known),) = session.rows(sql.horizon)
        if known:
            break
    return int(horizon)
