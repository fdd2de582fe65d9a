"""The end of a line that is where a job runs: by it the worker is told how the job goes, and asked what it knows."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import Future
from typing import Any, BinaryIO, cast

from longshore.core.job import Job
from longshore.core.validation import LARGEST_NOTE, check_json, clean_text, pack
from longshore.runtime.executors.wire import frame, refusal_from, run_name
from longshore.runtime.running_job import Results, Written

LINE_LOST = 71  # EX_OSERR: "an operating system error"


class Line:
    """This end of the line to the worker; any thread may talk on it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = self._identity()
        self._process = os.getpid()
        self._sending = threading.Lock()
        # another one: whoever sends may wait until the worker reads, and the worker until an answer of its is taken
        self._asking = threading.Lock()
        self._asked = 0
        self._waiting: dict[int, Future[Any]] = {}
        self.incoming = cast(BinaryIO, connection.makefile("rb"))

    def tell(self, message: dict[str, Any], body: bytes = b"") -> None:
        """Sends a message, or ends this process: what cannot report is of no use."""
        said = frame(message, body)
        with self._sending:
            # a job may have forked, or closed the line and got its number for a file of its own
            if os.getpid() != self._process or self._identity() != self._file:
                os._exit(LINE_LOST)
            try:
                self._connection.sendall(said)
            except OSError:
                os._exit(LINE_LOST)

    def ask(self, message: dict[str, Any], body: bytes = b"") -> Future[Any]:
        """Sends a question; the future has its answer, or raises what was refused."""
        answer: Future[Any] = Future()
        with self._asking:
            self._asked += 1
            number = self._asked
            self._waiting[number] = answer
        self.tell({**message, "question": number}, body)
        return answer

    def answered(self, message: dict[str, Any]) -> None:
        """Passes an answer on to who asked."""
        with self._asking:
            waiting = self._waiting.pop(message["answer"])
        if not waiting.set_running_or_notify_cancel():
            return
        if "refused" in message:
            waiting.set_exception(refusal_from(message["refused"]))
        else:
            waiting.set_result(message["value"])

    def close(self) -> None:
        """Hangs up, at the end of this process."""
        self.incoming.close()
        self._connection.close()

    def _identity(self) -> tuple[int, int]:
        try:
            found = os.fstat(self._connection.fileno())
        except OSError:
            return (0, 0)
        return (found.st_dev, found.st_ino)


class LineDesk:
    """Passes a running job's notes to the worker, which writes them: awaited on an event loop, at once elsewhere."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def set_progress(self, record: Job, value: Any) -> Any:
        """Kept when it is answered."""
        return self._note("progress", record, check_json("progress", value, limit=LARGEST_NOTE))

    def append_log(self, record: Job, message: str, level: str) -> Any:
        """Kept when it is answered."""
        return self._note("log", record, clean_text("message", message).encode(), level=level)

    def save_checkpoint(self, record: Job, data: Any) -> Any:
        """Kept when it is answered."""
        return self._note("checkpoint", record, pack("data", data))

    def dependency_results(self, record: Job) -> Any:
        """Asked of the worker."""
        answer = self._line.ask({"note": "dependencies", "for": run_name(record)})
        return asyncio.wrap_future(answer) if _on_a_loop() else Results(answer.result())

    def _note(self, kind: str, record: Job, body: bytes, **more: Any) -> Any:
        answer = self._line.ask({"note": kind, "for": run_name(record), **more}, body)
        if _on_a_loop():
            return asyncio.wrap_future(answer)
        answer.result()
        return Written()


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
