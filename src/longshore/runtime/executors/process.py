"""Runs jobs in child processes, for CPU-bound work."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.job import Job
from longshore.core.times import Duration, check_duration
from longshore.core.validation import check_number
from longshore.runtime.error_text import LONGEST_STDERR, ProcessDied, describe_exit, is_a
from longshore.runtime.executors.base import (
    CANCEL_GRACE,
    UNTIL_INTERRUPTED,
    CannotStart,
    Executor,
    StartBackoff,
    Target,
    ignore_exception,
    refuse_while_importing,
)
from longshore.runtime.executors.wire import Unreadable, answer_to_note, failure_from, frame, job_fields, read_frame
from longshore.runtime.running_job import RunningJob
from longshore.runtime.signals import command_to_run, import_state

_SOON = 2.0
"""Seconds for the system to reap a dead process and deliver its last output."""
_SHOWN_STDERR = 64 * 1024
"""Bytes of each job's stderr that are copied to the worker's: enough for log lines, too few to fill a disk."""
_LONGEST_IMPORT = 300.0
"""Seconds after which a child that is still importing counts as hung."""


class NeverReady(Exception):
    """The child cannot run any job."""


class ChildProcess:
    """A child process; it belongs to the event loop that started it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, their_end: int) -> None:
        self.usable = True
        self.jobs = 0
        self.loop = asyncio.get_running_loop()
        self._reader, self._writer = reader, writer
        self._exited: asyncio.Future[int] = self.loop.create_future()
        self._imported: asyncio.Future[None] = self.loop.create_future()
        self._lock = threading.Lock()
        self._reaped = False
        self._process = subprocess.Popen(
            command_to_run("longshore.runtime.executors.child", their_end),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[their_end],
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stderr is not None
        self._stderr = StderrTail(self._process.stderr.fileno(), self.loop)
        try:
            threading.Thread(target=self._attend, name=f"longshore-child-{self.pid}", daemon=True).start()
        except RuntimeError:  # no thread is left to notice its end
            _kill_group(self.pid)
            self._process.wait()
            self._stderr.close()
            self._process.stderr.close()
            raise

    @classmethod
    async def start(cls, target: Target, memory_limit: int | None) -> Self:
        """Start a child that imports its target; `ready` waits for the import."""
        refuse_while_importing()
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                child = cls(reader, writer, theirs.fileno())
            except BaseException:
                writer.close()
                raise
        order = {"target": target.as_dict(), "memory_limit": memory_limit, "parent": os.getpid(), **import_state()}
        writer.write(frame(order))
        child._imported = asyncio.create_task(child._import())
        child._imported.add_done_callback(ignore_exception)
        return child

    async def ready(self) -> None:
        """Wait until it has imported its target, or raise NeverReady; the import continues if you stop waiting."""
        await asyncio.wait({self._imported})
        self._imported.result()

    async def _import(self) -> None:
        try:
            async with asyncio.timeout(_LONGEST_IMPORT):
                message, _ = await read_frame(self._reader)
        except TimeoutError:
            reason = f"its process was still importing after {_LONGEST_IMPORT:g} seconds"
        except (EOFError, ConnectionError):
            await asyncio.wait({self._exited}, timeout=_SOON)
            code = self._exited.result() if self._exited.done() else None
            reason = "its process closed its channel" if code is None else describe_exit(code, "while it was importing")
        except Unreadable as problem:
            reason = f"its process sent something unreadable to the worker: {problem}"
        else:
            if "ready" in message:
                return
            self.usable = False
            raise NeverReady(str(message.get("failed", message)))
        raise NeverReady(str(await self._death(reason)))

    # -- one job

    async def perform(self, job: RunningJob) -> Any:
        """Return the job's value, or raise its exception or ProcessDied."""
        self.jobs += 1
        self.usable = False
        self._stderr.forget()
        talk = asyncio.create_task(self._talk(job))
        try:
            await asyncio.wait({talk, self._exited}, return_when=asyncio.FIRST_COMPLETED)
            # messages sent before it died are still in the channel
            await asyncio.wait({talk}, timeout=_SOON)
            if talk.done():
                return talk.result()
        except (EOFError, ConnectionError):
            await asyncio.wait({self._exited}, timeout=_SOON)
        except Unreadable as problem:
            raise await self._death(f"its process sent something unreadable to the worker: {problem}") from None
        finally:
            talk.cancel()
        if self._exited.done():
            raise await self._death(describe_exit(self._exited.result()))
        raise await self._death("its process closed its channel to the worker before the job ended")

    async def _talk(self, job: RunningJob) -> Any:
        self._writer.write(frame({"job": job_fields(job.record), "run": self.jobs}, job.payload))
        await self._writer.drain()
        try:
            while True:
                message, body = await read_frame(self._reader)
                if "begun" in message:
                    if message["begun"] == self.jobs:
                        job.begin()
                elif "note" in message:
                    self._writer.write(frame(await answer_to_note(job, message, body)))
                    await self._writer.drain()
                elif message["run"] == self.jobs:
                    break
            if "failed" not in message:
                value = json.loads(body) if body else None
                self.usable = True
                job.take_report(message)
                return value
            failure = failure_from(message)
        except (KeyError, TypeError, ValueError) as problem:
            raise Unreadable(repr(problem)) from None
        # a process that ran out of memory may be in any state
        self.usable = not is_a(failure.__cause__ or failure, MemoryError)
        raise failure

    def cancel(self) -> None:
        """Request that the job ends."""
        if not self._writer.is_closing():
            self._writer.write(frame({"cancel": True}))

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the job, once it runs Python code."""
        with self._lock:
            if not self._reaped:
                os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill it and every process it started."""
        self.usable = False
        with self._lock:
            if not self._reaped:
                _kill_group(self.pid)

    # -- its end

    @property
    def alive(self) -> bool:
        """Whether it can take another job."""
        return self.usable and not self._exited.done()

    async def end(self) -> None:
        """Close an idle child; it has a moment to exit in order."""
        self.usable = False
        self._imported.cancel()
        self._writer.close()
        await asyncio.wait({self._exited}, timeout=_SOON)
        self.kill()
        await asyncio.wait({self._exited}, timeout=_SOON)

    async def _death(self, reason: str) -> ProcessDied:
        self.kill()
        await asyncio.wait({self._exited}, timeout=_SOON)
        return ProcessDied(reason, self._stderr.text())

    def _attend(self) -> None:
        """Wait for the exit in a thread: another process may keep the channel of a dead child open."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            # before it is reaped: until then no other process has its pid
            _kill_group(self.pid)
            code = self._process.wait()
            self._reaped = True
        with suppress(RuntimeError):  # the loop may be closed
            self.loop.call_soon_threadsafe(self._let_go, code)

    def _let_go(self, code: int) -> None:
        self._exited.set_result(code)
        self._stderr.close()
        assert self._process.stderr is not None
        self._process.stderr.close()


class StderrTail:
    """Reads what a child writes to stderr, and keeps the end of it."""

    def __init__(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._kept = b""
        self._shown = 0
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._read)

    def forget(self) -> None:
        """Start again for a new job."""
        self._kept, self._shown = b"", 0

    def text(self) -> str:
        """Return the end of what the current job wrote."""
        return self._kept.decode(errors="replace")

    def close(self) -> None:
        """Read the rest without waiting: a process that escaped may still be writing."""
        for _ in range(100):
            if not self._read():
                break
        self._loop.remove_reader(self._descriptor)

    def _read(self) -> bool:
        try:
            written = os.read(self._descriptor, 64 * 1024)
        except BlockingIOError:
            return False
        if not written:
            self._loop.remove_reader(self._descriptor)
            return False
        self._kept = (self._kept + written)[-LONGEST_STDERR:]
        if self._shown < _SHOWN_STDERR:
            self._shown += len(written)
            _show(written if self._shown < _SHOWN_STDERR else written + b"\n[longshore: the rest is not shown]\n")
        return True


def _show(written: bytes) -> None:
    with suppress(Exception):  # the worker may have no stderr, or a replaced one
        sys.stderr.write(written.decode(errors="replace"))
        sys.stderr.flush()


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses it for a group of zombies
        os.killpg(leader, signal.SIGKILL)


_SURELY_DEAD = 10.0
_CLOSED_PAUSE = 5.0
"""Seconds for which the jobs that a closed worker cannot run are delayed."""


class ProcessExecutor(Executor):
    """Run `function(job)`, a `def` or `async def` at the top level of a module, in child processes. See docs/worker.md.

    `memory_limit` is the address space in bytes that a job may take beyond that of its process after the imports; a job
    that needs more gets a MemoryError. A child is replaced after `jobs_per_process` jobs. A child that dies with its
    job raises ProcessDied, which counts as a crash of that job alone.
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
            raise LongshoreError("child processes need Linux or macOS; run the jobs in threads here")
        self.target = function if isinstance(function, Target) else Target.of(function)
        self.processes = check_number("processes", processes, least=1)
        if memory_limit is not None and (type(memory_limit) is not int or memory_limit < 1):
            raise InvalidArgument("memory_limit", f"must be a number of bytes, at least 1, not {memory_limit!r}")
        self._memory_limit = memory_limit
        self._cancel_grace = check_duration("cancel_grace", cancel_grace, positive=False) / 1_000_000
        self._jobs_per_process = check_number("jobs_per_process", jobs_per_process, least=1)
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[ChildProcess] = []
        self._pauses = StartBackoff()
        self._busy: set[ChildProcess] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def begins_later(self, record: Job) -> bool:  # noqa: ARG002  # every job waits for a child
        """Return True: each job waits for a free child that has imported its function."""
        return True

    async def run(self, job: RunningJob) -> Any:
        """Run the job in a free child; wait for one if all are busy."""
        async with self._slots:
            child = await self._free_child()
            self._busy.add(child)
            try:
                await self._ready(child)  # if cancelled here, the job never starts, and the next job gets the child
                return await self._run_in(child, job)
            finally:
                self._busy.discard(child)
                if child.alive and child.jobs < self._jobs_per_process and not self._closed:
                    self._idle.append(child)
                else:
                    self._dismiss(child)

    async def close(self) -> None:
        """End all children, busy ones by force."""
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

    async def _run_in(self, child: ChildProcess, job: RunningJob) -> Any:
        work = asyncio.create_task(child.perform(job))
        work.add_done_callback(ignore_exception)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            job.request_cancel()
            return await self._cancel(child, work)
        finally:
            if not work.done():  # cancelled twice: no more grace
                child.kill()

    async def _cancel(self, child: ChildProcess, work: asyncio.Task[Any]) -> Any:
        """Return the job's value if it arrives within the grace."""
        child.cancel()
        polite = self._cancel_grace * UNTIL_INTERRUPTED
        for seconds, then in ((polite, child.interrupt), (self._cancel_grace - polite, child.kill)):
            if (await asyncio.wait({work}, timeout=seconds))[0]:
                break
            then()
        else:
            await asyncio.wait({work}, timeout=_SURELY_DEAD)
        if work.done() and not work.cancelled() and work.exception() is None:
            return work.result()
        child.usable = False  # an interrupted process may be in any state
        raise asyncio.CancelledError

    def _dismiss(self, child: ChildProcess) -> None:
        leaving = asyncio.create_task(child.end())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
