"""Processors that are `def`: each runs in a thread, and a thread that will not end is left behind."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from longshore.backends.base import Backend
from longshore.core.job import Job
from longshore.runtime.executors.contract import CANCEL_GRACE, Executor, Pauses
from longshore.runtime.executors.hands import Answer, Hand
from longshore.runtime.running_job import BlockingDesk, RunningJob, running
from longshore.safe_logging import logger

_INTERRUPT_GRACE = 1.0
"""Seconds for an exception raised from outside to reach Python code; inside C code it never does."""

_log = logger("longshore.worker")


class ThreadExecutor(Executor):
    """Calls the processor in a thread.

    A cancelled one sees `job.cancelled` and has `cancel_grace` seconds; then CancelledError is raised in its thread;
    and if that does not reach it, the thread is left to itself, as nothing in Python can end it.
    """

    def __init__(self, process: Callable[[RunningJob], Any], *, cancel_grace: float = CANCEL_GRACE) -> None:
        self._process = process
        self._grace = cancel_grace
        self._desk: BlockingDesk | None = None
        self._idle: list[Hand] = []
        self._left: set[asyncio.Future[Answer]] = set()
        self._pauses = Pauses()
        self._closed = False

    def take(self, record: Job, backend: Backend) -> RunningJob:
        """A job whose notes are plain calls."""
        if self._desk is None or self._desk.backend is not backend:
            self._desk = BlockingDesk(backend)
        return RunningJob(record, self._desk)

    @property
    def left_behind(self) -> int:
        """Threads that do not end."""
        return len(self._left)

    async def run(self, job: RunningJob) -> Any:
        """In a thread that has nothing else to do."""
        hand = self._free_hand()
        work = hand.begin(contextvars.copy_context(), self._call, job)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                job.request_cancel()
                await self._stop(hand, work, job)
        finally:
            if work.done() and not (hand.interrupted or self._closed):
                self._idle.append(hand)
            else:
                hand.dismiss()
            if not work.done():
                self._left.add(work)
                work.add_done_callback(self._left.discard)
        value, error = work.result()
        if error is not None:
            raise error
        return value

    def _free_hand(self) -> Hand:
        try:
            hand = self._idle.pop() if self._idle else Hand()
        except (RuntimeError, MemoryError) as error:  # the system gives us no more threads
            raise self._pauses.after(f"{type(error).__name__}: {error}") from error
        self._pauses.end()
        return hand

    def _call(self, job: RunningJob) -> Any:
        with running(job):
            try:
                value = self._process(job)
            except asyncio.CancelledError:
                if not job.said_complete:
                    raise
                value = None
            return job.returned(value)

    async def _stop(self, hand: Hand, work: asyncio.Future[Answer], job: RunningJob) -> None:
        """Returns when the work has ended."""
        await asyncio.wait([work], timeout=self._grace)
        if not work.done():
            hand.interrupt()
            await asyncio.wait([work], timeout=_INTERRUPT_GRACE)
            job.heed()
        if not work.done():
            _log.warning(
                "job %s does not end although it was called off, and its thread cannot be ended; call "
                'job.raise_if_cancelled() in long loops, or run it with executor="process"',
                job.id,
            )
            raise asyncio.CancelledError

    async def close(self) -> None:
        """Ends the idle threads, and each of the others after its present call."""
        self._closed = True
        while self._idle:
            self._idle.pop().dismiss()
