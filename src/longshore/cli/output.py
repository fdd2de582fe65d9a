"""What reaches the terminal, all of it by way of this room: text made inert, JSON, tables, questions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from longshore.cli.exits import Exit
from longshore.core.validation import printable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from longshore.cli.tables import Column

LogForm = Annotated[Literal["text", "json"], typer.Option("--log-format", help="How log lines are written.")]


def say(line: str = "") -> None:
    """One line for whoever asked."""
    _write(sys.stdout, printable(line))


def say_lines(text: str, indent: str = "") -> None:
    """Text of several lines, each behind an indent, so that none can be taken for a line of ours."""
    for line in text.splitlines() or [""]:
        _write(sys.stdout, indent + printable(line))


def complain(line: str) -> None:
    """One line beside the output: what is wrong, how far it is, what to do next."""
    _write(sys.stderr, printable(line))


def say_id(name: str) -> None:
    """An id on a line of its own: to a program as it is, to a person made inert."""
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
    from longshore.cli.tables import drawn

    made = [[printable(cell) for cell in row] for row in rows]
    for line in drawn(columns, made, heads=heads, terminal=sys.stdout.isatty()):
        _write(sys.stdout, line)


def ask(question: str) -> bool:
    """Yes or no from whoever sits at the terminal; False if nobody answers."""
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
