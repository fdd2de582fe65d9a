"""Run the command in this process, with its output on a pipe or a pty."""

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
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def longshore(*arguments: str) -> Done:
    """Run the command with its output on pipes."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main(arguments)
    return Done(code, out.getvalue(), err.getvalue())


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run the command on a pty and return all that the terminal receives."""
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
    except OSError:  # Linux reports a closed terminal this way
        return


def leaves(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command that is not a group, by its full name."""
    command = command or main.command()
    inner: Mapping[str, Any] | None = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
        return
    for name, one in inner.items():
        yield from leaves(one, (*path, name))


PROGRAM = [sys.executable, "-W", "error", "-c", "from longshore.cli.main import run; run()"]
"""The command as a separate process."""

OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[H\x1b\[J|\x1b\[\?25[lh]|\x1b\[[12]K|\x1b\[1A")
"""The control sequences of the command itself: colours, clearing the screen, and progress bars."""
_CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The Unicode categories of characters that control a terminal."""


def check_inert(seen: str) -> None:
    """Check that user text contains no control sequences and starts no line."""
    left = OURS.sub("", seen)
    control = {letter for letter in left if unicodedata.category(letter) in _CONTROL} - {"\r", "\n"}
    assert not control, (sorted(map(hex, map(ord, control))), seen)
    assert "\r" not in left.replace("\r\n", ""), "a line was overwritten"
    assert not any(line.startswith("[bold]fake line") for line in left.splitlines()), "a line was forged"
