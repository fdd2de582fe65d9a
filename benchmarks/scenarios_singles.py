"""Single enqueues from one process, compared with bare SQL that commits each job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import bare_sql
from benchmarks.bare_sql import BareQueue
from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Stopwatch, alternate
from benchmarks.reporting import Finding, Target, rates
from benchmarks.workload import QUEUE, TYPE, hundred_bytes, small_jobs
from longshore.app.harbor import Harbor
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.runtime.queue import Queue

Enqueue = Callable[[int], Awaitable[object]]


def single_enqueues(databases: Databases) -> list[Finding]:
    """`enqueue_job` of the backend, `add` of the queue, and `enqueue` of a task."""
    scale = databases.scale
    jobs = scale.single_jobs
    backend, queue, task, bare = alternate(
        scale.rounds,
        lambda: _product(databases, jobs, _by_the_backend),
        lambda: _product(databases, jobs, _by_a_queue),
        lambda: _product(databases, jobs, _by_a_task),
        lambda: _bare(databases, jobs),
    )
    return [
        rates("single `enqueue_job` calls in a loop", backend, bare, target=Target("≥", 0.4)),
        rates("the same with `Queue.add`", queue, bare, target=Target("≥", 0.4)),
        rates("the same with a task's `enqueue`", task, bare, target=Target("≥", 0.4)),
    ]


def _by_the_backend(backend: SQLiteBackend, count: int) -> Enqueue:
    jobs = small_jobs(0, count)
    return lambda number: backend.enqueue_job(jobs[number])


def _by_a_queue(backend: SQLiteBackend, _: int) -> Enqueue:
    queue = Queue(backend, QUEUE)
    return lambda number: queue.add(TYPE, _document(number))


def _by_a_task(backend: SQLiteBackend, _: int) -> Enqueue:
    harbor = Harbor(backend)

    @harbor.task(name=TYPE, queue=QUEUE)
    async def resize(image: int, width: int, height: int, format: str, quality: int, path: str) -> None:
        """Never run in this benchmark."""

    return lambda number: resize.enqueue(**_document(number))


def _document(number: int) -> dict[str, Any]:
    """Data whose JSON text has a hundred bytes."""
    return {
        "image": 1_000_000 + number,
        "width": 640,
        "height": 480,
        "format": "webp",
        "quality": 82,
        "path": "originals/2026/dock",
    }


def _product(databases: Databases, count: int, ready: Callable[[SQLiteBackend, int], Enqueue]) -> Sample:
    async def run(path: Path) -> Sample:
        async with SQLiteBackend(path) as backend:
            await backend.enqueue_jobs(small_jobs(0, 1))
            enqueue = ready(backend, count)
            with Stopwatch(count) as watch:
                for number in range(count):
                    await enqueue(number)
        return watch.sample

    with databases.scratch() as path:
        return asyncio.run(run(path))


def _bare(databases: Databases, count: int) -> Sample:
    """The same rows from tuples, one transaction per job."""
    with databases.scratch() as path, bare_sql.new_file(path) as connection:
        queue = BareQueue(connection)
        queue.enqueue(queue.prepared(1, 1)[0])
        batches = queue.prepared(count, 1, payload=hundred_bytes)
        with Stopwatch(count) as watch:
            for batch in batches:
                queue.enqueue(batch)
    return watch.sample
