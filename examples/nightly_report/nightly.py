"""A report at half past two every night in Berlin, including the night in which the clocks are set back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from longshore import Harbor, HeldClock, Repeat, current_job

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTLY = Repeat(cron="30 2 * * *", tz="Europe/Berlin")
HOURLY = Repeat(cron="0 * * * *", tz="Europe/Berlin")

# a clock that the program sets, so that three days pass at once; your program uses the store's clock
clock = HeldClock(datetime(2026, 10, 23, 20, 0, tzinfo=UTC))
harbor = Harbor("memory://", clock=clock)


@harbor.task(queue="reports", attempts=3)
async def report(region: str) -> str:
    """Print one report."""
    local = clock.now().astimezone(BERLIN)
    job = current_job()
    how = "by hand" if "@" not in job.id else "by plan"
    print(f"  {local:%a %d %b %H:%M %Z}  report for {region} ({how})")
    return region


@harbor.task(queue="reports")
async def count(numbers: list[int]) -> int:
    """A small task that runs every hour."""
    return sum(numbers)


async def pass_time(until: datetime) -> None:
    """Do what `harbor.run_scheduler()` and `harbor.run_worker()` do, ten minutes at a time."""
    scheduler = harbor.scheduler()
    while clock.now() < until:
        clock.advance(timedelta(minutes=10))
        await scheduler.tick()
        await harbor.run_until_empty()


async def main() -> None:
    """Create the schedules, preview them, and let three days pass."""
    async with harbor:
        await harbor.schedule("nightly", report, NIGHTLY, region="eu")
        await harbor.schedule("hourly", count, HOURLY, [1, 2, 3])
        reports = harbor.queue("reports")

        print("planned:")
        for time in await reports.preview_schedule("nightly", 3):
            print(f"  {time.astimezone(BERLIN):%a %d %b %H:%M %Z}")

        print("runs (on Sunday the clocks went back from 3 to 2):")
        await pass_time(datetime(2026, 10, 25, 23, 0, tzinfo=UTC))

        await reports.pause_schedule("nightly")
        print("paused on Monday; no run at night, then one by hand:")
        await pass_time(datetime(2026, 10, 26, 8, 0, tzinfo=UTC))
        await reports.run_schedule("nightly")
        await harbor.run_until_empty()
        resumed = await reports.resume_schedule("nightly")
        assert resumed.next_run_at is not None
        print(f"resumed; the next run is on {resumed.next_run_at.astimezone(BERLIN):%a %d %b %H:%M}")

        for schedule in await reports.get_schedules():
            print(f"{schedule.id}: {schedule.run_count} runs by plan")


if __name__ == "__main__":
    asyncio.run(main())
