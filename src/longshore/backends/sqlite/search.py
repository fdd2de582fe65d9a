"""Finding jobs by a filter, newest first: SQL put together from fixed pieces, values always bound."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import apsw

from longshore.backends.statements import Statements
from longshore.core.filtering import JobFilter
from longshore.core.lifecycle import JobStatus
from longshore.core.moments import to_micros

SQL = Statements("longshore.backends.sqlite")

_LISTED = "IN (SELECT value FROM json_each(?))"
_SCANNED_AT_ONCE = 500


def search(
    connection: apsw.Connection,
    wanted: JobFilter,
    before: int | None,
    counts: Mapping[str, Mapping[JobStatus, int]],
    limit: int,
) -> Iterator[tuple[Any, ...]]:
    """Rows that match all but `wanted.data`, read one by one, newest first."""
    conditions, values = _conditions(wanted)
    while True:
        uids = _newest(connection, wanted, before, counts, conditions, values, max(limit, _SCANNED_AT_ONCE))
        for uid in uids:
            yield from connection.execute(f"SELECT {SQL.job_columns} FROM jobs WHERE uid = ?", (uid,))
        if len(uids) < max(limit, _SCANNED_AT_ONCE):
            return
        before = uids[-1]


def _newest(
    connection: apsw.Connection,
    wanted: JobFilter,
    before: int | None,
    counts: Mapping[str, Mapping[JobStatus, int]],
    conditions: list[str],
    values: list[Any],
    limit: int,
) -> list[int]:
    """The next uids. By status they are merged from one short walk per queue and status, each in index order."""
    older = [] if before is None else ["uid < ?"]
    older_value = [] if before is None else [before]
    if not wanted.statuses or wanted.ids or wanted.tags or wanted.parent_id or wanted.schedule_id:
        where = " AND ".join([*_status_and_queue(wanted)[0], *conditions, *older]) or "1"
        bound = [*_status_and_queue(wanted)[1], *values, *older_value, limit]
        rows = connection.execute(f"SELECT uid FROM jobs WHERE {where} ORDER BY uid DESC LIMIT ?", bound)
        return [uid for (uid,) in rows]
    found: list[int] = []
    for queue, of in counts.items():
        if wanted.queues and queue not in wanted.queues:
            continue
        for status in {JobStatus(status) for status in wanted.statuses}:
            if of.get(status):
                where = " AND ".join(["queue = ?", "status = ?", *conditions, *older])
                bound = [queue, status, *values, *older_value, limit]
                rows = connection.execute(f"SELECT uid FROM jobs WHERE {where} ORDER BY uid DESC LIMIT ?", bound)
                found += [uid for (uid,) in rows]
    return sorted(found, reverse=True)[:limit]


def _status_and_queue(wanted: JobFilter) -> tuple[list[str], list[Any]]:
    conditions, values = [], []
    for column, names in (("status", wanted.statuses), ("queue", wanted.queues)):
        if names:
            conditions.append(f"{column} {_LISTED}")
            values.append(json.dumps(list(names)))
    return conditions, values


def _conditions(wanted: JobFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []

    def add(condition: str, *bound: Any) -> None:
        conditions.append(condition)
        values.extend(bound)

    for column, names in (("type", wanted.types), ("id", wanted.ids)):
        if names:
            add(f"{column} {_LISTED}", json.dumps(list(names)))
    for tag in wanted.tags:
        add("uid IN (SELECT uid FROM job_tags WHERE tag = ?)", tag)
    for column in ("assignee_id", "parent_id", "schedule_id", "concurrency_key"):
        if getattr(wanted, column) is not None:
            add(f"{column} = ?", getattr(wanted, column))
    if wanted.created_after is not None:
        add("created_at > ?", to_micros(wanted.created_after))
    if wanted.created_before is not None:
        add("created_at < ?", to_micros(wanted.created_before))
    if wanted.error:
        add("instr(error_message, ?) > 0", wanted.error)
    if wanted.text:
        encoded = wanted.text.encode("utf-8", "surrogatepass")
        text = wanted.text
        add(
            "(instr(id, ?) > 0 OR instr(type, ?) > 0 OR instr(error_message, ?) > 0 OR instr(payload, ?) > 0)",
            text,
            text,
            text,
            encoded,
        )
    return conditions, values
