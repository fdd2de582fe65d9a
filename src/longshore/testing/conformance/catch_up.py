"""Schedules across time: schedulers that were down, several at once, and clocks that jump."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.scenarios import all_jobs, new_job, seconds
from longshore.testing.conformance.schedules import NOON, schedule

THREE_DAYS = timedelta(days=3)
HOURLY: list[dict[str, Any]] = [{"every": 3600}, {"cron": "0 * * * *"}]


async def fire_all(backend: Backend) -> list[int]:
    """How many jobs each pass made, until one makes none."""
    passes = []
    while made := await backend.fire_due_schedules():
        passes.append(len(made))
    return passes


async def occurrences(backend: Backend, schedule_id: str) -> Counter[datetime]:
    """How many jobs there are for each planned time."""
    ids = [job.id.rpartition("@") for job in await all_jobs(backend)]
    return Counter(datetime.fromisoformat(time) for name, _, time in ids if name == schedule_id)


class TestMissedRuns:
    """`fire_due_schedules` by a scheduler that was away, and by several."""

    async def test_missed_runs_collapse_into_the_last(self, backend: Backend, clock: HeldClock) -> None:
        #
        await backend.put_schedule(schedule(every=60))
        clock.advance(timedelta(days=3, seconds=30))
        assert len(await backend.fire_due_schedules()) == 1
        [kept] = await backend.get_schedules()
        assert kept.last_run_at == NOON + timedelta(days=3)
        assert kept.next_run_at == NOON + timedelta(days=3, seconds=60)

    async def test_missed_runs_are_all_made_up_if_asked_with_a_cap_on_each_pass(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.put_schedule(schedule(every=60, catch_up="all"))
        clock.advance(60 * 250)
        passes = await fire_all(backend)
        assert sum(passes) == 250
        assert max(passes) <= 20
        assert len({job.id for job in await all_jobs(backend)}) == 250

    async def test_a_pass_is_bounded_by_the_jobs_it_makes_and_a_punctual_schedule_comes_before_all_that_slept(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-SCHED-08 X-93
        for number in range(40):
            await backend.put_schedule(schedule(f"slept-{number:02}", every=60, catch_up="all"))
        await backend.put_schedule(schedule("punctual", every=86400))
        clock.advance(86400)
        first = await backend.fire_due_schedules()
        assert first[0].schedule_id == "punctual"
        assert 100 < len(first) <= 500
        again = await backend.fire_due_schedules()
        assert len(again) <= 500
        assert {job.id for job in first}.isdisjoint(job.id for job in again)

    async def test_a_pass_is_bounded_by_the_bytes_it_stores_and_a_huge_job_is_made_alone(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        #
        for name, megabytes in (("a", 3), ("b", 6), ("c", 1)):
            pattern = new_job(payload=b'"' + b"x" * (megabytes << 20) + b'"')
            await backend.put_schedule(schedule(name, pattern, every=60, catch_up="all", limit=3))
        clock.advance(600)
        passes = []
        while made := await backend.fire_due_schedules():
            passes.append("".join(str(job.schedule_id) for job in made))
            assert sum(len(job.payload) for job in made) <= 4 << 20 or len(made) == 1
        assert sorted("".join(passes)) == list("aaabbbccc")

    async def test_missed_runs_are_dropped_if_asked(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(schedule(cron="0 * * * *", catch_up="none"))
        clock.advance(timedelta(hours=3, minutes=30))
        assert await backend.fire_due_schedules() == []
        clock.advance(timedelta(minutes=30, seconds=20))  # a tick is never exact
        assert len(await backend.fire_due_schedules()) == 1

    @pytest.mark.parametrize("hourly", HOURLY, ids=["every", "cron"])
    @pytest.mark.parametrize(("catch_up", "made"), [("none", 0), ("last", 1), ("all", 72)])
    async def test_a_scheduler_asleep_for_three_days_makes_up_for_as_much_as_it_is_told(
        self, backend: Backend, clock: HeldClock, hourly: dict[str, Any], catch_up: str, made: int
    ) -> None:
        # M-SCHED-08 X-93
        await backend.put_schedule(schedule(**hourly, catch_up=catch_up))
        clock.advance(THREE_DAYS + timedelta(minutes=5))
        assert sum(await fire_all(backend)) == made
        found = await occurrences(backend, "nightly")
        assert found == Counter(NOON + THREE_DAYS - timedelta(hours=number) for number in range(made))
        [kept] = await backend.get_schedules()
        assert (kept.run_count, kept.next_run_at) == (made, NOON + THREE_DAYS + timedelta(hours=1))
        clock.set(NOON + THREE_DAYS + timedelta(hours=1))
        assert len(await backend.fire_due_schedules()) == 1, "and it goes on"

    async def test_a_limit_and_an_end_bound_what_is_made_up_for(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-09 M-OPT-12 M-OPT-13 X-93
        await backend.put_schedule(schedule("limited", every=3600, limit=5, catch_up="all"))
        await backend.put_schedule(schedule("bounded", every=3600, end=NOON + timedelta(hours=7), catch_up="all"))
        clock.advance(THREE_DAYS)
        assert sum(await fire_all(backend)) == 12
        assert [kept.next_run_at for kept in await backend.get_schedules()] == [None, None]

    # -- a clock that is set back

    async def test_a_clock_set_back_repeats_no_run_and_the_plan_goes_on(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-SCHED-10 X-93
        await backend.put_schedule(schedule(every=60))
        clock.advance(180)
        assert len(await backend.fire_due_schedules()) == 1
        clock.set(NOON - timedelta(hours=2))
        assert await backend.fire_due_schedules() == []
        clock.set(NOON + seconds(240))
        assert len(await backend.fire_due_schedules()) == 1
        assert await occurrences(backend, "nightly") == {NOON + seconds(180): 1, NOON + seconds(240): 1}

    async def test_times_planned_again_after_a_clock_was_set_back_make_no_second_job(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        """Whoever resumes a schedule has it planned anew, from a time that has been once before."""
        # M-SCHED-10 X-93
        await backend.put_schedule(schedule(every=60, catch_up="all", limit=8))
        clock.advance(300)
        assert await fire_all(backend) == [5]
        clock.set(NOON)
        await backend.pause_schedule("nightly")
        resumed = await backend.resume_schedule("nightly")
        assert resumed.next_run_at == NOON + seconds(60)
        clock.set(NOON + seconds(420))
        await fire_all(backend)
        clock.advance(3600)
        await fire_all(backend)
        kept = await backend.get_schedule("nightly")
        assert (kept.run_count, kept.next_run_at) == (8, None)
        assert await occurrences(backend, "nightly") == {NOON + seconds(60 * number): 1 for number in range(1, 9)}

    # -- several at once

    @pytest.mark.parametrize("times", HOURLY)
    @pytest.mark.parametrize("end", [None, NOON + timedelta(days=30)], ids=["for ever", "with an end"])
    async def test_a_clock_that_was_a_year_ahead_and_comes_back_silences_no_schedule(
        self, backend: Backend, clock: HeldClock, times: dict[str, Any], end: datetime | None
    ) -> None:
        #
        await backend.put_schedule(schedule(**times, end=end))
        for _ in range(3):
            clock.advance(3600)
            await backend.fire_due_schedules()
        clock.advance(timedelta(days=365))
        for _ in range(4):
            await backend.fire_due_schedules()
            clock.advance(3600)
        clock.set(NOON + timedelta(hours=5, minutes=30))
        made = []
        for _ in range(4):
            made += await backend.fire_due_schedules()
            clock.advance(3600)
        assert [job.id.rpartition("@")[2] for job in made] == [f"2026-01-01T{hour}:00:00Z" for hour in (18, 19, 20)]
        assert set((await occurrences(backend, "nightly")).values()) == {1}

    async def test_runs_that_a_clock_ahead_of_its_time_has_made_do_not_come_again_though_their_jobs_are_gone(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        #
        made: Counter[str] = Counter()

        async def goes_on(hours: int) -> None:
            for _ in range(hours):
                clock.advance(3600)
                jobs = await backend.fire_due_schedules()
                made.update(job.id for job in jobs)
                await backend.cancel_jobs(job_ids=[job.id for job in jobs] or ["nobody"])
                await backend.delete_jobs(job_ids=[job.id for job in jobs] or ["nobody"])
                await backend.apply_retention()

        await backend.put_schedule(schedule(every=3600))
        await goes_on(100)
        clock.set(NOON + timedelta(hours=10))
        await goes_on(95)
        assert len(made) == 105
        assert set(made.values()) == {1}

    async def test_a_program_that_puts_its_schedule_again_finds_the_way_back_from_a_clock_ahead_of_its_time(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.put_schedule(schedule(every=3600))
        clock.advance(timedelta(days=365))
        await backend.fire_due_schedules()
        clock.set(NOON + timedelta(minutes=30))
        kept = await backend.put_schedule(schedule(every=3600), keep_pause=True)
        assert kept.next_run_at == NOON + timedelta(hours=1)

    async def test_many_firing_at_once_on_two_backends_with_a_clock_that_jumps_make_one_job_for_each_planned_time(
        self, open_backend: OpenBackend, backend: Backend, clock: HeldClock
    ) -> None:
        # M-SCHED-10 M-SCHED-13 X-93
        if not backend.capabilities.shared:
            pytest.skip("a store of its own has one backend")
        backends = [backend, open_backend()]
        names = [f"s{number}" for number in range(5)]
        for name in names:
            await backend.put_schedule(schedule(name, every=60, catch_up="all"))
        chance = random.Random(5)
        furthest = NOON
        for _ in range(25):
            clock.set(clock.now() + seconds(chance.choice([-90, -30, 20, 60, 150])))
            furthest = max(furthest, clock.now())
            await asyncio.gather(*(one.fire_due_schedules() for one in backends * 4))
        clock.set(furthest)
        await fire_all(backend)
        planned = {NOON + seconds(60 * number): 1 for number in range(1, (furthest - NOON) // seconds(60) + 1)}
        assert planned
        for name in names:
            assert await occurrences(backend, name) == planned
            assert (await backend.get_schedule(name)).run_count == len(planned)

    async def test_many_who_put_the_same_new_schedule_at_once_make_one(
        self, open_backend: OpenBackend, backend: Backend, clock: HeldClock
    ) -> None:
        #
        backends = [backend, open_backend()] if backend.capabilities.shared else [backend]
        given = schedule(job=new_job(type="report"), every=60)
        stored = await asyncio.gather(*(one.put_schedule(given) for one in backends * 6))
        assert {one.id for one in stored} == {"nightly"}
        clock.advance(60)
        assert len(await backend.fire_due_schedules()) == 1
        assert (await backend.get_schedule("nightly")).run_count == 1
