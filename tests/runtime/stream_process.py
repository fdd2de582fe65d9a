"""A process with a stream: `python -m tests.runtime.stream_process ROLE URL NAME`; it prints lines of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from longshore import Queue, connect

SHORT_LEASE = 2.0


def tell(what: str, *values: Any) -> None:
    """Write one line, unbuffered."""
    os.write(1, (json.dumps([what, *values]) + "\n").encode())


async def work(url: str, name: str) -> None:
    """Complete jobs, but hold those of the type "hold"; report cancellations; end with the input."""
    async with Queue(connect(url)) as queue:
        stream = queue.stream_jobs(name, max_assigned_jobs=3, lease=SHORT_LEASE)
        stream.on_cancel(lambda job_id: tell("cancelled", job_id))
        consuming = asyncio.create_task(consume(queue, stream))
        await asyncio.to_thread(sys.stdin.read)
    await consuming
    tell("over")


async def consume(queue: Queue, stream: Any) -> None:
    async with stream:
        tell("ready")
        async for batch in stream:
            for job in batch:
                tell("got", job.id, job.epoch)
                if job.type != "hold":
                    await queue.complete_job(job.id)


async def leave_everything_open(url: str, name: str) -> None:
    """Exit like a careless program: with an open stream without a consumer, and an open queue."""
    queue = Queue(connect(url))
    stream = queue.stream_jobs(name)
    stream.start()
    tell("got", *[job.id for job in await anext(stream)])
    other = queue.stream_jobs(name, ["other"])
    other.start()


async def use_once(url: str, name: str) -> None:
    async with Queue(connect(url)) as queue, queue.stream_jobs(name) as stream:
        await queue.add("t", job_id=name, tags=[name])
        for job in await anext(stream):
            await queue.complete_job(job.id)
            tell("completed", name, job.id)


def fork(url: str, name: str) -> None:
    """Use a stream, fork, and use streams on both sides: the child has none of the parent's threads."""
    asyncio.run(use_once(url, f"{name} before"))
    child = os.fork()
    if child == 0:
        asyncio.run(use_once(url, f"{name} child"))
        sys.exit()
    _, status = os.waitpid(child, 0)
    tell("child ended", os.waitstatus_to_exitcode(status))
    asyncio.run(use_once(url, f"{name} after"))


def main() -> None:
    role, url, name = sys.argv[1:]
    if role == "work":
        asyncio.run(work(url, name))
    elif role == "careless":
        asyncio.run(leave_everything_open(url, name))
    elif role == "fork":
        fork(url, name)


if __name__ == "__main__":
    main()
