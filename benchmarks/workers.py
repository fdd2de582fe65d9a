"""Worker processes: one drains a queue, one reports when jobs start, one runs sleeping jobs.

Run as `python -m benchmarks.workers ROLE URL …`; each role documents its messages.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic, process_time
from typing import Any

from benchmarks.processes import next_order, peak_megabytes, say
from longshore.backends.connect import connect
from longshore.runtime.queue import Queue
from longshore.runtime.signals import tune_garbage_collector
from longshore.runtime.worker import Worker


async def drain(url: str, count: str, at_once: str) -> None:
    """Report readiness, wait for the start signal, report the start of the last job, and run until told to stop."""
    begun, last = 0, int(count)

    async def nothing(_: object) -> None:
        nonlocal begun
        begun += 1
        if begun == last:
            say(begun=begun)

    async with _open_queue(url) as queue:
        # a worker claims half of its concurrency, so that the other half runs meanwhile
        worker = Worker(queue, nothing, concurrency=2 * int(at_once), autorun=False)
        tune_garbage_collector()  # as `longshore worker` does
        say(ready=True)
        await asyncio.to_thread(next_order)
        before = process_time()
        running = asyncio.ensure_future(worker.run())
        spent = await asyncio.to_thread(_spent_until_told, before)
        say(cpu_seconds=spent, begun=begun)
        await worker.close()
        await running


async def starts(url: str, at_once: str) -> None:
    """Report the start time of each job; answer every line with the CPU time so far."""

    async def tell_when(job: Any) -> None:
        say(job=job.id, began=monotonic())

    async with _open_queue(url) as queue:
        worker = Worker(queue, tell_when, concurrency=int(at_once), autorun=False)
        running = asyncio.ensure_future(worker.run())
        say(ready=True)
        while await asyncio.to_thread(next_order):
            say(cpu_seconds=process_time())
        await worker.close()
        await running


async def sleep(url: str, count: str, seconds: str, lock_duration: str) -> None:
    """Report when all jobs have started and when all have ended, with the peak memory."""
    begun, last, over = 0, int(count), asyncio.Event()
    ended = 0

    async def sleep_on(_: object) -> None:
        nonlocal begun, ended
        begun += 1
        if begun == last:
            say(begun=begun)
        await asyncio.sleep(float(seconds))
        ended += 1
        if ended == last:
            over.set()

    async with _open_queue(url) as queue:
        lease = float(lock_duration)
        worker = Worker(
            queue, sleep_on, concurrency=last, lock_duration=lease, lock_renew_time=lease / 2, autorun=False
        )
        running = asyncio.ensure_future(worker.run())
        await over.wait()
        await worker.close()
        await running
    say(begun=begun, peak_megabytes=peak_megabytes(), cpu_seconds=process_time())


@asynccontextmanager
async def _open_queue(url: str) -> AsyncIterator[Queue]:
    queue = Queue(connect(url))
    try:
        await queue.backend.count_jobs()  # connected from here on
        yield queue
    finally:
        await queue.close()


def _spent_until_told(before: float) -> float:
    next_order()
    return process_time() - before


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"drain": drain, "starts": starts, "sleep": sleep}

if __name__ == "__main__":
    _, role, *arguments = sys.argv
    asyncio.run(ROLES[role](*arguments))
