"""Schedules through a queue: added, listed, paused, run by hand and removed, each by its own queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore import JobFilter, JobStatus, Queue, Repeat, connect
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import JobNotFound, ScheduleNotFound
from longshore.core.job import JobEvent
from longshore.core.schedule import Schedule
from longshore.testing.conformance.scenarios import all_jobs, new_job, nothing_changes, refused, seconds
from tests.runtime.working import until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NIGHTLY = Repeat(cron="30 2 * * *", tz="Europe/Berlin")

ON_ONE: dict[str, Callable[[Queue, str], Awaitable[object]]] = {
    "get_schedule": lambda queue, name: queue.get_schedule(name),
    "preview_schedule": lambda queue, name: queue.preview_schedule(name),
    "pause_schedule": lambda queue, name: queue.pause_schedule(name),
    "resume_schedule": lambda queue, name: queue.resume_schedule(name),
    "run_schedule": lambda queue, name: queue.run_schedule(name),
}


async def test_a_repeated_job_is_made_at_its_planned_times_with_all_that_was_said_of_it(
    queue: Queue, clock: HeldClock
) -> None:
    # M-OPT-10 M-OPT-14 M-SCHED-07 M-SCHED-08 M-JOB-18 X-93
    schedule = await queue.add("report", {"of": "sales"}, repeat=NIGHTLY, job_id="nightly", attempts=4, priority=2)
    assert (schedule.id, schedule.next_run_at) == ("nightly", datetime(2026, 1, 2, 1, 30, tzinfo=UTC))
    clock.set(schedule.next_run_at or NOON)
    [job] = await queue.fire_due_schedules()
    assert (job.type, job.data, job.schedule_id) == ("report", {"of": "sales"}, "nightly")
    assert (job.max_attempts, job.priority, job.max_crashes) == (4, 2, 3)
    after = await queue.get_schedule("nightly")
    assert (after.last_job_id, after.run_count) == (job.id, 1)
    assert after.next_run_at == datetime(2026, 1, 3, 1, 30, tzinfo=UTC)


async def test_a_repetition_has_a_beginning_an_end_and_a_limit(queue: Queue, clock: HeldClock) -> None:
    # M-OPT-11 M-OPT-12 M-OPT-13 M-SCHED-09
    begin = NOON + timedelta(minutes=5)
    await queue.add("a", repeat=Repeat(every=60, start=begin, end=begin + seconds(150)), job_id="bounded")
    await queue.add("b", repeat=Repeat(every=60, limit=2), job_id="limited")
    times: dict[str | None, list[timedelta]] = {"bounded": [], "limited": []}
    for _ in range(20):
        clock.advance(60)
        for job in await queue.fire_due_schedules():
            times[job.schedule_id].append(clock.now() - NOON)
    assert times["bounded"] == [timedelta(minutes=number) for number in (5, 6, 7)]
    assert times["limited"] == [timedelta(minutes=number) for number in (1, 2)]
    assert [schedule.next_run_at for schedule in await queue.get_schedules()] == [None, None]


async def test_a_schedule_is_run_at_once_when_it_is_registered_by_running_it(queue: Queue, clock: HeldClock) -> None:
    # M-OPT-15
    schedule = await queue.add("report", repeat=Repeat(every=3600), job_id="hourly")
    job = await queue.run_schedule(schedule.id)
    assert (job.status, job.schedule_id) == (JobStatus.INITIAL_PENDING, "hourly")
    assert (await queue.get_schedule("hourly")) == schedule
    anchored = await queue.add("report", 1, repeat=Repeat(every=3600, start=clock.now()))
    assert anchored.next_run_at == clock.now(), "an interval that starts now runs now"


async def test_an_immediate_schedule_without_an_id_is_not_stored_twice(queue: Queue, clock: HeldClock) -> None:
    # M8 M-OPT-15
    plain = await queue.add("report", repeat=Repeat(every=60))
    assert plain.id == "repeat-9ab79a27d61f5ba935d3fea64ce9af52"
    assert (await queue.add("report", repeat=Repeat(every=60, immediate=True))).next_run_at == plain.next_run_at
    assert (await queue.add("other", repeat=Repeat(every=60, immediate=True))).next_run_at == clock.now()


async def test_the_same_moment_in_another_zone_is_the_same_schedule(queue: Queue) -> None:
    #
    berlin = NOON.astimezone(NIGHTLY.zone)
    one = await queue.add("report", repeat=Repeat(every=60, start=NOON))
    two = await queue.add("report", repeat=Repeat(every=60, start=berlin))
    assert one.id == two.id


async def test_a_schedule_that_is_added_again_stays_paused(queue: Queue, clock: HeldClock) -> None:
    await queue.add("report", repeat=Repeat(every=60), job_id="s")
    await queue.pause_schedule("s")
    again = await queue.add("report", 2, repeat=Repeat(every=60), job_id="s")
    assert (again.paused, again.job.data) == (True, 2)
    clock.advance(600)
    assert await queue.fire_due_schedules() == []
    assert (await queue.resume_schedule("s")).next_run_at == clock.now() + seconds(60)


async def test_repeated_work_in_a_batch_is_refused(queue: Queue, backend: Backend) -> None:
    spec: Any = {"type": "a", "repeat": Repeat(every=60)}
    await refused(backend, queue.add_bulk([spec]), field="specs[0].repeat")


# -- preview


async def test_a_preview_lists_the_planned_times(queue: Queue, clock: HeldClock) -> None:
    await queue.add("report", repeat=Repeat(every=60, limit=3), job_id="s")
    coming = [clock.now() + seconds(60 * number) for number in (1, 2, 3)]
    assert await queue.preview_schedule("s", 2) == coming[:2]
    assert await queue.preview_schedule("s") == coming
    clock.advance(60)
    await queue.fire_due_schedules()
    assert await queue.preview_schedule("s") == coming[1:]


async def test_a_preview_of_times_that_are_not_stored_crosses_a_change_of_the_clocks(
    queue: Queue, clock: HeldClock
) -> None:
    # M-OPT-14
    clock.set(datetime(2026, 3, 28, 12, tzinfo=UTC))
    days = await queue.preview_schedule(NIGHTLY, 2)
    assert days == [datetime(2026, 3, 29, 1, 0, tzinfo=UTC), datetime(2026, 3, 30, 0, 30, tzinfo=UTC)]
    assert len(await queue.preview_schedule(Repeat(every=60, limit=2))) == 2


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", None, 1_001])
async def test_a_preview_of_an_odd_number_is_refused(queue: Queue, backend: Backend, count: Any) -> None:
    await refused(backend, queue.preview_schedule(Repeat(every=60), count), field="count")


# -- named queues


@pytest.mark.parametrize("verb", ON_ONE)
async def test_a_named_queue_leaves_the_schedules_of_others_alone(
    queue: Queue, mail: Queue, backend: Backend, verb: str
) -> None:
    # M-JOB-18
    await queue.put_schedule(Schedule(id="theirs", job=new_job(queue="billing"), repeat=Repeat(every=60)))
    await mail.add("report", repeat=Repeat(every=60), job_id="ours")
    await refused(backend, ON_ONE[verb](mail, "theirs"), field="schedule_id")
    for name in ("ours", "theirs"):
        await ON_ONE[verb](queue, name)
    await ON_ONE[verb](mail, "ours")


@pytest.mark.parametrize("verb", ON_ONE)
async def test_an_unknown_schedule_is_named_in_the_error(
    queue: Queue, mail: Queue, backend: Backend, verb: str
) -> None:
    for one in (queue, mail):
        await refused(backend, ON_ONE[verb](one, "nobody's"), ScheduleNotFound)


async def test_removing_an_unknown_job_is_not_an_error(mail: Queue, backend: Backend) -> None:
    async with nothing_changes(backend):
        assert not await mail.remove_schedule("nobody's")


async def test_listeners_get_the_pause_of_a_schedule(mail: Queue) -> None:
    heard: list[JobEvent] = []
    mail.on("schedule.paused", heard.append)
    await mail.add("report", repeat=Repeat(every=60), job_id="s")
    await mail.pause_schedule("s")
    await until(lambda: len(heard) == 1)
    assert (heard[0].queue, heard[0].detail) == ("mail", {"schedule_id": "s"})


# -- without an event loop


def test_every_verb_has_a_blocking_form(store_url: str) -> None:
    with Queue(connect(store_url)).sync as queue:
        stored = queue.add("report", {"of": "sales"}, repeat=Repeat(every=3600), job_id="s")
        assert [schedule.id for schedule in queue.get_schedules()] == ["s"]
        assert queue.get_schedule("s") == stored
        assert len(queue.preview_schedule("s", 3)) == 3
        assert queue.pause_schedule("s").paused
        assert not queue.resume_schedule("s").paused
        assert queue.run_schedule("s").schedule_id == "s"
        assert queue.remove_schedule("s")
        with pytest.raises(ScheduleNotFound):
            queue.get_schedule("s")


async def test_two_schedulers_on_the_same_store_create_one_job(
    queue: Queue, backend: Backend, other_backend: Backend, clock: HeldClock
) -> None:
    # M-SCHED-10
    await queue.add("report", repeat=Repeat(every=60), job_id="s")
    clock.advance(60)
    made = [*await backend.fire_due_schedules(), *await other_backend.fire_due_schedules()]
    assert [job.id for job in made] == ["s@2026-01-01T12:01:00Z"]
    assert len(await all_jobs(backend)) == 1


async def test_a_run_knows_the_planned_time_it_was_made_for(queue: Queue, clock: HeldClock) -> None:
    await queue.add("a", repeat=Repeat(every=60, catch_up="all"), job_id="every@minute")
    await queue.add("stranger", job_id="every@minute@2026-01-01T12:02:00Z")
    clock.advance(130)
    made = await queue.fire_due_schedules()
    assert [job.planned_at for job in made] == [NOON + seconds(60), NOON + seconds(120)]
    assert made[1].id.endswith("~1"), "another job has the id"
    assert (await queue.run_schedule("every@minute")).planned_at is None
    assert (await queue.add("a", job_id="b@2026-01-01T12:02:00Z")).planned_at is None


async def test_explain_says_when_a_schedule_or_future_occurrence_fires(queue: Queue, clock: HeldClock) -> None:
    await queue.add("a", repeat=Repeat(every=3600), job_id="hourly")
    with pytest.raises(
        JobNotFound, match=r"'hourly' is a schedule, not a job\. It fires next at 2026-01-01 13:00:00 UTC"
    ):
        await queue.explain("hourly")
    with pytest.raises(
        JobNotFound, match=r"no job has the id 'hourly@x': the schedule 'hourly' has not created it.*13:00"
    ):
        await queue.explain("hourly@x")
    clock.advance(3700)
    with pytest.raises(
        JobNotFound, match="It was due at 2026-01-01 13:00:00 UTC and has not fired: no scheduler is running"
    ):
        await queue.explain("hourly@2026-01-01T13:00:00Z")
    await queue.pause_schedule("hourly")
    with pytest.raises(JobNotFound, match="It is paused; resume it with resume_schedule"):
        await queue.explain("hourly")
    with pytest.raises(JobNotFound, match="no job has the id 'unknown'; it was never enqueued here"):
        await queue.explain("unknown")


async def test_the_backlog_of_a_schedule_is_cancelled_and_removed_by_a_filter(queue: Queue, clock: HeldClock) -> None:
    await queue.add("a", repeat=Repeat(every=60, catch_up="all"), job_id="minutely")
    kept = await queue.add("a")
    clock.advance(60 * 250)
    while await queue.fire_due_schedules():
        continue
    cancelled, unknown = await queue.cancel_jobs(where=JobFilter(schedule_id="minutely"))
    assert (len(cancelled), unknown) == (250, [])
    assert (await queue.count_jobs())[JobStatus.UNSCHEDULED] == 250
    await queue.delete_jobs(where=JobFilter(schedule_id="minutely", statuses=[JobStatus.UNSCHEDULED]))
    assert [job.id for job in (await queue.list_jobs(JobFilter())).items] == [kept.id]
    await queue.delete_jobs(where=JobFilter(types=["a"]))
    assert (await queue.get_job(kept.id)).status is JobStatus.INITIAL_PENDING, "it is not over"


async def test_a_filter_that_means_everything_or_stands_beside_other_targets_is_refused(queue: Queue) -> None:
    await queue.add("a", job_id="a")
    for act in (queue.cancel_jobs, queue.delete_jobs):
        await refused(queue.backend, act(where=JobFilter()), field="where")
        await refused(queue.backend, act(["tag"], where=JobFilter(ids=["a"])), field="where")
        caught = await refused(queue.backend, act(JobFilter(ids=["a"])), field="tags")  # type: ignore[arg-type]  # wrong on purpose
        assert "where=JobFilter(…)" in str(caught)
