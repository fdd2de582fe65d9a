"""Long jobs: how far they are, how they are called off, and how they go on where they were."""

from __future__ import annotations

import asyncio
import time

from longshore import Harbor, JobEvent, current_job
from longshore.errors import JobCancelled

harbor = Harbor("memory://")


@harbor.task
async def export(pages: int) -> str:
    """Tells its progress; a cancellation reaches an `async def` as CancelledError at its next await."""
    job = current_job()
    for page in range(1, pages + 1):
        await asyncio.sleep(0.01)
        await job.update_progress({"page": page, "of": pages})
    return f"{pages} pages"


@harbor.task
def crunch() -> str:
    """A `def` runs in a thread and checks for cancellation itself."""
    job = current_job()
    job.log("crunching")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        job.raise_if_cancelled()
        sum(range(10_000))
    return "finished"


@harbor.task(attempts=2)
async def copy(pages: int) -> str:
    """Begins again where its last execution was."""
    job = current_job()
    begin = (job.checkpoint or 0) + 1
    for page in range(begin, pages + 1):
        if page == 3 and job.executions == 1:
            raise ConnectionError("lost the line at page 3")
        await job.save_checkpoint(page)
    return f"copied from page {begin} on"


async def main() -> None:
    """Watches one job, calls off two, and lets one go on."""
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
