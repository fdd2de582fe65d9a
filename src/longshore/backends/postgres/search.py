"""Finding jobs by a filter, newest first: SQL put together from fixed pieces, values always bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longshore.backends.postgres.session import Session
from longshore.backends.sql.columns import Row
from longshore.backends.statements import Statements
from longshore.core.filtering import JobFilter
from longshore.core.lifecycle import JobStatus
from longshore.core.moments import to_micros

_READ_AT_ONCE = 500


def search(session: Session, sql: Statements, wanted: JobFilter, before: int | None, limit: int) -> Iterator[Row]:
    """Rows that match all but `wanted.data`, read a page at a time, newest first."""
    enough = max(limit, _READ_AT_ONCE) if wanted.data else limit
    while True:
        conditions = _Conditions()
        _add(conditions, wanted, before, sql)
        rows = session.rows(f"{sql.jobs_where} {conditions.text} ORDER BY uid DESC LIMIT {enough:d}", conditions.values)
        yield from rows
        if len(rows) < enough:
            return
        before = rows[-1][0]


class _Conditions:
    """Conditions and the values they are bound to, numbered as they come."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._texts: list[str] = []

    def add(self, text: str, value: Any) -> None:
        """One more; `{}` in its text stands for the value."""
        self.values.append(value)
        self._texts.append(text.replace("{}", f"${len(self.values)}"))

    @property
    def text(self) -> str:
        return " AND ".join(self._texts) or "true"


def _add(conditions: _Conditions, wanted: JobFilter, before: int | None, sql: Statements) -> None:
    if before is not None:
        conditions.add("uid < {}", before)
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
        places = ("convert_to(id, 'UTF8')", "convert_to(type, 'UTF8')", "convert_to(error_message, 'UTF8')", "payload")
        found = " OR ".join(f"position({{}}::bytea IN {place}) > 0" for place in places)
        conditions.add(f"({found})", _bytes(wanted.text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
