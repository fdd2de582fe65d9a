"""Output for people: escaped text, tables and progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from longshore.cli.exit_codes import Exit
from longshore.core.validation import printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

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
"""The words that are coloured on a terminal; none of them comes from a user."""


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


LogForm = Annotated[Literal["text", "json"], typer.Option("--log-format", help="How log lines are written.")]


def say(line: str = "") -> None:
    """Prints one line."""
    _write(sys.stdout, printable(line))


def say_lines(text: str, indent: str = "") -> None:
    """Text of several lines, each behind an indent, so that none can be taken for a line of ours."""
    for line in text.splitlines() or [""]:
        _write(sys.stdout, indent + printable(line))


def complain(line: str) -> None:
    """One line beside the output: what is wrong, how far it is, what to do next."""
    _write(sys.stderr, printable(line))


def say_id(name: str) -> None:
    """Prints an id on a line: unchanged to a program, escaped to a terminal."""
    _write(sys.stdout, printable(name) if sys.stdout.isatty() else name)


def say_json(value: Any) -> None:
    """One JSON document on one line, in ASCII: any text in it is inert. Streams are one such line after another."""
    _write(sys.stdout, json_text(value))


def say_model(shape: BaseModel) -> None:
    """One of `shapes.py` as JSON."""
    say_json(shape.model_dump(mode="json"))


def json_text(value: Any, default: Callable[[Any], object] | None = None) -> str:
    """As above, without writing it; `default` makes JSON of what is none."""
    return json.dumps(value, default=default).replace("\x7f", "\\u007f")


def readable_json(value: Any) -> str:
    """JSON for people, on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def say_piece(piece: str) -> None:
    """A piece of a document too long to be held at once, in ASCII as `json_text` makes it; the last ends its line."""
    _write(sys.stdout, piece, end="")


def show_table(rows: Sequence[tuple[str | int, ...]]) -> None:
    """Names to the left, numbers to the right, no heads."""
    shown = [[f"{cell:,}" if isinstance(cell, int) else printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row, texts in zip(rows, shown, strict=True):
        cells = zip(row, texts, widths, strict=True)
        line = "  ".join(
            text.rjust(width) if isinstance(cell, int) else text.ljust(width) for cell, text, width in cells
        )
        _write(sys.stdout, f"  {line.rstrip()}")


def show_rows(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, heads: bool = True) -> None:
    """A table for people: in columns, or if the terminal is too narrow for that one line for each value."""

    made = [[printable(cell) for cell in row] for row in rows]
    for line in drawn(columns, made, heads=heads, terminal=sys.stdout.isatty()):
        _write(sys.stdout, line)


def show_list(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, nothing: str, quiet: bool = False) -> None:
    """A table for people, or with `quiet` the ids in its first column; `nothing` is said if there are no rows."""
    if quiet:
        for row in rows:
            say_id(row[0])
    elif rows:
        show_rows(columns, rows)
    else:
        complain(nothing)


def ask(question: str) -> bool:
    """Asks for yes or no at the terminal; False without an answer."""
    _write(sys.stderr, f"{printable(question)} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def somebody_is_there() -> bool:
    """Whether a question would be seen and could be answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def begin_again() -> None:
    """On a terminal what was shown before is wiped away, for a view that is drawn again and again."""
    if sys.stdout.isatty():
        _write(sys.stdout, "\x1b[H\x1b[J", end="")


def flush() -> None:
    """What was said is seen now."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(Exit.PIPE_CLOSED) from None


def _write(stream: TextIO, text: str, end: str = "\n") -> None:
    try:
        stream.write(f"{text}{end}")
    except BrokenPipeError:  # `| head` has seen enough
        raise typer.Exit(Exit.PIPE_CLOSED) from None


Told = Callable[[str, int, int], None]
"""Called with what is under way, how much of all is done, and how much there is."""

StepDone = Callable[[str, int, float], None]
"""Called with a step that is done, how many rows it wrote, and how many seconds it took."""

_PLAIN_STEPS = 10


@contextmanager
def progress(unit: str = "rows") -> Iterator[Told]:
    """A progress bar on a terminal, and a line for every tenth in a file."""
    if not sys.stderr.isatty():
        yield _plain_lines(unit)
        return
    from rich.progress import TimeRemainingColumn

    with _bar(TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=printable(what), completed=done, total=total)


def _bar(*more: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<16}", markup=False), BarColumn(), MofNCompleteColumn(), *more)
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _plain_lines(unit: str) -> Told:
    reached = 0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal reached
        tenth = done * _PLAIN_STEPS // total if total else _PLAIN_STEPS
        if tenth > reached:
            reached = tenth
            complain(f"{tenth * 100 // _PLAIN_STEPS:>3} %  {what}, {done:,} of {total:,} {unit}")

    return tell


@contextmanager
def show_steps(expected: int) -> Iterator[StepDone]:
    """A line for each finished step and, on a terminal, a progress bar."""
    if not sys.stderr.isatty():
        yield lambda name, rows, seconds: complain(_step_line(name, rows, seconds))
        return
    with _bar() as bar:
        task = bar.add_task("", total=expected)

        def tell(name: str, rows: int, seconds: float) -> None:
            bar.console.print(printable(_step_line(name, rows, seconds)), markup=False, highlight=False)
            done = bar.tasks[0].completed + 1
            bar.update(task, description=printable(name), completed=done, total=max(expected, done))

        yield tell


def _step_line(name: str, rows: int, seconds: float) -> str:
    return f"  {name:<28}{rows:>14,} rows{seconds:>9.1f} s"
