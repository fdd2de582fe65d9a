"""One job at a time, run in this process for a worker elsewhere: whatever it does, there is something to say of it."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any

from longshore.core.errors import Fatal, Snooze
from longshore.core.validation import check_json, clean_text
from longshore.runtime.executors.wire import Frame
from longshore.runtime.failures import ProcessDied, describe, type_names
from longshore.runtime.running_job import RunningJob, running

_MOST_TYPE_NAMES = 100


class Performer:
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
