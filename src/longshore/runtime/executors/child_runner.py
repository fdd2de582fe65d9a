"""Runs one job at a time for a worker in another process, and reports over a channel."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any, BinaryIO, cast

from longshore.core.errors import Fatal, Snooze
from longshore.core.job import Job
from longshore.core.validation import LARGEST_NOTE, check_json, clean_text, pack
from longshore.runtime.error_text import ProcessDied, describe, type_names
from longshore.runtime.executors.wire import Frame, frame, refusal_from, run_name
from longshore.runtime.running_job import Results, RunningJob, Written, running

LINE_LOST = 71  # EX_OSERR: "an operating system error"


class ChildChannel:
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


class ChannelReporter:
    """Passes a running job's notes to the worker, which writes them: awaited on an event loop, at once elsewhere."""

    def __init__(self, line: ChildChannel) -> None:
        self._channel = line

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
        answer = self._channel.ask({"note": "dependencies", "for": run_name(record)})
        return asyncio.wrap_future(answer) if _on_a_loop() else Results(answer.result())

    def _note(self, kind: str, record: Job, body: bytes, **more: Any) -> Any:
        answer = self._channel.ask({"note": kind, "for": run_name(record), **more}, body)
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


_MOST_TYPE_NAMES = 100


class ChildRunner:
    """Runs jobs in the thread that calls it; any other thread may call off the one that is run."""

    def __init__(
        self,
        function: Callable[[RunningJob], Any],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`within` is entered for each job, and left before anything is told of it."""
        self._function = function
        self._within = within
        self._lock = threading.Lock()
        self._job: RunningJob | None = None
        self._cancel: Callable[[], object] | None = None
        self._interruptible = False

    def take(self, job: RunningJob) -> None:
        """From now on this is the job that may be called off."""
        with self._lock:
            self._job = job

    def perform(self, job: RunningJob) -> Frame:
        """Runs the job once; one that was called off before it began is not run at all."""
        if job.cancel_requested:
            return told_failure(asyncio.CancelledError()), b""
        try:
            with running(job), self._within():
                self._interruptible = True
                value = self._function(job)
                if inspect.isawaitable(value):
                    value = asyncio.run(self._awaited(job, value))
                self._interruptible = False
            return self._told_value(job, value)
        except BaseException as error:
            self._interruptible = False
            if job.said_complete and isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                return self._told_value(job, None)
            return told_failure(error), b""

    def _told_value(self, job: RunningJob, value: Any) -> Frame:
        value = job.returned(value)
        return {"done": True, **job.report()}, b"" if value is None else check_json("result", value)

    def forget(self) -> None:
        """The job is over."""
        with self._lock:
            self._job = self._cancel = None

    def call_off(self) -> None:
        """Tells the job that it should end."""
        with self._lock:
            if self._job is not None:
                self._job.request_cancel()
            if self._cancel is not None:
                with suppress(RuntimeError):  # its loop has closed: the job has just ended by itself
                    self._cancel()

    def interrupted(self, *_: object) -> None:
        """A signal's handler, the last word before force: a job that waits for something is shaken awake."""
        if self._interruptible:
            self._interruptible = False
            if self._job is not None:
                self._job.heed()
            raise KeyboardInterrupt("the job was called off and did not end")

    async def _awaited(self, job: RunningJob, work: Awaitable[Any]) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with self._lock:
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if job.cancel_requested:
                task.cancel()
        value = await work
        if value is None:
            job.heed()  # the CancelledError was raised in it
        return value


def flush_what_was_printed() -> None:
    """So that it is read where it belongs: before whatever comes next."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the job may have closed or replaced it
            stream.flush()


def told_failure(error: BaseException) -> dict[str, Any]:
    """An exception as the worker will hear of it; Fatal, Snooze and ProcessDied keep what they mean."""
    message: dict[str, Any] = {"failed": describe(error)}
    with suppress(Exception):  # names come from user code
        message["types"] = type_names(error)[:_MOST_TYPE_NAMES]
    with suppress(Exception):
        if isinstance(error, Snooze):
            delay: Any = error.delay
            message["snooze"] = float(delay.total_seconds() if isinstance(delay, timedelta) else delay)
            message["reason"] = clean_text("reason", error.reason)
        elif isinstance(error, Fatal):
            message["fatal"] = clean_text("error", str(error))
        elif isinstance(error, ProcessDied):
            message["died"] = clean_text("error", str(error))
    return message
