"""A task on a schedule: typed, with its arguments checked at once, and equal to the schedule of a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from longshore import Harbor, Repeat
from longshore.core.clock import HeldClock
from longshore.errors import InvalidArgument, QueueClosed

HOURLY = Repeat(cron="0 * * * *")


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
async def timed_harbor(store_url: str, clock: HeldClock) -> AsyncIterator[Harbor]:
    """A harbor on every store, with a held clock."""
    async with Harbor(store_url, clock=clock) as made:
        yield made


async def test_a_task_runs_at_the_times_of_its_schedule_with_its_arguments(
    timed_harbor: Harbor, clock: HeldClock
) -> None:
    # M-OPT-10 M-SCHED-07
    seen: list[tuple[str, datetime]] = []

    @timed_harbor.task(queue="night", attempts=3, tags=["a"])
    async def report(region: str, day: datetime) -> None:
        seen.append((region, day))

    day = datetime(2026, 1, 1, tzinfo=UTC)
    stored = await timed_harbor.schedule("nightly", report, HOURLY, "eu", day=day)
    assert (stored.id, stored.job.queue, stored.job.tags, stored.job.max_attempts) == ("nightly", "night", ("a",), 3)
    clock.advance(3600)
    await timed_harbor.scheduler().tick()
    assert await timed_harbor.run_until_empty() == 1
    assert seen == [("eu", day)]


async def test_it_is_the_schedule_that_a_queue_makes(timed_harbor: Harbor) -> None:
    @timed_harbor.task(queue="night", attempts=3, priority=2)
    def report(region: str) -> None: ...

    options: dict[str, Any] = {"attempts": 3, "priority": 2, "job_id": "nightly"}
    added = await timed_harbor.queue("night").add("report", {"region": "eu"}, repeat=HOURLY, **options)
    assert await timed_harbor.schedule("nightly", report, HOURLY, "eu") == added
    assert await timed_harbor.schedule("nightly", report.call(region="eu"), HOURLY) == added
    assert await timed_harbor.queue().get_schedules() == [added]


async def test_options_and_calls_say_how_its_jobs_are(harbor: Harbor) -> None:
    @harbor.task
    def report(region: str) -> None: ...

    stored = await harbor.schedule("a", report.options(queue="night", delay=5), HOURLY, region="eu")
    assert (stored.job.queue, stored.job.data) == ("night", {"region": "eu"})
    called = await harbor.schedule("b", report.options(priority=7).call("us"), HOURLY)
    assert (called.job.priority, called.job.data) == (7, {"region": "us"})


async def test_scheduling_again_changes_the_schedule_and_keeps_it_paused(
    timed_harbor: Harbor, clock: HeldClock
) -> None:
    @timed_harbor.task
    def report(region: str) -> None: ...

    await timed_harbor.schedule("s", report, Repeat(every=60), "eu")
    clock.advance(60)
    await timed_harbor.queue().fire_due_schedules()
    await timed_harbor.queue().pause_schedule("s")
    again = await timed_harbor.schedule("s", report, Repeat(every=60), "us")
    assert (again.job.data, again.paused, again.run_count) == ({"region": "us"}, True, 1)


async def test_arguments_are_refused_by_name_when_the_schedule_is_made(harbor: Harbor) -> None:
    @harbor.task
    def report(region: str, days: int = 1) -> None: ...

    for args, kwargs, field in (
        (("eu",), {"days": "many"}, "report.days"),
        ((), {}, "report.region"),
        (("eu",), {"dyas": 1}, "report.dyas"),
    ):
        with pytest.raises(InvalidArgument) as refusal:
            await harbor.schedule("s", report, HOURLY, *args, **kwargs)
        with pytest.raises(InvalidArgument) as enqueuing:
            await report.enqueue(*args, **kwargs)
        assert refusal.value.field == enqueuing.value.field == field
    assert await harbor.queue().get_schedules() == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"job_id": "a"}, "job_id"),
        ({"idempotency_key": "a"}, "idempotency_key"),
        ({"run_at": 5}, "run_at"),
        ({"depends_on": ["a"]}, "depends_on"),
        ({"hold": True}, "hold"),
        ({"connection": object()}, "connection"),
        ({"expires_at": datetime(2026, 1, 1, tzinfo=UTC)}, "expires_at"),
    ],
)
async def test_what_a_repeated_job_cannot_have_is_refused(harbor: Harbor, options: Any, field: str) -> None:
    @harbor.task
    def report() -> None: ...

    with pytest.raises(InvalidArgument) as refusal:
        await harbor.schedule("s", report.options(**options), HOURLY)
    assert refusal.value.field == field


async def test_other_tasks_repeats_and_ids_are_refused(harbor: Harbor) -> None:
    other = Harbor("memory://")

    @other.task(name="report")
    def foreign() -> None: ...

    @harbor.task
    def report(region: str = "") -> None: ...

    odd: Any = [
        (("s", foreign, HOURLY), "task"),
        (("s", foreign.call(), HOURLY), "task"),
        (("s", "report", HOURLY), "task"),
        (("s", lambda: None, HOURLY), "task"),
        (("s", report.call(), HOURLY, "eu"), "task"),
        (("s", report, "0 * * * *"), "repeat"),
        (("", report, HOURLY), "schedule_id"),
        (("x" * 201, report, HOURLY), "schedule_id"),
    ]
    for given, field in odd:
        with pytest.raises(InvalidArgument) as refusal:
            await harbor.schedule(*given)
        assert refusal.value.field == field, given
    await other.close()


def test_without_an_event_loop(store_url: str) -> None:
    with Harbor(store_url) as harbor:

        @harbor.task
        def report(region: str) -> None: ...

        stored = harbor.schedule_sync("nightly", report, HOURLY, region="eu")
        assert harbor.queue().sync.get_schedule("nightly") == stored
        assert harbor.schedule_sync("nightly", report.call("eu"), HOURLY).id == "nightly"
    with pytest.raises(QueueClosed):
        harbor.schedule_sync("nightly", report, HOURLY, region="eu")


async def test_in_eager_mode_it_is_checked_and_nothing_is_stored(harbor: Harbor) -> None:
    @harbor.task
    def report(region: str) -> None: ...

    with harbor.eager():
        given = await harbor.schedule("nightly", report, HOURLY, "eu")
        assert (given.id, given.job.data, given.next_run_at) == ("nightly", {"region": "eu"}, None)
        with pytest.raises(InvalidArgument):
            await harbor.schedule("nightly", report, HOURLY)  # type: ignore[call-overload]  # wrong on purpose
    assert await harbor.queue().get_schedules() == []


async def test_one_run_beside_the_plan(harbor: Harbor) -> None:
    # M-OPT-15
    ran: list[str] = []

    @harbor.task
    async def report(region: str) -> None:
        ran.append(region)

    await harbor.schedule("nightly", report, HOURLY, "eu")
    await harbor.queue().run_schedule("nightly")
    await harbor.run_until_empty()
    assert ran == ["eu"]
