"""Finding jobs by a filter, in order of uid: SQL put together from fixed pieces, values always bound."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import apsw

from longshore.backends.sqlite.statements import SQL
from longshore.backends.view import Search
from longshore.core.status import JobStatus
from longshore.core.times import to_micros

_LISTED = "IN (SELECT value FROM json_each(?))"
_READ_AT_ONCE = 500
_FEW = 20_000
"""Up to here all jobs in a status are fetched through its index and sorted; beyond, the newest are met soon enough."""

# which index leads straight to the jobs of a queue in a status; a partial index is used only if told its own words
_ELIGIBLE = "('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')"
_IN_LINE = f"status IN {_ELIGIBLE} AND parked = 0"
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
