"""Progress that fits whoever watches: a bar on a terminal, a few plain lines in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from longshore.cli.output import complain
from longshore.core.validation import printable

Told = Callable[[str, int, int], None]
"""Called with what is under way, how much of all is done, and how much there is."""

StepDone = Callable[[str, int, float], None]
"""Called with a step that is done, how many rows it wrote, and how many seconds it took."""

_PLAIN_STEPS = 10


@contextmanager
def progress(unit: str = "rows") -> Iterator[Told]:
    """A bar where somebody watches, and a line for every tenth of the way where the output goes to a file."""
    if not sys.stderr.isatty():
        yield _plain_lines(unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<16}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=printable(what), completed=done, total=total)


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
    """A line for each step that is done, and where somebody watches a bar of how many there are still to come."""
    if not sys.stderr.isatty():
        yield lambda name, rows, seconds: complain(_step_line(name, rows, seconds))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<16}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=expected)

        def tell(name: str, rows: int, seconds: float) -> None:
            bar.console.print(printable(_step_line(name, rows, seconds)), markup=False, highlight=False)
            done = bar.tasks[0].completed + 1
            bar.update(task, description=printable(name), completed=done, total=max(expected, done))

        yield tell


def _step_line(name: str, rows: int, seconds: float) -> str:
    return f"  {name:<28}{rows:>14,} rows{seconds:>9.1f} s"
