"""Looking into the file: records from rows, pages, tallies, events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

from longshore.backends.contract import WorkerInfo
from longshore.backends.rows import schedule_of, worker_of
from longshore.backends.sqlite.connection import DamagedRow
from longshore.backends.sqlite.search import search
from longshore.backends.sqlite.statements import SQL
from longshore.backends.transaction import QueueState
from longshore.backends.view import LogEnds, Tally
from longshore.core.change import EventRow
from longshore.core.cron import Schedule
from longshore.core.filtering import JobFilter, matches_data
from longshore.core.job import LogEntry
from longshore.core.lifecycle import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.limits import Window, rate_of
from longshore.core.moments import from_micros
from longshore.core.record import Record


class _Statuses(dict[str | None, Any]):
    """Statuses by their stored names: a dict, because asking the enum costs ten times as much and every row asks."""

    def __missing__(self, name: object) -> None:
        raise DamagedRow(f"a row has the status {name!r}")


STATUS = _Statuses({None: None} | {status.value: status for status in JobStatus})

Row = tuple[Any, ...]

_FOLLOWERS_REMEMBERED = 1_000


def record_of_row(row: Row) -> Record:
    """A row of `job_columns` as a record; dependencies are kept elsewhere and filled in by `SQLiteView`."""
    record = Record(*row)
    record.status = STATUS[record.status]
    record.tags = tuple(json.loads(record.tags)) if record.tags else ()  # type: ignore[arg-type]  # text until here
    record.lifo = record.lifo == 1
    record.parked = record.parked == 1
    return record


def tags_text(tags: tuple[str, ...]) -> str:
    """Tags as the `tags` column holds them: empty text for none, as most jobs have none."""
    return json.dumps(tags, ensure_ascii=False) if tags else ""


class SQLiteView:
    """Everything that only looks, on one connection.

    `seen` remembers, for followers of one queue, up to where the log has nothing more for them: else a quiet queue's
    follower would read through a busy queue's events again at every look.
    """

    def __init__(self, connection: apsw.Connection, seen: dict[tuple[str, int], int] | None = None) -> None:
        self._connection = connection
        self._seen = {} if seen is None else seen

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        return self._connection.execute(statement, values)

    def _one(self, statement: str, *values: Any) -> Row | None:
        return self._connection.execute(statement, values).fetchone()

    def _records(self, rows: Iterable[Row]) -> list[Record]:
        return [self._whole(record_of_row(row)) for row in rows]

    def _whole(self, record: Record) -> Record:
        if record.deps_total:
            record.depends_on = tuple(name for (name,) in self._rows(SQL.dependencies_of, record.uid))
        return record

    # -- jobs

    def job(self, job_id: str) -> Record | None:
        row = self._one(SQL.job_by_id, job_id)
        return None if row is None else self._whole(record_of_row(row))

    def page(self, wanted: JobFilter, before: int | None, limit: int) -> list[Record]:
        found: list[Record] = []
        for row in search(self._connection, wanted, before, self.counts_by_queue(), limit):
            record = record_of_row(row)
            if matches_data(wanted, record.payload):
                found.append(self._whole(record))
                if len(found) == limit:
                    break
        return found

    def tallies(self, tags: Sequence[str], queue: str | None) -> dict[JobStatus, Tally]:
        if not tags:
            rows = self._rows(SQL.tallies, queue)
        elif len(tags) == 1:
            rows = self._rows(SQL.tallies_with_tag, tags[0], queue)
        else:
            rows = self._rows(SQL.tallies_with_tags, tags[0], queue, json.dumps(list(tags[1:])))
        return {STATUS[status]: Tally(jobs, retries) for status, jobs, retries in rows if jobs}

    def counts_by_queue(self) -> dict[str, dict[JobStatus, int]]:
        counts: dict[str, dict[JobStatus, int]] = {}
        for queue, status, jobs in self._rows(SQL.counts):
            counts.setdefault(queue, {})[STATUS[status]] = jobs
        return counts

    def logs(self, job_id: str, after: int) -> list[LogEntry] | None:
        uid = self._one(SQL.uid_of, job_id)
        if uid is None:
            return None
        rows = self._rows(SQL.logs, uid[0], after)
        return [LogEntry(number, from_micros(at), level, message) for number, at, level, message in rows]

    # -- events

    def log_ends(self, queue: str | None) -> LogEnds:
        ((log, _, next_event),) = self._rows(SQL.meta)
        ((anywhere,),) = self._rows(SQL.pruned_anywhere)
        pruned = (anywhere,) if queue is None else self._one(SQL.pruned, queue)
        return LogEnds(log, 0 if pruned is None else pruned[0], anywhere, next_event - 1)

    def events(self, after: int, limit: int, queue: str | None, job_id: str | None) -> list[tuple[int, EventRow]]:
        if job_id is not None:
            rows = self._rows(SQL.events_of_job, after, job_id, queue, limit)
        elif queue is not None:
            return self._events_of_queue(after, limit, queue)
        else:
            rows = self._rows(SQL.events, after, limit)
        return _numbered(rows)

    def _events_of_queue(self, after: int, limit: int, queue: str) -> list[tuple[int, EventRow]]:
        begin = self._seen.get((queue, after), after)
        found = _numbered(self._rows(SQL.events_of_queue, begin, queue, limit))
        if len(found) < limit:
            if len(self._seen) >= _FOLLOWERS_REMEMBERED:
                self._seen.clear()
            self._seen[queue, found[-1][0] if found else after] = self.log_ends(queue).last
        return found

    # -- queues, schedules, workers

    def queue_states(self, names: Sequence[str] | None) -> dict[str, QueueState]:
        if names is None:
            kept = {row[0]: queue_of_row(row) for row in self._rows(SQL.queues)}
            counts = self.counts_by_queue()
            for name in counts:
                kept.setdefault(name, QueueState(name))
        else:
            kept = {}
            counts = {}
            for name in names:
                row = self._one(SQL.queue, name)
                kept[name] = QueueState(name) if row is None else queue_of_row(row)
                counts[name] = {STATUS[status]: jobs for status, jobs in self._rows(SQL.counts_of, name)}
        for name, state in kept.items():
            of = counts.get(name, {})
            state.holding = sum(of.get(status, 0) for status in HOLDS_CAPACITY)
            state.eligible = sum(of.get(status, 0) for status in ELIGIBLE)
        return kept

    def schedules(self) -> list[Schedule]:
        return [schedule_of(body) for (body,) in self._rows(SQL.schedules)]

    def workers(self) -> list[WorkerInfo]:
        return [worker_of(body) for (body,) in self._rows(SQL.workers)]


def queue_of_row(row: Row) -> QueueState:
    """A row of `queue_columns` as a state, its counts still to be filled in."""
    name, paused, running, per_key, count, per, key_count, key_per, start, used, finished, dead, events = row
    return QueueState(
        name,
        paused == 1,
        running,
        per_key,
        rate_of(count, per),
        rate_of(key_count, key_per),
        Window(start, used),
        finished,
        dead,
        events,
    )


def _numbered(rows: Iterable[Row]) -> list[tuple[int, EventRow]]:
    found = []
    for number, uid, id_, seq, of, type_, event, source, target, *rest in rows:
        found.append((number, EventRow(uid, id_, seq, of, type_, event, STATUS[source], STATUS[target], *rest)))
    return found
