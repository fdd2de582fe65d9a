"""The process that runs jobs one by one for a worker, and ends with it."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import inspect
import os
import queue
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from longshore.core.errors import Fatal, Snooze
from longshore.core.job import Job
from longshore.core.payload import LARGEST_NOTE, check_json, clean_text, pack
from longshore.runtime.executors.target import Target
from longshore.runtime.executors.wire import Frame, frame, job_from, next_frame, refusal_from, run_name
from longshore.runtime.failures import describe, type_names
from longshore.runtime.running_job import Results, RunningJob, Written, running
from longshore.runtime.spawning import take_on

_PR_SET_PDEATHSIG = 1
_LINE_LOST = 71  # EX_OSERR: "an operating system error"
_MOST_TYPE_NAMES = 100


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
                os._exit(_LINE_LOST)
            try:
                self._connection.sendall(said)
            except OSError:
                os._exit(_LINE_LOST)

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


class Child:
    """Runs what the worker sends. One thread listens, so that a word reaches a job that is busy."""

    def __init__(self, line: Line, function: Callable[[RunningJob], Any], memory_limit: int | None) -> None:
        self._line = line
        self._function = function
        self._memory_limit = memory_limit
        self._memory_at_first = 0
        self._jobs: queue.SimpleQueue[tuple[int, RunningJob] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: RunningJob | None = None
        self._cancel: Callable[[], object] | None = None
        self._interruptible = False
        signal.signal(signal.SIGINT, self._interrupted)

    def serve(self) -> None:
        """Until the worker hangs up."""
        threading.Thread(target=self._listen, name="longshore-line", daemon=True).start()
        self._line.tell({"ready": True})
        while (sent := self._jobs.get()) is not None:
            number, job = sent
            self._line.tell({"begun": number})
            # called off while it was on its way: nothing of it is run
            message, body = (told_failure(asyncio.CancelledError()), b"") if job.cancelled else self._performed(job)
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # the job may have closed or replaced it
                    stream.flush()
            with self._lock:
                self._running = self._cancel = None
            self._line.tell({**message, "run": number}, body)

    def _listen(self) -> None:
        # the job's thread is to be interrupted in what it waits for, not this one
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self._hear()
        except ConnectionError:
            pass  # the worker ended in the middle of something
        except BaseException as error:
            if not isinstance(error, OSError):  # which is a line that the job has closed
                traceback.print_exc()
            os._exit(_LINE_LOST)
        if self._running is not None:
            _end_with_all_it_started()
        self._jobs.put(None)

    def _hear(self) -> None:
        while (received := next_frame(self._line.incoming)) is not None:
            message, body = received
            if "answer" in message:
                self._line.answered(message)
            elif "job" in message:
                job = RunningJob(job_from(message["job"], body), LineDesk(self._line))
                with self._lock:
                    self._running = job
                self._jobs.put((message["run"], job))
            else:
                self._called_off()

    def _called_off(self) -> None:
        with self._lock:
            if self._running is not None:
                self._running.request_cancel()
            if self._cancel is not None:
                with suppress(RuntimeError):  # its loop has closed: the job has just ended by itself
                    self._cancel()

    def _performed(self, job: RunningJob) -> Frame:
        """Runs the job once; whatever it does, there is something to say."""
        try:
            with running(job), self._limited_memory():
                self._interruptible = True
                value = self._function(job)
                if inspect.isawaitable(value):
                    value = asyncio.run(self._awaited(job, value))
                self._interruptible = False
            return {"done": True}, b"" if value is None else check_json("result", value)
        except BaseException as error:
            self._interruptible = False
            return told_failure(error), b""

    async def _awaited(self, job: RunningJob, work: Awaitable[Any]) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with self._lock:
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if job.cancelled:
                task.cancel()
        return await work

    @contextmanager
    def _limited_memory(self) -> Iterator[None]:
        """Lifted again afterwards, so that a job that ran out of memory can still be told of."""
        if self._memory_limit is None:
            yield
            return
        # measured at the first job, when all is imported and the listening thread has what it needs
        self._memory_at_first = self._memory_at_first or _address_space()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (self._memory_at_first + self._memory_limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    def _interrupted(self, *_: object) -> None:
        """The worker's last word before it kills: a job that waits for something is shaken awake."""
        if self._interruptible:
            self._interruptible = False
            raise KeyboardInterrupt("the job was called off and did not end")


def told_failure(error: BaseException) -> dict[str, Any]:
    """An exception as its parent will hear of it; Fatal and Snooze keep what they mean."""
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
    return message


def _address_space() -> int:
    """Bytes this process has mapped already; what a job takes comes on top."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end_with_all_it_started() -> NoReturn:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(_LINE_LOST)


def end_with_the_parent(parent: int) -> None:
    """Has the kernel end this process when its parent is gone, even in a C call that lets no thread run.

    A second after, by an alarm: the thread that listens on the line, if it can, takes the whole group along first.
    """
    with suppress(OSError, AttributeError):  # Linux only; elsewhere the end of the line does it
        libc = ctypes.CDLL(None)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP) == 0:
            # the handler gets the signal's number, which is 1: alarm(1)
            libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    if os.getppid() != parent:
        os._exit(_LINE_LOST)


def main(descriptor: int) -> None:
    """Serves the worker at the other end of the socket with this number."""
    os.set_inheritable(descriptor, False)
    line = Line(socket.socket(fileno=descriptor))
    start = next_frame(line.incoming)
    if start is None:
        return
    order, _ = start
    end_with_the_parent(order["parent"])
    # whoever stops a service signals every process of it; only the worker knows what its children should finish.
    # A handler and not SIG_IGN, which what the job starts would inherit
    signal.signal(signal.SIGTERM, lambda *_: None)
    faulthandler.enable()
    take_on(order)
    try:
        function = Target(**order["target"]).find()
    except BaseException as error:
        line.tell({**told_failure(error), "unready": True})
    else:
        Child(line, function, order["memory_limit"]).serve()
    line.close()
