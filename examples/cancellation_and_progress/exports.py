"""Long jobs: progress, cancellation, and checkpoints to resume from."""

from __future__ import annotations

import asyncio
import time

from longshore import Harbor, JobEvent, current_job
from longshore.errors import JobCancelled

harbor = Harbor("memory://")


@harbor.task
async def export(pages: int) -> str:
    """Report progress; a cancellation raises CancelledError at the next await of an `async def`."""
    job = current_job()
    for page in range(1, pages + 1):
        await asyncio.sleep(0.01)
        await job.update_progress({"page": page, "of": pages})
    return f"{pages} pages"


@harbor.task
def crunch() -> str:
    """Run in a thread, as a `def` does, and check for cancellation."""
    job = current_job()
    job.log("crunching")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        job.raise_if_cancelled()
        sum(range(10_000))
    return "finished"


@harbor.task(attempts=2)
async def copy(pages: int) -> str:
    """Resume from the checkpoint of the last execution."""
    job = current_job()
    begin = (job.checkpoint or 0) + 1
    for page in range(begin, pages + 1):
        if page == 3 and job.executions == 1:
            raise ConnectionError("lost the connection at page 3")
        await job.save_checkpoint(page)
    return f"copied from page {begin}"


async def main() -> None:
    """Watch one job, cancel two, and let one resume."""
    async with harbor:
        queue = harbor.queue()
        half_way, crunching = asyncio.Event(), asyncio.Event()

        async def watch(event: JobEvent) -> None:
            job = await queue.get_job(str(event.job_id))
            if not half_way.is_set():
                print(f"progress: page {job.progress['page']} of {job.progress['of']}")
            if job.progress["page"] >= 3:
                half_way.set()

        queue.on("job.progress", watch)
        queue.on("job.log_added", lambda _: crunching.set())
        worker = harbor.worker()

        print(f"export: {await (await export.enqueue(pages=2)).result(timeout=10)}")

        handle = await export.enqueue(pages=1_000)
        await half_way.wait()
        await handle.cancel()
        try:
            await handle.result(timeout=10)
        except JobCancelled as cancelled:
            print(f"export: {cancelled.status}")

        thread = await crunch.enqueue()
        await crunching.wait()
        await thread.cancel()
        try:
            print(f"crunch: {await thread.result(timeout=10)}")
        except JobCancelled as cancelled:
            print(f"crunch: {cancelled.status}")

        print(f"copy: {await (await copy.enqueue(pages=5)).result(timeout=10)}")
        await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
