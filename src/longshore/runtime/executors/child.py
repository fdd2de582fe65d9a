"""The process that runs jobs one by one for a worker, and ends with it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import resource
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from longshore.runtime.executors.base import Target
from longshore.runtime.executors.child_runner import (
    LINE_LOST,
    ChannelReporter,
    ChildChannel,
    ChildRunner,
    flush_what_was_printed,
    told_failure,
)
from longshore.runtime.executors.wire import job_from, next_frame
from longshore.runtime.running_job import RunningJob
from longshore.runtime.signals import take_on

_PR_SET_PDEATHSIG = 1


class Child:
    """Runs what the worker sends. One thread listens, so that a word reaches a job that is busy."""

    def __init__(self, line: ChildChannel, function: Callable[[RunningJob], Any], memory_limit: int | None) -> None:
        self._channel = line
        self._memory_limit = memory_limit
        self._memory_at_first = 0
        self._jobs: queue.SimpleQueue[tuple[int, RunningJob] | None] = queue.SimpleQueue()
        self._busy = False
        self._runner = ChildRunner(function, self._limited_memory)
        signal.signal(signal.SIGINT, self._runner.interrupted)

    def serve(self) -> None:
        """Until the worker hangs up."""
        threading.Thread(target=self._listen, name="longshore-line", daemon=True).start()
        self._channel.tell({"ready": True})
        while (sent := self._jobs.get()) is not None:
            number, job = sent
            self._channel.tell({"begun": number})
            message, body = self._runner.perform(job)
            flush_what_was_printed()
            self._runner.forget()
            self._busy = False
            self._channel.tell({**message, "run": number}, body)

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
            os._exit(LINE_LOST)
        if self._busy:
            _end_with_all_it_started()
        self._jobs.put(None)

    def _hear(self) -> None:
        while (received := next_frame(self._channel.incoming)) is not None:
            message, body = received
            if "answer" in message:
                self._channel.answered(message)
            elif "job" in message:
                job = RunningJob(job_from(message["job"], body), ChannelReporter(self._channel))
                self._busy = True
                self._runner.take(job)
                self._jobs.put((message["run"], job))
            else:
                self._runner.call_off()

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
    os._exit(LINE_LOST)


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
        os._exit(LINE_LOST)


def main(descriptor: int) -> None:
    """Serves the worker at the other end of the socket with this number."""
    os.set_inheritable(descriptor, False)
    line = ChildChannel(socket.socket(fileno=descriptor))
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
