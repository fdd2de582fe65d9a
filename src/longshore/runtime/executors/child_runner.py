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
from longshore.runtime.background import running_loop
from longshore.runtime.error_text import ProcessDied, describe, type_names
from longshore.runtime.executors.wire import Frame, frame, refusal_from, run_name
from longshore.runtime.running_job import Results, RunningJob, Written, running

CHANNEL_LOST = 71  # EX_OSERR: "an operating system error"


class ChildChannel:
    """The child's end of the channel to the worker; any thread may send on it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = self._identity()
        self._process = os.getpid()
        self._sending = threading.Lock()
        # a second lock: the sender may wait for the worker to read while the worker waits for its answer to be read
        self._asking = threading.Lock()
        self._asked = 0
        self._waiting: dict[int, Future[Any]] = {}
        self.incoming = cast(BinaryIO, connection.makefile("rb"))

    def send(self, message: dict[str, Any], body: bytes = b"") -> None:
        """Send a message, or end this process: it is useless if it cannot report."""
        data = frame(message, body)
        with self._sending:
            # a job may have forked, or closed the channel and opened a file with the same descriptor
            if os.getpid() != self._process or self._identity() != self._file:
                os._exit(CHANNEL_LOST)
            try:
                self._connection.sendall(data)
            except OSError:
                os._exit(CHANNEL_LOST)

    def ask(self, message: dict[str, Any], body: bytes = b"") -> Future[Any]:
        """Send a request; the future has its answer, or raises the refusal."""
        answer: Future[Any] = Future()
        with self._asking:
            self._asked += 1
            number = self._asked
            self._waiting[number] = answer
        self.send({**message, "question": number}, body)
        return answer

    def answered(self, message: dict[str, Any]) -> None:
        """Resolve the request that this message answers."""
        with self._asking:
            waiting = self._waiting.pop(message["answer"])
        if not waiting.set_running_or_notify_cancel():
            return
        if "refused" in message:
            waiting.set_exception(refusal_from(message["refused"]))
        else:
            waiting.set_result(message["value"])

    def close(self) -> None:
        """Close the channel at the end of this process."""
        self.incoming.close()
        self._connection.close()

    def _identity(self) -> tuple[int, int]:
        try:
            found = os.fstat(self._connection.fileno())
        except OSError:
            return (0, 0)
        return (found.st_dev, found.st_ino)


class ChannelReporter:
    """Sends a running job's notes to the worker: awaited on an event loop, blocking elsewhere."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel

    def set_progress(self, record: Job, value: Any) -> Any:
        """Store the progress of the job."""
        return self._note("progress", record, check_json("progress", value, limit=LARGEST_NOTE))

    def append_log(self, record: Job, message: str, level: str) -> Any:
        """Append a line to the job's log."""
        return self._note("log", record, clean_text("message", message).encode(), level=level)

    def save_checkpoint(self, record: Job, data: Any) -> Any:
        """Store what the next execution needs."""
        return self._note("checkpoint", record, pack("data", data))

    def dependency_results(self, record: Job) -> Any:
        """Request the results of the job's dependencies."""
        answer = self._channel.ask({"note": "dependencies", "for": run_name(record)})
        return Results(answer.result()) if running_loop() is None else asyncio.wrap_future(answer)

    def _note(self, kind: str, record: Job, body: bytes, **more: Any) -> Any:
        answer = self._channel.ask({"note": kind, "for": run_name(record), **more}, body)
        if running_loop() is not None:
            return asyncio.wrap_future(answer)
        answer.result()
        return Written()


_MOST_TYPE_NAMES = 100


class ChildRunner:
    """Runs jobs in the calling thread; any other thread may cancel the current one."""

    def __init__(
        self, function: Callable[[RunningJob], Any], within: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`within` is entered for each job, and left before its outcome is reported."""
        self._function = function
        self._within = within
        self._lock = threading.Lock()
        self._job: RunningJob | None = None
        self._cancel: Callable[[], object] | None = None
        self._interruptible = False

    def take(self, job: RunningJob) -> None:
        """Make this the job that `cancel` ends."""
        with self._lock:
            self._job = job

    def perform(self, job: RunningJob) -> Frame:
        """Run the job once, unless it was cancelled before it started."""
        if job.cancel_requested:
            return failure_message(asyncio.CancelledError()), b""
        try:
            with running(job), self._within():
                self._interruptible = True
                value = self._function(job)
                if inspect.isawaitable(value):
                    value = asyncio.run(self._awaited(job, value))
                self._interruptible = False
            return self._value_message(job, value)
        except BaseException as error:
            self._interruptible = False
            if job.completed_explicitly and isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                return self._value_message(job, None)
            return failure_message(error), b""

    def _value_message(self, job: RunningJob, value: Any) -> Frame:
        value = job.returned(value)
        return {"done": True, **job.report()}, b"" if value is None else check_json("result", value)

    def forget(self) -> None:
        """Forget the job, which has ended."""
        with self._lock:
            self._job = self._cancel = None

    def cancel(self) -> None:
        """Request that the job ends."""
        with self._lock:
            if self._job is not None:
                self._job.request_cancel()
            if self._cancel is not None:
                with suppress(RuntimeError):  # its loop has closed: the job has just ended
                    self._cancel()

    def interrupted(self, *_: object) -> None:
        """Handle the signal that interrupts a waiting job before it is ended by force."""
        if self._interruptible:
            self._interruptible = False
            if self._job is not None:
                self._job.notice_cancel()
            raise KeyboardInterrupt("the job was cancelled and did not end in time")

    async def _awaited(self, job: RunningJob, work: Awaitable[Any]) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with self._lock:
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if job.cancel_requested:
                task.cancel()
        value = await work
        if value is None:
            job.notice_cancel()  # the CancelledError was raised in it
        return value


def flush_output() -> None:
    """Flush stdout and stderr, so that a job's output precedes that of the next one."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the job may have closed or replaced it
            stream.flush()


def failure_message(error: BaseException) -> dict[str, Any]:
    """Return the message that reports an exception; Fatal, Snooze and ProcessDied keep their meaning."""
    message: dict[str, Any] = {"failed": describe(error)}
    with suppress(Exception):  # the names come from user code
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
