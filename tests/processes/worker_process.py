"""A process with a real Worker, whose jobs print a line when they begin and end.

Run as `python -m tests.processes.worker_process KIND URL NAME CONCURRENCY LEASE GRACE`. KIND is where jobs run: `loop`,
`threads` or `processes`; `served` is a program run by `serve`. The type of a job says what it does. SIGTERM closes the
worker, as a deployment does.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import threading
import timeit
from typing import Any

from longshore import Queue, Worker, connect
from longshore.core.status import JobStatus
from longshore.core.times import Duration
from longshore.runtime.executors.base import Executor
from longshore.runtime.executors.process import ProcessExecutor
from longshore.runtime.running_job import RunningJob
from longshore.runtime.signals import run_until_stopped, serve

_NEVER = threading.Event()


def emit(what: str, *values: Any) -> None:
    """Write one line, unbuffered."""
    os.write(1, (json.dumps([what, *values]) + "\n").encode())


async def on_the_loop(job: RunningJob) -> str:
    emit("started", job.id, job.epoch)
    if job.type == "slow":
        await asyncio.sleep(0.02)
    elif job.type == "a while":
        await asyncio.sleep(0.1)
    elif job.type == "long" or (job.type == "until killed" and job.executions == 1):
        await asyncio.Event().wait()
    elif job.type == "sits in a thread":
        await asyncio.to_thread(_NEVER.wait)
    elif job.type == "blocks the loop":
        _NEVER.wait(job.data)
    elif job.type == "holds the interpreter" and job.executions == 1:
        hold_the_interpreter(job.data)
    elif job.type == "shows its lease":
        assert job.record.lease is not None
        emit("claimed", job.id, job.epoch, job.record.lease.token)
        await asyncio.sleep(job.data)
    emit("finished", job.id, job.epoch)
    return "done"


def hold_the_interpreter(seconds: float) -> None:
    """Call into C without releasing the interpreter for at least this long, by the fastest of a few shorter calls."""
    fastest = min(timeit.repeat(lambda: sum(range(2_000_000)), number=1, repeat=8))
    sum(range(int(2_000_000 * seconds / fastest)))


def in_a_thread(job: RunningJob) -> str:
    emit("started", job.id, job.epoch)
    _NEVER.wait(0.01)
    emit("finished", job.id, job.epoch)
    return "done"


def in_a_process(job: RunningJob) -> str:
    """Run poison or plain work, by type."""
    if job.type == "segfault":
        print("about to read at address 0", file=sys.stderr, flush=True)
        ctypes.string_at(0)
    elif job.type == "exits":
        os._exit(3)
    elif job.type == "aborts":
        os.abort()
    elif job.type == "hangs":
        ctypes.CDLL(None).pause()
    return "done"


def executor(kind: str) -> Any:
    if kind == "processes":
        return ProcessExecutor(in_a_process, processes=2, cancel_grace=0.5)
    return in_a_thread if kind == "threads" else on_the_loop


class ReportingWorker(Worker):
    """Prints a line when it is closed."""

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        emit("stopping", force)
        await super().close(force, grace=grace)


async def work(kind: str, url: str, name: str, concurrency: int, lease: float, grace: float) -> None:
    process: Any = executor(kind)
    assert callable(process) or isinstance(process, Executor)
    async with Queue(connect(url)) as queue:
        worker = ReportingWorker(
            queue, process, concurrency=concurrency, lock_duration=lease, id=name, cancel_grace=0.5
        )
        code = await run_until_stopped(worker, grace=grace)
        left = (await queue.count_jobs())[JobStatus.RUNNING]
        emit("closed", code, left)
    sys.exit(code)


def main() -> None:
    kind, url, name, concurrency, lease, grace = sys.argv[1:]
    if kind == "served":
        sys.exit(serve(lambda: Worker(Queue(connect(url)), on_the_loop, cancel_grace=0.2), grace=float(grace)))
    asyncio.run(work(kind, url, name, int(concurrency), float(lease), float(grace)))


if __name__ == "__main__":
    main()
