"""The functions that supervised processes run in the tests; each prints its progress in one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any

from longshore.backends.connect import connect
from longshore.core.job import Job
from longshore.core.times import Duration
from longshore.runtime.executors.process import ProcessExecutor
from longshore.runtime.queue import Queue
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker import Worker

FOREVER = 600.0


def emit(what: str, *values: Any) -> None:
    # in one write: several processes share the pipe
    os.write(1, json.dumps([what, os.getpid(), *values]).encode() + b"\n")


class Idler:
    """Runs until it is closed, as a worker would."""

    def __init__(self, stubborn: bool = False) -> None:
        self._stubborn = stubborn
        self._over = asyncio.Event()

    async def run(self) -> None:
        emit("working")
        await self._over.wait()

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        emit("closing", force, grace)
        if force or not self._stubborn:
            self._over.set()


def idler(stubborn: bool = False) -> Idler:
    return Idler(stubborn)


class Dockyard:
    """Creates workers, like a Harbor."""

    def worker(self, **arguments: Any) -> Idler:
        emit("made", arguments)
        return Idler()


sample_harbor = Dockyard()
not_callable = 7


async def program() -> None:
    emit("working")
    try:
        await asyncio.sleep(FOREVER)
    finally:
        emit("cleaned up")


async def ends_by_itself(code: int = 0) -> None:
    emit("working")
    if code:
        sys.exit(code)


async def blocks() -> None:
    """Block its event loop, as bad code would."""
    emit("working")
    threading.Event().wait(FOREVER)


def kills_itself() -> None:
    emit("working")
    os.kill(os.getpid(), signal.SIGKILL)


async def run_jobs(job: RunningJob) -> str:
    emit("running", job.id, job.data)
    if job.data == "long":
        await asyncio.sleep(FOREVER)
    return "done"


def run_jobs_in_a_child(job: RunningJob) -> str:
    emit("running", job.id, job.data)
    while job.data == "long" and not job.cancelled:
        threading.Event().wait(0.01)
    return "done"


def works_on(url: str, isolated: bool = False, concurrency: int = 1, lock_duration: float = 5) -> Worker:
    process = ProcessExecutor(run_jobs_in_a_child, processes=concurrency) if isolated else run_jobs
    return Worker(Queue(connect(url)), process, concurrency=concurrency, lock_duration=lock_duration)


def long_job(job_id: str) -> Job:
    return Job(id=job_id, type="t", payload=b'"long"')
