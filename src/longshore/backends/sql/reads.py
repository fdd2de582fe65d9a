"""The reader over named statements, shared by every dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from longshore.backends.base import WorkerInfo
from longshore.backends.export import Condition, Part, Wanted
from longshore.backends.port import Edge, Hold, KeyState, LogEnds, QueueState, Search, Tally
from longshore.backends.rows import schedule_of, worker_of
from longshore.backends.sql.rows import STATUS, Queries, Row, event_of_row, key_of_row, queue_of_row, record_of_row
from longshore.backends.sql.statements import Statements
from longshore.backends.sql.token_queries import SQLTokens
from longshore.core.clock import ClockStep
from longshore.core.explain import Holder
from longshore.core.filters import matches_data
from longshore.core.job import LogEntry
from longshore.core.job_record import Record
from longshore.core.schedule import Schedule
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.times import from_micros, optional_moment
from longshore.core.transitions import EventRow

BEFORE_ALL = -(2**63)
"""Less than every priority and every sort key."""
_FOLLOWERS_REMEMBERED = 1_000
_PAYLOAD = 4
"""The index of the payload in `job_columns`."""

Seen = dict[tuple[str, int], int]
"""For readers of one queue, by queue and position: the log has nothing more for them up to here."""


class SQLLookups:
    """Lookups shared by a reader and a write transaction."""

    def __init__(self, sql: Statements, queries: Queries) -> None:
        self._sql = sql
        self._queries = queries
        self._rows = queries.rows
        self._one = queries.one
        self._run = queries.run
        self._many = queries.many
        self._listed = queries.listed

    def _priorities(self, queue: str, after: int = BEFORE_ALL) -> Iterator[int]:
        """The priorities of eligible jobs, by one index seek each."""
        priority = self._one(self._sql.next_priority, queue, after)
        while priority is not None:
            yield priority[0]
            priority = self._one(self._sql.next_priority, queue, priority[0])

    def _records(self, rows: Iterable[Row]) -> list[Record]:
        records = [record_of_row(row) for row in rows]
        dependent = [record.uid for record in records if record.deps_total]
        if dependent:
            names = self._dependencies_of(dependent)
            for record in records:
                record.depends_on = names.get(record.uid, ())
        return records

    def _dependencies_of(self, uids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """The dependencies of jobs, in the order of their lists."""
        names: dict[int, list[str]] = defaultdict(list)
        for uid, name in self._rows(self._sql.dependencies_of, self._listed(uids)):
            names[uid].append(name)
        return {uid: tuple(listed) for uid, listed in names.items()}

    def jobs_seen(self, job_ids: Sequence[str]) -> dict[str, Record]:
        rows = self._rows(self._sql.jobs_seen, self._listed(job_ids))
        return {record.id: record for record in self._records(rows)}

    def counts_by_queue(self) -> dict[str, dict[JobStatus, int]]:
        counts: dict[str, dict[JobStatus, int]] = {}
        for queue, status, jobs in self._rows(self._sql.counts):
            counts.setdefault(queue, {})[STATUS[status]] = int(jobs)
        return counts

    def queue_states(self, names: Sequence[str] | None, _hold: Hold = Hold.SHARED) -> dict[str, QueueState]:
        if names is None:
            kept = {row[0]: queue_of_row(row) for row in self._rows(self._sql.queues)}
            counts = self._rows(self._sql.counts)
        else:
            rows = [row for name in names for row in self._rows(self._sql.queue, name)]
            known = {row[0]: queue_of_row(row) for row in rows}
            kept = {name: known.get(name) or QueueState(name) for name in names}
            counts = ((name, *row) for name in names for row in self._rows(self._sql.counts_of, name))
        for name, status, jobs in counts:
            state = kept.get(name) or kept.setdefault(name, QueueState(name))
            if status in HOLDS_CAPACITY:
                state.running_count += int(jobs)
            elif status in ELIGIBLE:
                state.eligible += int(jobs)
        return kept

    def known_queues(self) -> list[str]:
        return [name for (name,) in self._rows(self._sql.known_queues)]

    def schedules(self, ids: Sequence[str] | None) -> list[Schedule]:
        rows = (
            self._rows(self._sql.schedules)
            if ids is None
            else self._rows(self._sql.schedules_by_ids, self._listed(ids))
        )
        return [schedule_of(*row) for row in rows]

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        known = {row[1]: key_of_row(row) for row in self._rows(self._sql.key_states, queue, self._listed(keys))}
        return {key: known.get(key) or KeyState(queue, key) for key in keys}

    def edges_from(self, job_id: str) -> list[Edge]:
        return [Edge(*row) for row in self._rows(self._sql.edges_from, job_id)]


class SQLReader(SQLLookups, ABC):
    """Reads on one connection.

    `seen` saves a reader of a quiet queue from reading a busy queue's events again each time.
    """

    def __init__(self, sql: Statements, queries: Queries, seen: Seen | None = None) -> None:
        super().__init__(sql, queries)
        self._seen: Seen = {} if seen is None else seen

    @property
    def api_tokens(self) -> SQLTokens:
        """The API tokens."""
        return SQLTokens(self._sql, self._queries, 0)

    @abstractmethod
    def _found(self, search: Search) -> Iterator[Row]:
        """Rows that match all conditions except `wanted.data`, in the requested order, read lazily."""

    @abstractmethod
    def log_ends(self, queue: str | None) -> LogEnds:
        """The positions of the event log."""

    # -- jobs

    def clock_step(self) -> ClockStep | None:
        """None, unless the store uses the machine's clock and detects steps of it."""
        return None

    def job(self, job_id: str) -> Record | None:
        return next(iter(self._records(self._rows(self._sql.job_by_id, job_id))), None)

    def page(self, search: Search) -> list[Record]:
        found: list[Row] = []
        for row in self._found(search):
            if not search.wanted.data or matches_data(search.wanted, row[_PAYLOAD]):
                found.append(row)
                if len(found) == search.limit:
                    break
        return self._records(found)

    def tallies(self, tags: Sequence[str], queue: str | None) -> dict[JobStatus, Tally]:
        if not tags:
            rows = self._rows(self._sql.tallies, queue)
        elif len(tags) == 1:
            rows = self._rows(self._sql.tallies_with_tag, tags[0], queue)
        else:
            rows = self._rows(self._sql.tallies_with_tags, tags[0], queue, self._listed(tags[1:]))
        return {STATUS[status]: Tally(int(jobs), int(retries)) for status, jobs, retries in rows if jobs}

    def logs(self, job_id: str, after: int) -> list[LogEntry] | None:
        uid = self._one(self._sql.uid_of, job_id)
        if uid is None:
            return None
        rows = self._rows(self._sql.logs, uid[0], after)
        return [LogEntry(number, from_micros(at), level, message) for number, at, level, message in rows]

    # -- events

    def events(self, after: int, limit: int, queue: str | None, job_id: str | None) -> list[tuple[int, EventRow]]:
        if job_id is not None:
            return self._events(
                self._rows(self._sql.events_of_job, *self._queries.log_range(after), job_id, queue, limit)
            )
        if queue is not None:
            return self._events_of_queue(after, limit, queue)
        return self._events(self._rows(self._sql.events, *self._queries.log_range(after), limit))

    def _events(self, rows: Iterable[Row]) -> list[tuple[int, EventRow]]:
        return [(position, event_of_row(columns)) for position, columns in map(self._queries.positioned, rows)]

    def _events_of_queue(self, after: int, limit: int, queue: str) -> list[tuple[int, EventRow]]:
        begin = self._seen.get((queue, after), after)
        last = self.log_ends(queue).last
        found = self._events(self._rows(self._sql.events_of_queue, *self._queries.log_range(begin), queue, limit))
        if len(found) < limit:
            if len(self._seen) >= _FOLLOWERS_REMEMBERED:
                self._seen.clear()
            self._seen[queue, found[-1][0] if found else after] = max(last, found[-1][0] if found else after)
        return found

    # -- queues, schedules, workers

    def next_firing(self) -> int | None:
        ((planned,),) = self._rows(self._sql.next_firing)
        return None if planned is None else int(planned)

    def rated_queues(self) -> list[QueueState]:
        return [queue_of_row(row) for row in self._rows(self._sql.rated_queues)]

    def next_window_end(self, queue: str, now: int) -> int | None:
        row = self._one(self._sql.next_window_end, queue, now)
        return None if row is None else int(row[0])

    def holders(self, queue: str, key: str | None, limit: int) -> list[Holder]:
        rows = sorted(self._rows(self._sql.holders, queue, key, limit), key=lambda row: (row[0] or 0, row[1]))
        return [Holder(job_id, worker, optional_moment(since)) for since, job_id, worker in rows]

    def ahead_of(self, record: Record, now: int, limit: int) -> int:
        before = (record.priority, record.sort_key, record.uid)
        ((ahead,),) = self._rows(self._sql.ahead_of, record.queue, now, *before, limit)
        return int(ahead)

    def recent_ends(self, queue: str, since: int, limit: int) -> list[int]:
        return [end for (end,) in self._rows(self._sql.recent_ends, queue, since, limit)]

    def workers(self) -> list[WorkerInfo]:
        return [worker_of(body) for (body,) in self._rows(self._sql.workers)]


_STORED_AS = {"jobs": "jobs", "events": "job_events", "logs": "job_logs"}
_ALL_UIDS = Part(0, 2**63 - 1)


class SQLBulkReader(ABC):
    """Builds statements from fixed parts; the dialect decides how to pass values."""

    _sql: Statements
    _expressions: Mapping[str, Mapping[str, str]]
    """Columns that have other names in the tables."""

    @abstractmethod
    def _value(self, value: Any, values: list[Any]) -> str:
        """A value as SQL, or a placeholder with the value appended to `values`."""

    @abstractmethod
    def _within(self, table: str, part: Part, values: list[Any]) -> list[str]:
        """The conditions for the rows of a part."""

    def _named(self, what: str, table: str) -> str:
        statement: str = getattr(self._sql, f"{what}_{table}")
        return statement

    def _select(self, wanted: Wanted, part: Part) -> tuple[str, list[Any]]:
        values: list[Any] = []
        texts = self._within(wanted.table, part, values)
        texts += [self._condition(wanted.table, condition, values) for condition in wanted.conditions]
        columns = ", ".join(f"{self._column(wanted.table, name)} AS {name}" for name in wanted.columns)
        origin = self._named("bulk", _STORED_AS[wanted.table])
        return f"SELECT {columns or '1'} {origin} WHERE {' AND '.join(texts)}", values

    def _column(self, table: str, name: str) -> str:
        return self._expressions.get(table, {}).get(name, name)

    def _condition(self, table: str, condition: Condition, values: list[Any]) -> str:
        column = self._column(table, condition.column)
        if condition.operator in ("is null", "is not null"):
            return f"{column} {condition.operator.upper()}"
        if condition.operator == "in":
            return f"{column} IN ({self._values(condition.value, values)})"
        return f"{column} {condition.operator} {self._value(condition.value, values)}"

    def _values(self, wanted: Iterable[Any], values: list[Any]) -> str:
        return ", ".join(self._value(value, values) for value in wanted)


def parts_by_uid(span: tuple[int, int] | None, count: int) -> list[Part]:
    """Split the uids evenly. A single part also covers uids that are added before it is read."""
    if count <= 1 or span is None:
        return [_ALL_UIDS]
    return even_parts(Part(span[0] - 1, span[1]), count)


def even_parts(whole: Part, count: int) -> list[Part]:
    """Split a range into parts of equal length."""
    size = max(1, -(-(whole.through - whole.after) // count))
    return [Part(start, min(start + size, whole.through)) for start in range(whole.after, whole.through, size)]
