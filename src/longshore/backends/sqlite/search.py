"""Finding jobs by a filter, newest first: SQL put together from fixed pieces, values always bound."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import apsw

from longshore.backends.sqlite.statements import SQL
from longshore.core.filtering import JobFilter
from longshore.core.lifecycle import JobStatus
from longshore.core.moments import to_micros

_LISTED = "IN (SELECT value FROM json_each(?))"
_READ_AT_ONCE = 500
_FEW = 20_000
"""Up to here all jobs in a status are fetched through its index and sorted; beyond, the newest are met soon enough."""

# which index leads straight to the jobs of a queue in a status; a partial index is used only if told its own words
_IN_LINE = "status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND parked = 0"
_UNSTARTED = f"queue = ? AND status = 'INITIAL_PENDING' AND {_IN_LINE}"
_PARKED = "queue = ? AND status = 'INITIAL_PENDING' AND parked = 1"
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


def search(
    connection: apsw.Connection, wanted: JobFilter, before: int | None, counts: Counts, limit: int
) -> Iterator[tuple[Any, ...]]:
    """Rows that match all but `wanted.data`, read one by one, newest first."""
    enough = max(limit, _READ_AT_ONCE) if wanted.data else limit
    while True:
        uids = _newest(connection, wanted, before, counts, enough)
        for uid in uids:
            yield from connection.execute(SQL.job_by_uid, (uid,))
        if len(uids) < enough:
            return
        before = uids[-1]


def _newest(
    connection: apsw.Connection, wanted: JobFilter, before: int | None, counts: Counts, limit: int
) -> list[int]:
    conditions = _conditions(wanted, before)
    if not wanted.statuses or wanted.ids or wanted.tags or wanted.parent_id or wanted.schedule_id:
        for column, names in (("status", wanted.statuses), ("queue", wanted.queues)):
            if names:
                conditions.add(f"{column} {_LISTED}", json.dumps(list(names)))
        return _uids(connection, "jobs", conditions, limit)
    found: list[int] = []
    for queue, of in counts.items():
        for status in {JobStatus(status) for status in wanted.statuses}:
            if of.get(status) and (not wanted.queues or queue in wanted.queues):
                found += _newest_in(connection, queue, status, of[status], conditions, limit)
    return sorted(found, reverse=True)[:limit]


def _newest_in(
    connection: apsw.Connection, queue: str, status: JobStatus, count: int, conditions: _Conditions, limit: int
) -> list[int]:
    """The newest in one queue and status: by its index, or for a crowd by walking back from the newest of all."""
    if status is JobStatus.INITIAL_PENDING and count <= _FEW:
        places = [
            ("jobs INDEXED BY jobs_claimable", _UNSTARTED),
            ("jobs INDEXED BY jobs_parked", _PARKED),
        ]
    elif status is JobStatus.RUNNING:
        places = [("jobs INDEXED BY jobs_held", _RUNNING)]
    elif status is JobStatus.COMPLETED and count <= _FEW:
        places = [("jobs INDEXED BY jobs_by_end", _COMPLETED)]
    elif status in (JobStatus.INITIAL_PENDING, JobStatus.COMPLETED):
        places = [("jobs NOT INDEXED", f"queue = ? AND status = '{status}'")]
    else:
        places = [("jobs INDEXED BY jobs_by_status", _OTHER.format(status=status))]
    found: list[int] = []
    for place, condition in places:
        here = _Conditions([condition, *conditions.texts], [queue, *conditions.values])
        found += _uids(connection, place, here, limit)
    return found


def _uids(connection: apsw.Connection, place: str, conditions: _Conditions, limit: int) -> list[int]:
    where = " AND ".join(conditions.texts) or "1"
    rows = connection.execute(
        f"SELECT uid FROM {place} WHERE {where} ORDER BY uid DESC LIMIT ?", (*conditions.values, limit)
    )
    return [uid for (uid,) in rows]


def _conditions(wanted: JobFilter, before: int | None) -> _Conditions:
    conditions = _Conditions([], [])
    if before is not None:
        conditions.add("uid < ?", before)
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
        found = " OR ".join(f"instr({place}, ?) > 0" for place in places)
        conditions.add(f"({found})", *[wanted.text.encode("utf-8", "surrogatepass")] * len(places))
    return conditions
