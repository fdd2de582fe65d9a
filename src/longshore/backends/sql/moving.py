"""What both sides of a move count and compare: the same statements in every dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from longshore.backends.moving import TABLES, Inventory
from longshore.backends.sql.columns import Row
from longshore.backends.statements import Statements

_COUNTED = (*TABLES, "job_tags", "queues", "concurrency_keys", "schedules", "api_tokens")
"""In the order of the columns of `row_counts`."""


class SQLHouse(ABC):
    """A store that can be compared with another."""

    name: str
    _sql: Statements

    @abstractmethod
    def _rows(self, statement: str, *values: Any) -> Iterable[Row]:
        """The rows a statement finds."""

    def _named(self, what: str, table: str) -> str:
        statement: str = getattr(self._sql, f"{what}_{table}")
        return statement

    def _one(self, statement: str, *values: Any) -> Row:
        (row,) = self._rows(statement, *values)
        return row

    def span(self, table: str) -> tuple[int, int] | None:
        lowest, highest = self._one(self._named("span_of", table))
        return None if lowest is None else (lowest, highest)

    def digest(self, table: str, block: range) -> Row:
        return self._one(self._named("digest_of", table), block.start, block.stop)

    def inventory(self) -> Inventory:
        jobs: dict[str, dict[str, tuple[int, int]]] = {}
        for queue, status, count, retries in self._rows(self._sql.recount):
            jobs.setdefault(queue, {})[status] = (count, retries)
        counts = self._one(self._sql.row_counts)
        return Inventory(dict(zip(_COUNTED, counts, strict=True)), self._one(self._sql.digest_of_job_tags), jobs)
