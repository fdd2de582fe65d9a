"""Child processes that exchange lines of JSON, so that memory and CPU time are measured separately."""

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
"""Seconds without a message after which the child counts as hung."""


class Companion:
    """Runs `python -m MODULE ARGUMENTS…` and talks to it over its standard input and output."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._said: SimpleQueue[str] = SimpleQueue()
        # read continuously, or the child would block on a full pipe
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
        with self._process as process:  # closes the pipes: the child ends at the end of its input
            assert process.stdin is not None
            process.stdin.close()
            code = process.wait()
        if error is None and code:
            raise RuntimeError(f"{process.args!r} ended with {code}")

    def tell(self, order: str) -> None:
        """Send one line to the child."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")

    def hear(self) -> Any:
        """Return the child's next message."""
        try:
            line = self._said.get(timeout=_PATIENCE)
        except Empty:
            raise RuntimeError(f"{self._process.args!r} has sent nothing for {_PATIENCE} seconds") from None
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()} before it answered")
        return json.loads(line)


# --- in the child process ---


def say(**words: object) -> None:
    """Send one line to the parent process."""
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


def next_order() -> str:
    """Wait for a line; return an empty text when the parent closes the pipe."""
    return sys.stdin.readline().strip()


def peak_megabytes() -> float:
    """The peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # bytes on macOS, kibibytes elsewhere


def cpu_by_process(server: int) -> dict[int, float]:
    """CPU seconds of each running process of the server."""
    seconds: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # the command's name may contain any character, even parentheses
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if server in (parent, int(folder.name)):
                seconds[int(folder.name)] = int((folder / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # the process has ended
            continue
    return seconds
