"""Starts real processes on one store, reads their output, and ends them in order or by kill -9."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

ROOT = Path(__file__).parents[2]
TIMEOUT = 30
"""Seconds to wait for a line of output before the test fails."""

Line = tuple[str, list[Any]]


class StartedProcess:
    """One process; its lines of output are collected in `output` and in its group."""

    def __init__(self, processes: ProcessGroup, program: str, role: str, url: str, name: str, *more: str) -> None:
        self.name = name
        self.output: list[Line] = []
        self._processes = processes
        command = [sys.executable, "-m", f"tests.processes.{program}", role, url, name, *more]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            what, *values = json.loads(text)
            self.output.append((what, values))
            self._processes.lines.put((self, what, values))
        self._processes.lines.put((self, "over", []))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += list(self.process.stderr)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def finish(self) -> None:
        """Close its input, so that it finishes its current work."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.wait() == 0, "".join(self._errors) + str(self.output[-3:])

    def wait(self) -> int:
        """Return its exit code after its output was read to the end."""
        code = self.process.wait(TIMEOUT)
        for reader in self._readers:
            reader.join(TIMEOUT)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    @property
    def errors(self) -> str:
        """Return what it wrote to stderr, after its end."""
        return "".join(self._errors)

    def lines_of(self, what: str) -> list[list[Any]]:
        """Return its lines of one kind."""
        return [values for kind, values in self.output if kind == what]


class ProcessGroup:
    """All processes of one test; none outlives it."""

    def __init__(self, store: Path | str) -> None:
        """Use a file of SQLite, or the store at a URL."""
        self.url = store if isinstance(store, str) else f"sqlite:///{quote(str(store))}"
        self.started_processes: list[StartedProcess] = []
        self.lines: queue.Queue[tuple[StartedProcess, str, list[Any]]] = queue.Queue()

    def start_process(
        self, role: str, name: str, *more: str, url: str | None = None, program: str = "store_process"
    ) -> StartedProcess:
        """Start one more process, on the group's store or another URL of it."""
        self.started_processes.append(StartedProcess(self, program, role, url or self.url, name, *more))
        return self.started_processes[-1]

    def next_line(self) -> tuple[StartedProcess, str, list[Any]]:
        """Return the next line of any process."""
        return self.lines.get(timeout=TIMEOUT)

    def lines_of(self, what: str) -> list[list[Any]]:
        """Return the lines of one kind of all processes."""
        return [values for started_process in self.started_processes for values in started_process.lines_of(what)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for started_process in self.started_processes:
            started_process.kill()
