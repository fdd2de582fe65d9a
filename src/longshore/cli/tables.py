"""Tables for people: whole ids, columns in one order, folded to fit, and one line for each value where it is narrow."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LEAST = 12
"""Columns of a terminal below which folded text is no longer read with pleasure."""
_GAP = 2
_COLOURS = {
    "COMPLETED": "green",
    "DEAD": "red",
    "problem": "red",
    "warning": "yellow",
    "ok": "green",
    "RUNNING": "cyan",
    "CANCELLING": "yellow",
    "FAILED_RETRY": "yellow",
    "UNKNOWN_RETRY": "yellow",
    "paused": "yellow",
}
"""Words that have a colour of their own where there is colour; all of them are ours, never a user's."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. A `whole` one is never folded: ids are copied from here."""

    name: str
    whole: bool = False
    right: bool = False
    coloured: bool = False


def drawn(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, heads: bool, terminal: bool) -> Iterator[str]:
    """The lines of a table; its cells must be inert already."""
    from rich.cells import cell_len
    from rich.console import Console

    natural = [
        max([cell_len(column.name) if heads else 0, *(cell_len(row[place]) for row in rows)])
        for place, column in enumerate(columns)
    ]
    needed = [width if column.whole else min(width, _LEAST) for column, width in zip(columns, natural, strict=True)]
    whole = sum(natural) + _GAP * len(columns)  # in a file nothing is folded
    console = Console(
        file=sys.stdout,
        force_terminal=terminal,
        width=None if terminal else whole,
        highlight=False,
        markup=False,
        emoji=False,
    )
    if sum(needed) + _GAP * (len(columns) - 1) > console.width:
        yield from _one_below_another(columns, rows)
    else:
        yield from _side_by_side(console, columns, rows, natural, needed, heads=heads, colours=terminal)


def _one_below_another(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each row a block; what is long is left to the terminal to wrap."""
    width = max(len(column.name) for column in columns)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for column, cell in zip(columns, row, strict=True):
            if cell:
                yield f"{column.name:<{width}}  {cell}"


def _side_by_side(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    natural: Sequence[int],
    needed: Sequence[int],
    *,
    heads: bool,
    colours: bool,
) -> Iterator[str]:
    from rich.table import Table
    from rich.text import Text

    styled = colours and not console.no_color
    table = Table(
        box=None, show_header=heads, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold" if styled else ""
    )
    for column, most, least in zip(columns, natural, needed, strict=True):
        table.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            no_wrap=column.whole,
            overflow="fold",
            min_width=least,
            max_width=most,
        )
    for row in rows:
        cells = zip(columns, row, strict=True)
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "") if styled and c.coloured else "") for c, cell in cells))
    with console.capture() as caught:
        console.print(table)
    for line in caught.get().splitlines():
        yield line.rstrip()
