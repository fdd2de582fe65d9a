"""One section of the page: what it tells, its drawing, and the table beneath."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longshore.spark.report.markup import Markup
from longshore.spark.report.tables import Column, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Section:
    """`name` is its anchor on the page and the name of its file."""

    name: str
    title: str
    told: str
    """How to read it, in a sentence or two."""
    drawing: Markup | None
    """None where there is nothing to draw yet."""
    columns: Sequence[Column]
    table: DataFrame
    """All rows in their order; the page shows the first of them."""

    @property
    def file(self) -> str:
        """The name of its table as a file."""
        return f"{self.name}.csv"

    def rows(self) -> Iterable[Row]:
        """Every row, a part of them in memory at a time; worked out anew whenever it is asked for."""
        return (row.asDict() for row in self.table.coalesce(1).toLocalIterator())
