"""A schedule of the queue that copies its history to a lake every night."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longshore import Harbor, Repeat

HERE = Path(__file__).resolve().parent
URL = f"sqlite:///{HERE / 'jobs.db'}"
LAKE = str(HERE / "lake")

harbor = Harbor(URL)


@harbor.task(queue="mails", attempts=2)
async def send(to: int) -> str:
    """The task whose history is kept."""
    if to % 7 == 0:
        raise ConnectionError(f"mail server {to} did not answer")
    return f"sent to {to}"


@harbor.task(queue="pipeline", executor="process", attempts=3, timeout=3600)
def pipe(lake: str) -> dict[str, int]:
    """Refresh the lake: retried if it fails, and resumed after a kill.

    It runs in a separate process, which is the Spark driver.
    """
    from longshore.spark import pipeline_session, run_pipeline

    spark = pipeline_session()
    try:
        report = run_pipeline(URL, lake, spark=spark)
    finally:
        spark.stop()
    return {"version": report.version, "events": report.events}


async def main() -> None:
    """Create the schedule, and run it without waiting for the night."""
    async with harbor:
        await harbor.schedule("history", pipe, Repeat(cron="15 2 * * *", tz="Europe/Berlin"), lake=LAKE)
        queue = harbor.queue("pipeline")
        planned = await queue.preview_schedule("history", 2)
        print(f"planned: {len(planned)} nights, at {', '.join({f'{time:%M}' for time in planned})} past the hour")
        for night in (1, 2):
            await send.enqueue_many([send.call(number) for number in range(night * 100, night * 100 + 50)])
            await harbor.run_until_empty()
            job = await queue.run_schedule("history")  # as the scheduler does at a quarter past two
            await harbor.run_until_empty()
            result = (await queue.get_job(job.id)).result
            print(f"night {night}: {result.decode() if result else 'failed'}")


if __name__ == "__main__":  # needed: the process that runs the pipeline imports this file too
    asyncio.run(main())
