"""Tables: a few rows on the page, all of them as CSV; the same columns in both."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from longshore.spark.report.markup import Markup, clipped, inert_cell, tag
from longshore.spark.report.scales import count, share, span

Row = Mapping[str, Any]

SHOWN_ROWS = 15


@dataclass(frozen=True)
class Column:
    """One column: where its value is, what stands above it, and how the value is written on the page."""

    name: str
    title: str
    written: Callable[[Any], str] = str
    kind: str | None = None
    """The class of its cells."""


def text(name: str, title: str, most: int = 48) -> Column:
    """Names and the like, whole when pointed at; nothing is a dash."""
    return Column(name, title, lambda value: "–" if value in (None, "") else clipped(value, most))


def counted(name: str, title: str) -> Column:
    """How many."""
    return Column(name, title, lambda value: "–" if value is None else count(value), kind="number")


def shared(name: str, title: str) -> Column:
    """A part of all."""
    return Column(name, title, share, kind="number")


def spanned(name: str, title: str) -> Column:
    """Seconds."""
    return Column(name, title, span, kind="number")


def timed(name: str, title: str) -> Column:
    """A time in UTC, to the minute."""
    return Column(name, title, lambda value: "–" if value is None else f"{value:%Y-%m-%d %H:%M}", kind="still")


def on_the_page(columns: Sequence[Column], rows: Sequence[Row], total: int, file: str) -> Markup:
    """The first rows, and where the rest is."""
    head = tag("tr", [tag("th", column.title, scope="col", class_=column.kind) for column in columns])
    body = [tag("tr", [_cell(column, row[column.name]) for column in columns]) for row in rows]
    link = tag("a", file, href=file)
    more = (
        f"The first {count(len(rows))} of {count(total)} rows; all of them in " if total > len(rows) else "As a file: "
    )
    table = tag("table", tag("thead", head), tag("tbody", body))
    return Markup(tag("div", table, class_="scroll") + tag("p", more, link, class_="more"))


def _cell(column: Column, value: Any) -> Markup:
    written = column.written(value)
    whole = value if isinstance(value, str) and "…" in written else None
    return tag("td", written, class_=column.kind, title=whole)


class Written(NamedTuple):
    """A table that is a file now."""

    rows: int
    first: list[Row]
    """What the page shows of it."""


def as_csv(path: Path, columns: Sequence[Column], rows: Iterable[Row], shown: int = SHOWN_ROWS) -> Written:
    """Write all rows, with exact values under the columns' own names, and keeps the first of them."""
    written = 0
    first: list[Row] = []
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow([column.name for column in columns])
        for row in rows:
            out.writerow([inert_cell(_plain(row[column.name])) for column in columns])
            written += 1
            if written <= shown:
                first.append(row)
    return Written(written, first)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
