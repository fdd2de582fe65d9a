"""What reaches the terminal: text made inert, numbers made readable, and progress that fits whoever watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Told = Callable[[str, int, int], None]
"""Called with what is under way, how much of all is done, and how much there is."""

_PLAIN_STEPS = 10


def printable(text: str) -> str:
    """Control characters shown, never sent to the terminal."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def show_table(rows: Sequence[tuple[str | int, ...]]) -> None:
    """Names to the left, numbers to the right."""
    shown = [[f"{cell:,}" if isinstance(cell, int) else printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row, texts in zip(rows, shown, strict=True):
        cells = zip(row, texts, widths, strict=True)
        line = "  ".join(
            text.rjust(width) if isinstance(cell, int) else text.ljust(width) for cell, text, width in cells
        )
        typer.echo(f"  {line.rstrip()}")


@contextmanager
def progress() -> Iterator[Told]:
    """A bar where somebody watches, and a line for every tenth of the way where the output goes to a file."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    columns = (
        TextColumn("{task.description:<16}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _plain_lines() -> Told:
    reached = 0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal reached
        tenth = done * _PLAIN_STEPS // total if total else _PLAIN_STEPS
        if tenth > reached:
            reached = tenth
            typer.echo(f"{tenth * 100 // _PLAIN_STEPS:>3} %  {what}, {done:,} of {total:,} rows", err=True)

    return tell


StepDone = Callable[[str, int, float], None]
"""Called with a step that is done, how many rows it wrote, and how many seconds it took."""


@contextmanager
def show_steps(expected: int) -> Iterator[StepDone]:
    """A line for each step that is done, and where somebody watches a bar of how many there are still to come."""
    if not sys.stderr.isatty():
        yield lambda name, rows, seconds: typer.echo(_step_line(name, rows, seconds), err=True)
        return
    columns = (TextColumn("{task.description:<16}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=expected)

        def tell(name: str, rows: int, seconds: float) -> None:
            bar.console.print(_step_line(name, rows, seconds), markup=False, highlight=False)
            done = bar.tasks[0].completed + 1
            bar.update(task, description=printable(name), completed=done, total=max(expected, done))

        yield tell


def _step_line(name: str, rows: int, seconds: float) -> str:
    return f"  {printable(name):<28}{rows:>14,} rows{seconds:>9.1f} s"
