"""One child process, seen from its worker: it is given a job, answered, called off, killed, and attended to its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Self

from longshore.runtime.executors.hearing import answer_to_note, failure_from
from longshore.runtime.executors.target import Target, refuse_while_importing
from longshore.runtime.executors.wire import Unreadable, frame, read_frame, told_job
from longshore.runtime.failures import LONGEST_STDERR, ProcessDied, how_it_ended, is_a
from longshore.runtime.running_job import RunningJob
from longshore.runtime.spawning import command_to_run, surroundings

_SOON = 2.0
"""Seconds for what the system does by itself: a dead process is reaped, its last words arrive."""
_SHOWN_STDERR = 64 * 1024
"""Of each job, passed on to the worker's own: enough for its log lines, and no job can fill a disk by it."""
_LONGEST_IMPORT = 300.0
"""Seconds after which a child that is still importing is taken for one that hangs."""


class NeverReady(Exception):
    """The child cannot run jobs, whichever they are."""


class ChildProcess:
    """Belongs to the event loop that started it."""

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
        self._stderr = LastWords(self._process.stderr.fileno(), self.loop)
        try:
            threading.Thread(target=self._attend, name=f"longshore-child-{self.pid}", daemon=True).start()
        except RuntimeError:  # there are no more threads to be had, and nobody would notice its end
            _kill_group(self.pid)
            self._process.wait()
            self._stderr.close()
            self._process.stderr.close()
            raise

    @classmethod
    async def start(cls, target: Target, memory_limit: int | None) -> Self:
        """A child that imports its target; `ready` waits for it."""
        refuse_while_importing()
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                child = cls(reader, writer, theirs.fileno())
            except BaseException:
                writer.close()
                raise
        order = {"target": target.told(), "memory_limit": memory_limit, "parent": os.getpid(), **surroundings()}
        writer.write(frame(order))
        child._imported = asyncio.create_task(child._import())
        child._imported.add_done_callback(_looked_at)
        return child

    async def ready(self) -> None:
        """Waits until it has imported its target, or raises NeverReady; whoever stops waiting stops nothing else."""
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
            reason = "its process closed its line" if code is None else how_it_ended(code, "while it was importing")
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
        """The job's value, or what it raised, or ProcessDied."""
        self.jobs += 1
        self.usable = False
        self._stderr.forget()
        talk = asyncio.create_task(self._talk(job))
        try:
            await asyncio.wait({talk, self._exited}, return_when=asyncio.FIRST_COMPLETED)
            # what it said before it died is still in the line
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
            raise await self._death(how_it_ended(self._exited.result()))
        raise await self._death("its process closed its line to the worker before the job ended")

    async def _talk(self, job: RunningJob) -> Any:
        self._writer.write(frame({"job": told_job(job.record), "run": self.jobs}, job.payload))
        await self._writer.drain()
        try:
            while True:
                message, body = await read_frame(self._reader)
                if "begun" in message:
                    if message["begun"] == self.jobs:
                        job.begin()
                elif "note" in message:
                    await self._write_note(job, message, body)
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
        # what a job without memory left behind, nobody knows
        self.usable = not is_a(failure.__cause__ or failure, MemoryError)
        raise failure

    async def _write_note(self, job: RunningJob, message: dict[str, Any], body: bytes) -> None:
        self._writer.write(frame(await answer_to_note(job, message, body)))
        await self._writer.drain()

    def call_off(self) -> None:
        """Tells the job that it should end."""
        if not self._writer.is_closing():
            self._writer.write(frame({"cancel": True}))

    def interrupt(self) -> None:
        """Raises KeyboardInterrupt in the job, if Python gets to run there."""
        with self._lock:
            if not self._reaped:
                os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Ends it and all that it started."""
        self.usable = False
        with self._lock:
            if not self._reaped:
                _kill_group(self.pid)

    # -- its end

    @property
    def alive(self) -> bool:
        """Whether it can be given another job."""
        return self.usable and not self._exited.done()

    async def end(self) -> None:
        """Lets it go, without a job: it has a moment to leave in order."""
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
        """In a thread of its own: only so is a dead process noticed whose line somebody else keeps open."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            # before it is reaped: until then its number is nobody else's
            _kill_group(self.pid)
            code = self._process.wait()
            self._reaped = True
        with suppress(RuntimeError):  # the loop may be gone
            self.loop.call_soon_threadsafe(self._let_go, code)

    def _let_go(self, code: int) -> None:
        self._exited.set_result(code)
        self._stderr.close()
        assert self._process.stderr is not None
        self._process.stderr.close()


class LastWords:
    """Reads what a child writes to stderr as it comes, and keeps the end of it."""

    def __init__(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._kept = b""
        self._shown = 0
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._read)

    def forget(self) -> None:
        """A new job begins."""
        self._kept, self._shown = b"", 0

    def text(self) -> str:
        """The end of what was written since."""
        return self._kept.decode(errors="replace")

    def close(self) -> None:
        """Takes what is left, and no more: a process that got away may still be writing."""
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


def _looked_at(imported: asyncio.Future[None]) -> None:
    """A child that nobody waited for may fail without a word: the next job will have another one."""
    if not imported.cancelled():
        imported.exception()


def _show(written: bytes) -> None:
    with suppress(Exception):  # a worker without a stderr, or one that was replaced, works on
        sys.stderr.write(written.decode(errors="replace"))
        sys.stderr.flush()


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a group of zombies
        os.killpg(leader, signal.SIGKILL)
