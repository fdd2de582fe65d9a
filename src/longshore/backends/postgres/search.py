"""Finding jobs by a filter, in order of uid: SQL put together from fixed pieces, values always bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longshore.backends.postgres.session import Session
from longshore.backends.sql.columns import Row
from longshore.backends.statements import Statements
from longshore.backends.view import Search
from longshore.core.status import JobStatus
from longshore.core.times import to_micros

_READ_AT_ONCE = 500


def found(session: Session, sql: Statements, search: Search) -> Iterator[Row]:
    """Rows that match all but `wanted.data`, read a page at a time."""
    enough = max(search.limit, _READ_AT_ONCE) if search.wanted.data else search.limit
    order = f"ORDER BY uid {'ASC' if search.oldest_first else 'DESC'} LIMIT {enough:d}"
    while True:
        conditions = _Conditions()
        _add(conditions, search, sql)
        rows = session.rows(f"{sql.jobs_where} {conditions.text} {order}", conditions.values)
        yield from rows
        if len(rows) < enough:
            return
        search = search._replace(past=rows[-1][0])


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
        places = ("convert_to(id, 'UTF8')", "convert_to(type, 'UTF8')", "convert_to(error_message, 'UTF8')", "payload")
        anywhere = " OR ".join(f"position({{}}::bytea IN {place}) > 0" for place in places)
        conditions.add(f"({anywhere})", _bytes(wanted.text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
