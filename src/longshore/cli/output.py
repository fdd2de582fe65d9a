"""Output for people: escaped text, tables and progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from longshore.cli.exit_codes import Exit
from longshore.core.validation import counted, printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

_MIN_WIDTH = 12
"""The minimum width of a folded column; below it the table is printed as one line per value."""
_GAP = 2
_COLOURS = {
    **dict.fromkeys(("COMPLETED", "ok"), "green"),
    **dict.fromkeys(("DEAD", "problem"), "red"),
    **dict.fromkeys(("CANCELLING", "FAILED_RETRY", "UNKNOWN_RETRY", "paused", "warning"), "yellow"),
    "RUNNING": "cyan",
}
"""The cells that are coloured on a terminal; none of them is user input."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. A `whole` column is never folded, because users copy ids from it."""

    name: str
    whole: bool = False
    right: bool = False
    coloured: bool = False


def format_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, header: bool, terminal: bool
) -> Iterator[str]:
    """Yield the lines of a table. The cells must be escaped already."""
    from rich.cells import cell_len
    from rich.console import Console

    natural = [
        max([cell_len(column.name) if header else 0, *(cell_len(row[place]) for row in rows)])
        for place, column in enumerate(columns)
    ]
    needed = [width if column.whole else min(width, _MIN_WIDTH) for column, width in zip(columns, natural, strict=True)]
    whole = sum(natural) + _GAP * len(columns)  # without a terminal nothing is folded
    plain: Any = dict.fromkeys(("highlight", "markup", "emoji"), False)
    console = Console(file=sys.stdout, force_terminal=terminal, width=None if terminal else whole, **plain)
    if sum(needed) + _GAP * (len(columns) - 1) > console.width:
        yield from _format_stacked(columns, rows)
    else:
        yield from _format_columns(console, columns, rows, natural, needed, header=header, colours=terminal)


def _format_stacked(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """One block per row, one line per value; the terminal wraps long lines."""
    width = max(len(column.name) for column in columns)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for column, cell in zip(columns, row, strict=True):
            if cell:
                yield f"{column.name:<{width}}  {cell}"


def _format_columns(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    natural: Sequence[int],
    needed: Sequence[int],
    *,
    header: bool,
    colours: bool,
) -> Iterator[str]:
    from rich.table import Table
    from rich.text import Text

    styled = colours and not console.no_color
    table = Table(
        box=None, show_header=header, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold" if styled else ""
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


LogForm = Annotated[Literal["text", "json"], typer.Option("--log-format", help="Format of log lines.")]


def print_line(line: str = "") -> None:
    """Print one line to standard output."""
    _write(sys.stdout, printable(line))


def print_lines(text: str, indent: str = "") -> None:
    """Print text of several lines; the indent keeps user text apart from the command's lines."""
    for line in text.splitlines() or [""]:
        _write(sys.stdout, indent + printable(line))


def print_stderr(line: str) -> None:
    """Print one line to standard error: an error, progress, or what to do next."""
    _write(sys.stderr, printable(line))


def print_id(name: str) -> None:
    """Print an id on one line, unchanged to a pipe and escaped to a terminal."""
    _write(sys.stdout, printable(name) if sys.stdout.isatty() else name)


def print_json(value: Any) -> None:
    """Print one JSON document on one line, in ASCII, so that user text cannot control a terminal."""
    _write(sys.stdout, json_text(value))


def print_model(model: BaseModel) -> None:
    """Print a model as JSON."""
    print_json(model.model_dump(mode="json"))


def json_text(value: Any, default: Callable[[Any], object] | None = None) -> str:
    """Return the text that `print_json` prints; `default` converts values that are not JSON."""
    return json.dumps(value, default=default).replace("\x7f", "\\u007f")


def readable_json(value: Any) -> str:
    """Return JSON for people, on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def print_chunk(piece: str) -> None:
    """Print part of a document that is too long for memory, as made by `json_text`; the last part ends the line."""
    _write(sys.stdout, piece, end="")


def print_table(rows: Sequence[tuple[str | int, ...]]) -> None:
    """Print a table without a header, with names aligned left and numbers right."""
    shown = [[f"{cell:,}" if isinstance(cell, int) else printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row, texts in zip(rows, shown, strict=True):
        cells = zip(row, texts, widths, strict=True)
        line = "  ".join(
            text.rjust(width) if isinstance(cell, int) else text.ljust(width) for cell, text, width in cells
        )
        _write(sys.stdout, f"  {line.rstrip()}")


def print_rows(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Print a table in columns, or with one line per value if the terminal is too narrow."""
    escaped = [[printable(cell) for cell in row] for row in rows]
    for line in format_table(columns, escaped, header=header, terminal=sys.stdout.isatty()):
        _write(sys.stdout, line)


def print_list(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, nothing: str, quiet: bool = False) -> None:
    """Print a table, or with `quiet` the ids in its first column. Without rows, print `nothing` to standard error."""
    if quiet:
        for row in rows:
            print_id(row[0])
    elif rows:
        print_rows(columns, rows)
    else:
        print_stderr(nothing)


def ask(question: str) -> bool:
    """Ask for yes or no at the terminal; anything but yes is False."""
    _write(sys.stderr, f"{printable(question)} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_interactive() -> bool:
    """Whether a user can see a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def clear_screen() -> None:
    """Clear the terminal before a repeated view; does nothing without a terminal."""
    if sys.stdout.isatty():
        _write(sys.stdout, "\x1b[H\x1b[J", end="")


def flush() -> None:
    """Flush standard output; a closed pipe ends the command."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(Exit.PIPE_CLOSED) from None


def _write(stream: TextIO, text: str, end: str = "\n") -> None:
    try:
        stream.write(f"{text}{end}")
    except BrokenPipeError:  # the reader, such as `head`, has ended
        raise typer.Exit(Exit.PIPE_CLOSED) from None


ProgressCallback = Callable[[str, int, int], None]
"""Called with the current step, the amount done, and the total."""

StepDone = Callable[[str, int, float], None]
"""Called with a finished step, the rows it wrote, and its duration in seconds."""

_TENTHS = 10


@contextmanager
def progress(unit: str = "row") -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal; elsewhere print a line for every tenth."""
    if not sys.stderr.isatty():
        yield _progress_lines(unit)
        return
    from rich.progress import TimeRemainingColumn

    with _progress_bar(TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=printable(what), completed=done, total=total)


def _progress_bar(*more: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<16}", markup=False), BarColumn(), MofNCompleteColumn(), *more)
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _progress_lines(unit: str) -> ProgressCallback:
    reached = 0

    def report(what: str, done: int, total: int) -> None:
        nonlocal reached
        tenth = done * _TENTHS // total if total else _TENTHS
        if tenth > reached:
            reached = tenth
            print_stderr(f"{tenth * 100 // _TENTHS:>3} %  {what}, {done:,} of {counted(total, unit)}")

    return report


@contextmanager
def show_steps(expected: int) -> Iterator[StepDone]:
    """Print a line for each finished step and, on a terminal, show a progress bar."""
    if not sys.stderr.isatty():
        yield lambda name, rows, seconds: print_stderr(_step_line(name, rows, seconds))
        return
    with _progress_bar() as bar:
        task = bar.add_task("", total=expected)

        def report(name: str, rows: int, seconds: float) -> None:
            bar.console.print(printable(_step_line(name, rows, seconds)), markup=False, highlight=False)
            done = bar.tasks[0].completed + 1
            bar.update(task, description=printable(name), completed=done, total=max(expected, done))

        yield report


def _step_line(name: str, rows: int, seconds: float) -> str:
    return f"  {name:<28}{rows:>14,} rows{seconds:>9.1f} s"
