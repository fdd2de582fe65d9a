"""Runs each `def` function in a thread, and replaces a thread that does not stop."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from longshore.runtime.executors.base import CANCEL_GRACE, Executor, StartBackoff
from longshore.runtime.running_job import RunningJob, make_blocking, running
from longshore.safe_logging import logger

Answer = tuple[Any, BaseException | None]
"""The returned value or the raised exception. A future would change some exceptions."""


class WorkerThread:
    """One thread that makes one call after another."""

    def __init__(self) -> None:
        self.interrupted = False
        """Whether an exception was sent to the thread. It could reach a later call, so the thread gets no more."""
        self._dismissed = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="longshore-processor", daemon=True)
        self._thread.start()

    def begin(self, context: contextvars.Context, call: Callable[..., Any], *args: Any) -> asyncio.Future[Answer]:
        """Call `call` in the thread, within the context; the answer arrives in the running loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def work() -> None:
            try:
                result: Answer = context.run(call, *args), None
            except BaseException as error:  # SystemExit is an answer, too: the thread continues
                result = None, error
            with suppress(RuntimeError):  # its loop has closed
                loop.call_soon_threadsafe(answer.set_result, result)

        self._calls.put(work)
        return answer

    def interrupt(self) -> None:
        """Raise CancelledError in the thread, at its next Python instruction."""
        self.interrupted = True
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(asyncio.CancelledError))

    def dismiss(self) -> None:
        """End the thread after its current call."""
        self._dismissed = True
        self._calls.put(None)

    def _work(self) -> None:
        while not self._dismissed:
            with suppress(asyncio.CancelledError):  # a late interrupt: its call had already ended
                work = self._calls.get()
                if work is not None:
                    work()


_INTERRUPT_GRACE = 1.0
"""Seconds for an exception raised from outside to reach Python code; inside C code it never does."""

_log = logger("longshore.worker")


class ThreadExecutor(Executor):
    """Runs each job in a thread.

    A cancelled job reads `job.cancelled` as true and has `cancel_grace` seconds to end. Then CancelledError is raised
    in its thread. If that has no effect, the thread is abandoned, because Python cannot end it.
    """

    def __init__(self, process: Callable[[RunningJob], Any], *, cancel_grace: float = CANCEL_GRACE) -> None:
        self._process = process
        self._grace = cancel_grace
        self._idle: list[WorkerThread] = []
        self._left: set[asyncio.Future[Answer]] = set()
        self._pauses = StartBackoff()
        self._closed = False

    @property
    def left_behind(self) -> int:
        """The number of threads that do not end."""
        return len(self._left)

    async def run(self, job: RunningJob) -> Any:
        """Run the job in an idle thread."""
        thread = self._idle_thread()
        make_blocking(job)
        work = thread.begin(contextvars.copy_context(), self._call, job)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                job.request_cancel()
                await self._stop(thread, work, job)
        finally:
            if work.done() and not (thread.interrupted or self._closed):
                self._idle.append(thread)
            else:
                thread.dismiss()
            if not work.done():
                self._left.add(work)
                work.add_done_callback(self._left.discard)
        value, error = work.result()
        if error is not None:
            raise error
        return value

    def _idle_thread(self) -> WorkerThread:
        try:
            thread = self._idle.pop() if self._idle else WorkerThread()
        except (RuntimeError, MemoryError) as error:  # the system has no more threads
            raise self._pauses.after(f"{type(error).__name__}: {error}") from error
        self._pauses.end()
        return thread

    def _call(self, job: RunningJob) -> Any:
        with running(job):
            try:
                value = self._process(job)
            except asyncio.CancelledError:
                if not job.completed_explicitly:
                    raise
                value = None
            return job.returned(value)

    async def _stop(self, thread: WorkerThread, work: asyncio.Future[Answer], job: RunningJob) -> None:
        """Return when the work has ended."""
        await asyncio.wait([work], timeout=self._grace)
        if not work.done():
            thread.interrupt()
            await asyncio.wait([work], timeout=_INTERRUPT_GRACE)
            job.notice_cancel()
        if not work.done():
            _log.warning(
                "job %s ignored its cancellation, and its thread cannot be stopped; call "
                'job.raise_if_cancelled() in long loops, or run it with executor="process"',
                job.id,
            )
            raise asyncio.CancelledError

    async def close(self) -> None:
        """End the idle threads now, and the others after their current call."""
        self._closed = True
        while self._idle:
            self._idle.pop().dismiss()
