"""Processes of their own that talk in lines of JSON: what is measured there has its own memory and its own core."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self

_ROOT = Path(__file__).resolve().parent.parent
_PATIENCE = 120
"""Seconds of silence after which something must be wrong."""


class Companion:
    """`python -m MODULE ARGUMENTS…`, told what to do over its standard input and heard over its standard output."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._said: SimpleQueue[str] = SimpleQueue()
        # heard as it is said, or it would wait for room in the pipe
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        with self._process as process:  # closes the pipes: the end of its input sends it home
            assert process.stdin is not None
            process.stdin.close()
            code = process.wait()
        if error is None and code:
            raise RuntimeError(f"{process.args!r} ended with {code}")

    def tell(self, order: str) -> None:
        """One line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")

    def hear(self) -> Any:
        """What it says next."""
        try:
            line = self._said.get(timeout=_PATIENCE)
        except Empty:
            raise RuntimeError(f"{self._process.args!r} has said nothing for {_PATIENCE} seconds") from None
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()} before it answered")
        return json.loads(line)


# --- on the other side ---


def say(**words: object) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


def next_order() -> str:
    """Waits for a line; nothing once the other side is done with us."""
    return sys.stdin.readline().strip()


def peak_megabytes() -> float:
    """The most memory that this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # bytes there, kibibytes elsewhere


def cpu_by_process(server: int) -> dict[int, float]:
    """Seconds of processor time, of those of the server's processes that still run."""
    seconds: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # the command's name may hold anything, even parentheses
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if server in (parent, int(folder.name)):
                seconds[int(folder.name)] = int((folder / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # it has ended meanwhile
            continue
    return seconds
