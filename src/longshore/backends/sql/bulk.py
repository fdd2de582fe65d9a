"""Reading in bulk, over named statements: what every dialect puts together in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from longshore.backends.bulk import Condition, Part, Wanted
from longshore.backends.statements import Statements

_STORED_AS = {"jobs": "jobs", "events": "job_events", "logs": "job_logs"}
_ALL_UIDS = Part(0, 2**63 - 1)


class SQLBulkReader(ABC):
    """SQL put together from fixed pieces; how a value gets into it is up to the dialect."""

    _sql: Statements
    _expressions: Mapping[str, Mapping[str, str]]
    """Columns that are not called in the tables what they are called here."""

    @abstractmethod
    def _value(self, value: Any, values: list[Any]) -> str:
        """A value as SQL, or a mark for it and the value in its place."""

    @abstractmethod
    def _within(self, table: str, part: Part, values: list[Any]) -> list[str]:
        """Conditions that hold for the rows of a part."""

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
    """Even parts of the uids there are; a single one is all there is, whatever comes until it is read."""
    if count <= 1 or span is None:
        return [_ALL_UIDS]
    return even_parts(Part(span[0] - 1, span[1]), count)


def even_parts(whole: Part, count: int) -> list[Part]:
    """Parts of as many positions each."""
    size = max(1, -(-(whole.through - whole.after) // count))
    return [Part(start, min(start + size, whole.through)) for start in range(whole.after, whole.through, size)]
