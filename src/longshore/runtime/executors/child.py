"""The child process that runs jobs one at a time for a worker, and ends with it."""

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

from longshore.runtime.executors import child_runner
from longshore.runtime.executors.base import Target
from longshore.runtime.executors.wire import job_from, next_frame
from longshore.runtime.running_job import RunningJob
from longshore.runtime.signals import apply_import_state

_PR_SET_PDEATHSIG = 1


class Child:
    """Runs the jobs that the worker sends. A second thread listens, so that a cancellation reaches a busy job."""

    def __init__(
        self, channel: child_runner.ChildChannel, function: Callable[[RunningJob], Any], memory_limit: int | None
    ) -> None:
        self._channel = channel
        self._memory_limit = memory_limit
        self._memory_at_first = 0
        self._jobs: queue.SimpleQueue[tuple[int, RunningJob] | None] = queue.SimpleQueue()
        self._busy = False
        self._runner = child_runner.ChildRunner(function, self._limited_memory)
        signal.signal(signal.SIGINT, self._runner.interrupted)

    def serve(self) -> None:
        """Run jobs until the worker closes the channel."""
        threading.Thread(target=self._listen, name="longshore-channel", daemon=True).start()
        self._channel.send({"ready": True})
        while (sent := self._jobs.get()) is not None:
            number, job = sent
            self._channel.send({"begun": number})
            message, body = self._runner.perform(job)
            child_runner.flush_output()
            self._runner.forget()
            self._busy = False
            self._channel.send({**message, "run": number}, body)

    def _listen(self) -> None:
        # a signal must interrupt the thread of the job, not this one
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self._receive()
        except ConnectionError:
            pass  # the worker ended during a message
        except BaseException as error:
            if not isinstance(error, OSError):  # the job has closed the channel
                traceback.print_exc()
            os._exit(child_runner.CHANNEL_LOST)
        if self._busy:
            _end_with_all_it_started()
        self._jobs.put(None)

    def _receive(self) -> None:
        while (received := next_frame(self._channel.incoming)) is not None:
            message, body = received
            if "answer" in message:
                self._channel.answered(message)
            elif "job" in message:
                job = RunningJob(job_from(message["job"], body), child_runner.ChannelReporter(self._channel))
                self._busy = True
                self._runner.take(job)
                self._jobs.put((message["run"], job))
            else:
                self._runner.cancel()

    @contextmanager
    def _limited_memory(self) -> Iterator[None]:
        """Limit the memory of one job; lift the limit afterwards, so that a MemoryError can be reported."""
        if self._memory_limit is None:
            yield
            return
        # measured at the first job, after all imports
        self._memory_at_first = self._memory_at_first or _address_space()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (self._memory_at_first + self._memory_limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _address_space() -> int:
    """Return the bytes this process has mapped; the limit of a job comes on top."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end_with_all_it_started() -> NoReturn:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(child_runner.CHANNEL_LOST)


def end_with_the_parent(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, even in a C call that lets no thread run.

    An alarm ends it one second later; before that, the listening thread can end the whole process group.
    """
    with suppress(OSError, AttributeError):  # Linux only; elsewhere the closed channel ends it
        libc = ctypes.CDLL(None)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP) == 0:
            # the handler is called with the signal's number, which is 1: alarm(1)
            libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    if os.getppid() != parent:
        os._exit(child_runner.CHANNEL_LOST)


def main(descriptor: int) -> None:
    """Serve the worker at the other end of the socket with this descriptor."""
    os.set_inheritable(descriptor, False)
    channel = child_runner.ChildChannel(socket.socket(fileno=descriptor))
    start = next_frame(channel.incoming)
    if start is None:
        return
    order, _ = start
    end_with_the_parent(order["parent"])
    # a service manager signals every process of a service, but the worker decides what its children finish. A
    # handler, not SIG_IGN, which child processes of the job would inherit
    signal.signal(signal.SIGTERM, lambda *_: None)
    faulthandler.enable()
    apply_import_state(order)
    try:
        function = Target(**order["target"]).find()
    except BaseException as error:
        channel.send({**child_runner.failure_message(error), "unready": True})
    else:
        Child(channel, function, order["memory_limit"]).serve()
    channel.close()
