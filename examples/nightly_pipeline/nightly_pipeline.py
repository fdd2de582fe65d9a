"""The history of a queue, brought to a lake every night by a schedule of the queue itself."""

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
    """The work whose history is kept."""
    if to % 7 == 0:
        raise ConnectionError(f"mail server {to} did not answer")
    return f"sent to {to}"


@harbor.task(queue="pipeline", executor="process", attempts=3, timeout=3600)
def pipe(lake: str) -> dict[str, int]:
    """A job like any other: tried again if it fails, and a run that was killed goes on where it was.

    In a process of its own, which is the Spark driver's while it lasts.
    """
    from longshore.spark import pipeline_session, run_pipeline

    spark = pipeline_session()
    try:
        report = run_pipeline(URL, lake, spark=spark)
    finally:
        spark.stop()
    return {"version": report.version, "events": report.events}


async def main() -> None:
    """Puts the schedule, and does not wait for the night."""
    async with harbor:
        await harbor.schedule("history", pipe, Repeat(cron="15 2 * * *", tz="Europe/Berlin"), lake=LAKE)
        queue = harbor.queue("pipeline")
        planned = await queue.preview_schedule("history", 2)
        print(f"planned: {len(planned)} nights, at {', '.join({f'{time:%M}' for time in planned})} past the hour")
        for night in (1, 2):
            await send.enqueue_many([send.call(number) for number in range(night * 100, night * 100 + 50)])
            await harbor.run_until_empty()
            job = await queue.run_schedule("history")  # what the scheduler does at a quarter past two
            await harbor.run_until_empty()
            result = (await queue.get_job(job.id)).result
            print(f"night {night}: {result.decode() if result else 'failed'}")


if __name__ == "__main__":  # needed: the process that runs the pipeline imports this file, too
    asyncio.run(main())
