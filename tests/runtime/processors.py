"""Functions that child processes import by name: normal ones, and poison."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from longshore.core.errors import Fatal, LeaseLost, Snooze
from longshore.runtime.running_job import RunningJob, current_job

FOREVER = 600.0
"""Seconds: longer than any test."""
NAP = threading.Event()


def _told(job: RunningJob, *pids: int) -> None:
    """Write a file that shows the test that the job has started, with the pids of its processes."""
    Path(job.data).write_text(" ".join(map(str, (os.getpid(), *pids))) + "\n", encoding="ascii")


def double(job: RunningJob) -> Any:
    return job.data * 2


async def double_soon(job: RunningJob) -> Any:
    await asyncio.sleep(0)
    assert current_job() is job
    return job.data * 2


def tell_record(job: RunningJob) -> Any:
    assert current_job() is job
    return {name: repr(getattr(job, name)) for name in job.data}


def whereabouts(job: RunningJob) -> Any:
    return {"pid": os.getpid(), "group": os.getpgrp(), "cwd": str(Path.cwd()), "path": sys.path, "argv": sys.argv}


def write_notes(job: RunningJob) -> Any:
    job.update_progress({"done": 1})
    job.log("a line")
    job.log("another\ud800", "warn")
    before = job.checkpoint
    job.save_checkpoint(b"\x00\xff" if job.data == "bytes" else {"at": 7})
    return [before, job.checkpoint == (b"\x00\xff" if job.data == "bytes" else {"at": 7}), job.dependency_results()]


async def write_notes_soon(job: RunningJob) -> Any:
    await job.update_progress({"done": 1})
    await asyncio.gather(job.log("a line"), job.log("another\ud800", "warn"))
    before = job.checkpoint
    await job.save_checkpoint(b"\x00\xff" if job.data == "bytes" else {"at": 7})
    checkpoint = b"\x00\xff" if job.data == "bytes" else {"at": 7}
    return [before, job.checkpoint == checkpoint, await job.dependency_results()]


def note_until_refused(job: RunningJob) -> Any:
    try:
        job.update_progress(1)
    except LeaseLost as lost:
        return [lost.job_id, lost.reason, str(lost)]
    return "nothing was refused"


async def asks_and_tells_much(job: RunningJob) -> Any:
    large = "x" * 900_000
    await asyncio.gather(*(job.dependency_results() for _ in range(3)), job.save_checkpoint(large))
    return "done"


def note_nonsense(job: RunningJob) -> Any:
    job.update_progress({1, 2})


def prints(job: RunningJob) -> Any:
    print("to stdout")
    os.write(1, b"to descriptor 1\n")
    sys.stdin.read()
    return "printed"


def waits_in_pieces(job: RunningJob) -> Any:
    _told(job)
    while not job.cancelled:
        NAP.wait(0.01)
    return "stopped by itself"


def waits(job: RunningJob) -> Any:
    _told(job)
    try:
        NAP.wait(FOREVER)
    finally:
        Path(job.data + ".cleaned").touch()


async def waits_soon(job: RunningJob) -> Any:
    _told(job)
    try:
        await asyncio.sleep(FOREVER)
    except asyncio.CancelledError:
        assert job.cancelled
        return "stopped soon"


def ignores_all(job: RunningJob) -> Any:
    """Mask every signal, start processes, and hang in C without letting a thread run."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    started = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    _told(job, started.pid)
    ctypes.PyDLL(None).sleep(int(FOREVER))


def bombs(job: RunningJob) -> Any:
    """Start processes that stay until they are killed."""
    pids = []
    for _ in range(20):
        pids.append(os.fork())
        if pids[-1] == 0:
            signal.pause()
    _told(job, *pids)
    NAP.wait(FOREVER)


# -- failures


class OddError(Exception):
    pass


def fails(job: RunningJob) -> Any:
    raise OddError("odd \x00 thing")


async def fails_soon(job: RunningJob) -> Any:
    raise OddError("odd \x00 thing")


def fails_unspeakably(job: RunningJob) -> Any:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    raise Unspeakable


def fails_at_length(job: RunningJob) -> Any:
    raise ValueError("x" * 50_000_000)


class Doomed(Fatal):
    pass


def fatal(job: RunningJob) -> Any:
    raise Doomed("no use")


def snoozes(job: RunningJob) -> Any:
    raise Snooze(12.5, "not yet")


def returns_a_set(job: RunningJob) -> Any:
    return {1, 2}


def exits(job: RunningJob) -> Any:
    sys.exit(3)


async def cancels_itself(job: RunningJob) -> Any:
    raise asyncio.CancelledError


# -- poison


def segfaults(job: RunningJob) -> Any:
    print("about to read address 0", file=sys.stderr, flush=True)
    ctypes.string_at(0)


def segfaults_or_doubles(job: RunningJob) -> Any:
    return segfaults(job) if job.data == "poison" else double(job)


def exits_at_once(job: RunningJob) -> Any:
    os._exit(job.data)


def aborts(job: RunningJob) -> Any:
    os.abort()


def kills_itself(job: RunningJob) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def closes_everything(job: RunningJob) -> Any:
    os.closerange(0, 1024)


def closes_everything_and_opens_files(job: RunningJob) -> Any:
    os.closerange(0, 1024)
    for _ in range(100):
        os.open(job.data, os.O_RDWR | os.O_CREAT)


def scribbles_on_the_line(job: RunningJob) -> Any:
    for descriptor in range(3, 1024):  # the channel has the same descriptor as in the worker
        try:
            os.write(descriptor, b"scribble" * 100)
        except OSError:
            continue
    NAP.wait(FOREVER)


def forks_and_both_return(job: RunningJob) -> Any:
    return os.fork() != 0


def dies_while_its_fork_keeps_the_line(job: RunningJob) -> Any:
    if os.fork() == 0:
        NAP.wait(FOREVER)
    os.kill(os.getpid(), signal.SIGKILL)


def takes_memory_at_once(job: RunningJob) -> Any:
    return len(bytearray(job.data))


def takes_memory_bit_by_bit(job: RunningJob) -> Any:
    kept: list[str] = []
    while True:
        kept.append("x" * 1000 + str(len(kept)))


def floods_stderr(job: RunningJob) -> Any:
    for _ in range(job.data):
        os.write(2, b"flood " * 10_000)
    os.write(2, b"\nthe last line\n")
    os.abort()


def spins(job: RunningJob) -> Any:
    until = time.perf_counter() + job.data
    while time.perf_counter() < until:
        pass


def limits(job: RunningJob) -> Any:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def leaves_a_thread_that_notes(job: RunningJob) -> Any:
    if job.data == "first":
        NAP.clear()
        threading.Thread(target=_note_late, args=(job,), daemon=True).start()
        return "left"
    NAP.set()
    LATE.wait(FOREVER)
    return OUTCOMES


LATE = threading.Event()
OUTCOMES: list[str] = []


def _note_late(job: RunningJob) -> None:
    NAP.wait(FOREVER)
    try:
        job.update_progress("late")
    except Exception as error:
        OUTCOMES.append(str(error))
    LATE.set()
