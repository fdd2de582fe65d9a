"""The command run in this process, as quickly as a function: its exit code, and what it printed to a pipe or a pty."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from longshore.cli import main


class Done(NamedTuple):
    """What became of a command."""

    code: int
    out: str
    err: str


def longshore(*arguments: str) -> Done:
    """With its output going to pipes."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main(arguments)
    return Done(code, out.getvalue(), err.getvalue())


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """With its output going to a pty: all that a terminal would have been sent."""
    ours, theirs = pty.openpty()
    seen: list[bytes] = []
    reading = threading.Thread(target=_drain, args=(ours, seen))
    reading.start()
    try:
        terminal = open(theirs, "w", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123, SIM115 - a file that is open
        with terminal, contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
            code = main.main(arguments)
    finally:
        reading.join()
        os.close(ours)
    return code, b"".join(seen).decode()


def _drain(end: int, seen: list[bytes]) -> None:
    try:
        while part := os.read(end, 65_536):
            seen.append(part)
    except OSError:  # how Linux says that the other end was closed
        return


def leaves(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command of the tree that does something, by its full name."""
    command = command or main.command()
    inner: Mapping[str, Any] | None = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
        return
    for name, one in inner.items():
        yield from leaves(one, (*path, name))


PROGRAM = [sys.executable, "-W", "error", "-c", "from longshore.cli.main import run; run()"]
"""The command as a process of its own."""

OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[H\x1b\[J|\x1b\[\?25[lh]|\x1b\[[12]K|\x1b\[1A")
"""What we send to a terminal ourselves: colours, the order to begin again at its top, and what draws a bar."""
_ORDERS = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The categories of letters that a terminal obeys rather than shows."""


def check_inert(seen: str) -> None:
    """Nothing that a terminal was sent is an order, but for ours; and no line is a user's."""
    left = OURS.sub("", seen)
    orders = {letter for letter in left if unicodedata.category(letter) in _ORDERS} - {
        "\r",
        "\n",
    }
    assert not orders, (sorted(map(hex, map(ord, orders))), seen)
    assert "\r" not in left.replace("\r\n", ""), "a line was written over"
    assert not any(line.startswith("[bold]fake line") for line in left.splitlines()), "a line was made up"
