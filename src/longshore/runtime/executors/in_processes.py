"""Runs jobs in processes of their own: work that keeps a processor busy, or may take its process down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.job import Job
from longshore.core.times import Duration, check_duration
from longshore.core.validation import check_number
from longshore.runtime.executors.child_process import ChildProcess, NeverReady
from longshore.runtime.executors.contract import CANCEL_GRACE, CannotStart, Executor, Pauses
from longshore.runtime.executors.target import Target
from longshore.runtime.running_job import AwaitedDesk, RunningJob

_UNTIL_INTERRUPTED = 0.75
"""Of the grace: until then the job may notice by itself that it was called off; in the rest it is shaken awake."""
_SURELY_DEAD = 10.0
_CLOSED_PAUSE = 5.0
"""Seconds for which jobs stay away from a worker that can run nothing any more."""


class ProcessExecutor(Executor):
    """Runs `function(job)`, a `def` or an `async def` at the top of a module, in up to `processes` child processes.

    `memory_limit` is how many bytes of address space a job may take beyond what its process has once the function is
    imported; a job that wants more gets a MemoryError. A child makes room for a new one after `jobs_per_process` jobs.
    A child that dies with its job raises ProcessDied, which counts as a crash of that job alone.
    """

    def __init__(
        self,
        function: Callable[[RunningJob], Any] | Target,
        *,
        processes: int = 1,
        memory_limit: int | None = None,
        cancel_grace: Duration = CANCEL_GRACE,
        jobs_per_process: int = 1000,
    ) -> None:
        if os.name != "posix":
            raise LongshoreError("jobs run in processes of their own on Linux and macOS only; use threads here")
        self.target = function if isinstance(function, Target) else Target.of(function)
        self.processes = check_number("processes", processes, least=1)
        if memory_limit is not None and (type(memory_limit) is not int or memory_limit < 1):
            raise InvalidArgument("memory_limit", f"must be a number of bytes, at least 1, not {memory_limit!r}")
        self._memory_limit = memory_limit
        self._cancel_grace = check_duration("cancel_grace", cancel_grace, positive=False) / 1_000_000
        self._jobs_per_process = check_number("jobs_per_process", jobs_per_process, least=1)
        self._room = asyncio.Semaphore(processes)
        self._idle: list[ChildProcess] = []
        self._pauses = Pauses()
        self._busy: set[ChildProcess] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self, record: Job, backend: Backend) -> RunningJob:
        """The worker's side of the job: what the child notes is written through it."""
        return RunningJob(record, AwaitedDesk(backend))

    def begins_later(self, record: Job) -> bool:  # noqa: ARG002  # all of them do
        """It waits for a child that is free, and has imported what it needs."""
        return True

    async def run(self, job: RunningJob) -> Any:
        """In a child that has nothing else to do; waits for one if all are busy."""
        async with self._room:
            child = await self._free_child()
            self._busy.add(child)
            try:
                await self._ready(child)  # called off meanwhile, the job never begins, and the child is the next one's
                return await self._guided(child, job)
            finally:
                self._busy.discard(child)
                if child.alive and child.jobs < self._jobs_per_process and not self._closed:
                    self._idle.append(child)
                else:
                    self._dismiss(child)

    async def close(self) -> None:
        """Ends all children, busy ones by force."""
        self._closed = True
        for child in self._busy:
            child.kill()
        while self._idle:
            self._dismiss(self._idle.pop())
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _free_child(self) -> ChildProcess:
        if self._closed:
            raise CannotStart(_CLOSED_PAUSE, "the executor of this worker was closed with another worker")
        while self._idle:
            child = self._idle.pop()
            if child.loop is not asyncio.get_running_loop():
                child.kill()
            elif child.alive:
                return child
            else:
                self._dismiss(child)
        try:
            return await ChildProcess.start(self.target, self._memory_limit)
        except (OSError, RuntimeError, MemoryError) as error:  # no more processes, files, threads or memory
            raise self._pauses.after(f"{type(error).__name__}: {error}") from error

    async def _ready(self, child: ChildProcess) -> None:
        try:
            await child.ready()
        except NeverReady as error:
            raise self._pauses.after(str(error)) from error
        self._pauses.end()

    async def _guided(self, child: ChildProcess, job: RunningJob) -> Any:
        work = asyncio.create_task(child.perform(job))
        work.add_done_callback(_noticed)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            job.request_cancel()
            return await self._called_off(child, work)
        finally:
            if not work.done():  # called off twice: there is no patience left
                child.kill()

    async def _called_off(self, child: ChildProcess, work: asyncio.Task[Any]) -> Any:
        """The job's value, if it comes within the grace."""
        child.call_off()
        patience = self._cancel_grace * _UNTIL_INTERRUPTED
        harsher = ((patience, child.interrupt), (self._cancel_grace - patience, child.kill))
        for seconds, step in harsher:
            if (await asyncio.wait({work}, timeout=seconds))[0]:
                break
            step()
        else:
            await asyncio.wait({work}, timeout=_SURELY_DEAD)
        if work.done() and not work.cancelled() and work.exception() is None:
            return work.result()
        child.usable = False  # it was torn out of its work: what that left behind goes with the process
        raise asyncio.CancelledError

    def _dismiss(self, child: ChildProcess) -> None:
        leaving = asyncio.create_task(child.end())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


def _noticed(work: asyncio.Task[Any]) -> None:
    """What became of a run that nobody waits for any more is no warning's business."""
    if not work.cancelled():
        work.exception()
