"""A process that works on a queue's file until its input closes, and tells on its output what it was promised.

Run as `python -m tests.processes.dockhand ROLE FILE NAME [COUNT]`. Every line is written at once and by one call, so
that a kill never leaves half of one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import apsw

from longshore.backends.contract import Outcome
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import LongshoreError
from longshore.core.job import Job

SHORT_LEASE, LONG_LEASE = 3.0, 60.0
"""Seconds: one lets a killed process's jobs come round again, one is never outlived by a machine that is only busy."""


def tell(what: str, *values: Any) -> None:
    """One line, past all buffers."""
    os.write(1, (json.dumps([what, *values]) + "\n").encode())


class Stop:
    """Set when the input ends."""

    def __init__(self) -> None:
        self._over = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        sys.stdin.read()
        self._over.set()

    def __bool__(self) -> bool:
        return self._over.is_set()


async def enqueue(backend: SQLiteBackend, name: str, stop: Stop, most: int | None) -> None:
    """Jobs alone and in batches, as fast as they are taken."""
    for number in count() if most is None else range(most):
        if stop:
            return
        batch = 1 if number % 3 else 4
        ids = [f"{name}-{number}-{place}" for place in range(batch)]
        tell("trying", ids)
        tell("enqueued", await backend.enqueue_jobs([Job(id=job_id, type="t", queue="q") for job_id in ids]))


async def work(backend: SQLiteBackend, name: str, stop: Stop, lease: float) -> None:
    """Claims, and settles most of it; sweeps, for others may have been killed."""
    for number in count():
        if stop:
            return
        if number % 20 == 0:
            await backend.reclaim_expired_leases()
        jobs = await backend.dequeue_jobs(name, limit=3, lease=lease)
        if not jobs:
            await backend.wait_for_change(0.05)
            continue
        tell("claimed", [[job.id, job.epoch] for job in jobs])
        verbs = ("complete", "complete", "fail") if number % 7 == 0 else ("complete",) * 3
        outcomes = [
            Outcome(job.id, job.lease, verb, error="now and then" if verb == "fail" else "")  # type: ignore[arg-type]  # one of the verbs
            for job, verb in zip(jobs, verbs, strict=False)
        ]
        report = await backend.settle_jobs(outcomes)
        epochs = {job.id: job.epoch for job in jobs}
        tell("settled", [[job_id, epochs[job_id], status] for job_id, status in report.settled.items()])
        for job_id, error in report.refused.items():
            tell("refused", job_id, epochs[job_id], type(error).__name__)


async def both(path: Path, name: str, stop: Stop) -> None:
    """Three who enqueue and two who work, in one process."""
    async with SQLiteBackend(path) as backend, asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(enqueue(backend, f"{name}e{number}", stop, None))
        for number in range(2):
            group.create_task(work(backend, f"{name}w{number}", stop, SHORT_LEASE))


async def writer(path: Path, name: str, stop: Stop, most: int) -> None:
    async with SQLiteBackend(path) as backend:
        await enqueue(backend, name, stop, most)


async def claimer(path: Path, name: str, stop: Stop) -> None:
    async with SQLiteBackend(path) as backend:
        await work(backend, name, stop, LONG_LEASE)


def holder(path: Path) -> None:
    """Keeps everybody else from writing until its input ends."""
    connection = SQLiteBackend(path).new_connection()
    connection.execute("BEGIN EXCLUSIVE")
    tell("held")
    sys.stdin.read()
    connection.execute("COMMIT")
    connection.close()
    tell("let go")


async def waiter(path: Path) -> None:
    """Waits for one change."""
    async with SQLiteBackend(path) as backend:
        waiting = asyncio.create_task(backend.wait_for_change(20))
        await backend.count_jobs()  # by now the wait has begun
        tell("waiting")
        tell("changed", await waiting)


def migrator(path: Path, dies_at: int) -> None:
    """Makes the file, and is killed before a statement of the making; 0 counts the statements instead."""
    statements = 0

    def before_each(_cursor: object, _statement: str, _values: object) -> bool:
        nonlocal statements
        statements += 1
        if statements == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.set_exec_trace(before_each)

    apsw.connection_hooks.append(watch)
    SQLiteBackend(path).new_connection().close()
    tell("statements", statements)


def main() -> None:
    role, path, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    try:
        if role == "holder":
            holder(path)
        elif role == "both":
            asyncio.run(both(path, name, Stop()))
        elif role == "writer":
            asyncio.run(writer(path, name, Stop(), int(sys.argv[4])))
        elif role == "claimer":
            asyncio.run(claimer(path, name, Stop()))
        elif role == "waiter":
            asyncio.run(waiter(path))
        elif role == "migrator":
            migrator(path, int(sys.argv[4]))
    except* LongshoreError as errors:
        for error in errors.exceptions:
            tell("error", type(error).__name__, str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
