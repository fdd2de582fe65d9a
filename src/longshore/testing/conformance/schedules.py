"""Schedules: stored, changed, paused, run by hand; one job for each occurrence; catch-up and clock changes."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.fixtures import BreakableClock, OpenBackend
from longshore.testing.conformance.scenarios import S

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
SPRING = datetime(2026, 3, 29, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)
"""Midnights in UTC before the clock changes of Berlin, which happen at one o'clock UTC."""


async def runs(backend: Backend, clock: HeldClock, until: datetime, step: timedelta) -> list[datetime]:
    """Return the planned times fired by a scheduler that ticks at this interval until then."""
    found = []
    while clock.now() < until:
        clock.advance(step)
        if await backend.fire_due_schedules():
            [kept] = await backend.get_schedules()
            found.append(kit.moment(kept.last_run_at))
    return found


class TestSchedules:
    """`put_schedule`, `get_schedules`, `remove_schedule`, `fire_due_schedules`."""

    # -- stored

    async def test_a_schedule_is_stored_with_its_first_time(self, backend: Backend, clock: HeldClock) -> None:
        given = kit.schedule(
            "hourly", kit.new_job(type="report", tags=["eu"], payload=b"1"), cron="0 * * * *", tz="Europe/Oslo"
        )  # M-OPT-10 M-OPT-14
        stored = await backend.put_schedule(given)
        assert (stored.id, stored.repeat, stored.paused) == ("hourly", given.repeat, False)
        assert (stored.job.type, stored.job.tags, stored.job.payload) == ("report", ("eu",), b"1")
        assert stored.next_run_at == NOON + timedelta(hours=1)
        assert (stored.run_count, stored.last_run_at, stored.last_job_id) == (0, None, None)
        assert stored.created_at == stored.updated_at == clock.now()
        assert await backend.get_schedules() == [stored]

    async def test_schedules_are_listed_by_id_and_removed_by_id(self, backend: Backend) -> None:
        for name in ("c", "a", "b"):
            await backend.put_schedule(kit.schedule(name))
        assert [kept.id for kept in await backend.get_schedules()] == ["a", "b", "c"]
        assert await backend.remove_schedule("b") is True
        assert await backend.remove_schedule("b") is False
        assert [kept.id for kept in await backend.get_schedules()] == ["a", "c"]

    async def test_put_schedule_again_keeps_the_run_count(self, backend: Backend, clock: HeldClock) -> None:
        #
        first = await backend.put_schedule(kit.schedule(every=60))
        clock.advance(60)
        [job] = await backend.fire_due_schedules()
        clock.advance(10)
        changed = await backend.put_schedule(kit.schedule(job=kit.new_job(type="other"), every=600))
        assert (changed.run_count, changed.last_run_at, changed.last_job_id) == (1, NOON + kit.seconds(60), job.id)
        assert (changed.created_at, changed.updated_at) == (first.created_at, clock.now())
        assert changed.job.type == "other"
        assert await backend.get_schedules() == [changed]

    async def test_a_schedule_is_stored_as_given(self, open_backend: OpenBackend, backend: Backend) -> None:
        # M-OPT-10 M-OPT-12 M-OPT-13 M-OPT-14
        job = kit.new_job(queue="night", delay=5, expires_at=60, timeout=7, max_crashes=2, parent_id="p", lifo=True)
        times: dict[str, Any] = {
            "start": NOON + timedelta(days=1),
            "end": NOON + timedelta(days=9),
            "limit": 4,
            "tz": "Asia/Kolkata",
        }
        policies: dict[str, Any] = {"on_gap": "skip", "on_overlap": "both", "catch_up": "all"}
        stored = await backend.put_schedule(kit.schedule("s", job, cron="30 9 * * 1-5", **times, **policies))
        reader = open_backend() if backend.capabilities.shared else backend
        assert await reader.get_schedule("s") == stored
        assert stored.repeat == Repeat(cron="30 9 * * 1-5", **times, **policies)
        assert (stored.job.delay, stored.job.expires_at, stored.job.timeout) == (
            kit.seconds(5),
            kit.seconds(60),
            kit.seconds(7),
        )

    async def test_putting_the_same_pattern_again_moves_no_run(self, backend: Backend, clock: HeldClock) -> None:
        stored = await backend.put_schedule(kit.schedule(every=60))
        clock.advance(59)
        again = await backend.put_schedule(kit.schedule(every=60))
        assert again.next_run_at == stored.next_run_at

    async def test_immediate_fires_once(self, open_backend: OpenBackend, backend: Backend, clock: HeldClock) -> None:
        # M8 M-OPT-15
        at_once: dict[str, dict[str, Any]] = {
            "by interval": {"every": 60, "limit": 2},
            "by cron": {"cron": "0 0 * * *", "catch_up": "none"},
        }
        began = clock.now()
        for name, times in at_once.items():
            stored = await backend.put_schedule(kit.schedule(name, immediate=True, **times))
            assert stored.repeat.immediate
            assert stored.next_run_at == began
        reader = open_backend() if backend.capabilities.shared else backend
        assert (await reader.get_schedule("by cron")).repeat == Repeat(immediate=True, **at_once["by cron"])
        fired = await backend.fire_due_schedules()
        assert sorted(str(job.schedule_id) for job in fired) == ["by cron", "by interval"]
        assert [job.run_at for job in fired] == [None, None]
        assert (await backend.get_schedule("by interval")).next_run_at == began + kit.seconds(60)
        assert (await backend.get_schedule("by cron")).next_run_at == NOON + timedelta(hours=12)
        clock.advance(30)
        for name, times in at_once.items():  # as a program does at every start
            again = await backend.put_schedule(kit.schedule(name, immediate=True, **times))
            assert again.run_count == 1
        assert await backend.fire_due_schedules() == []
        clock.advance(30)
        assert len(await backend.fire_due_schedules()) == 1
        assert (await backend.get_schedule("by interval")).next_run_at is None

    async def test_an_immediate_schedule_respects_its_start_and_end(self, backend: Backend, clock: HeldClock) -> None:
        # M8 M-OPT-15
        later, past = clock.now() + kit.seconds(90), clock.now() - kit.seconds(1)
        waits = await backend.put_schedule(kit.schedule("waits", cron="0 0 1 1 *", start=later, immediate=True))
        over = await backend.put_schedule(kit.schedule("over", every=60, end=past, immediate=True))
        assert (waits.next_run_at, over.next_run_at) == (later, None)
        with pytest.raises(InvalidArgument, match="must be True or False") as refusal:
            Repeat(every=60, immediate="yes")  # type: ignore[arg-type]  # a wrong type on purpose
        assert refusal.value.field == "repeat.immediate"

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"id": ""}, "schedule.id"),
            ({"id": "x" * 300}, "schedule.id"),
            ({"repeat": "every minute"}, "schedule.repeat"),
            ({"job": None}, "schedule.job"),
            ({"job": Job(type="")}, "schedule.job.type"),
            ({"job": Job(type="email", depends_on=("a",))}, "schedule.job.depends_on"),
            ({"job": Job(type="email", idempotency_key="k")}, "schedule.job.idempotency_key"),
            ({"job": Job(type="email", run_at=5)}, "schedule.job.run_at"),
        ],
    )
    async def test_a_malformed_schedule_is_refused(self, backend: Backend, wrong: dict[str, Any], field: str) -> None:
        await kit.refused(backend, backend.put_schedule(dataclasses.replace(kit.schedule(), **wrong)), field=field)

    async def test_only_a_schedule_can_be_stored(self, backend: Backend) -> None:
        await kit.refused(backend, backend.put_schedule("nightly"), field="schedule")  # type: ignore[arg-type]  # a wrong type on purpose

    # -- fired

    async def test_a_due_schedule_makes_a_job_like_its_pattern(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-07 M-SCHED-08 M-JOB-18
        pattern = kit.new_job(
            type="report", queue="night", tags=["eu"], payload=b"1", priority=3, max_attempts=2, options={"k": 1}
        )
        await backend.put_schedule(kit.schedule("nightly", pattern, every=60))
        clock.advance(59)
        assert await backend.fire_due_schedules() == []
        clock.advance(1)
        [made] = await backend.fire_due_schedules()
        assert made == await backend.get_job(made.id)
        assert (made.status, made.schedule_id, made.created_at) == (S.INITIAL_PENDING, "nightly", clock.now())
        assert (made.type, made.queue, made.tags, made.payload) == ("report", "night", ("eu",), b"1")
        assert (made.priority, made.max_attempts, dict(made.options)) == (3, 2, {"k": 1})
        [kept] = await backend.get_schedules()
        assert (kept.run_count, kept.last_run_at, kept.last_job_id) == (1, clock.now(), made.id)
        assert kept.next_run_at == clock.now() + kit.seconds(60)
        assert (await kit.claim(backend)).id == made.id

    async def test_every_run_gets_an_id_of_its_own(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule())
        await backend.put_schedule(kit.schedule("another"))
        for _ in range(5):
            clock.advance(60)
            assert len(await backend.fire_due_schedules()) == 2
        assert len({job.id for job in await kit.all_jobs(backend)}) == 10
        assert len(await kit.all_jobs(backend, JobFilter(schedule_id="another"))) == 5

    async def test_firing_is_one_transaction(self, backend: Backend, clock: BreakableClock) -> None:
        """Every transaction reads the clock once."""
        # M-SCHED-10
        for name in ("a", "b", "c"):
            await backend.put_schedule(kit.schedule(name))
        clock.advance(60)
        before = clock.readings
        assert len(await backend.fire_due_schedules()) == 3
        assert clock.readings == before + 1

    async def test_the_second_scheduler_creates_no_job(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule())
        clock.advance(60)
        fired = await asyncio.gather(*(backend.fire_due_schedules() for _ in range(4)))
        assert sorted(len(jobs) for jobs in fired) == [0, 0, 0, 1]
        async with kit.nothing_changes(backend):
            assert await backend.fire_due_schedules() == []

    async def test_one_planned_time_creates_one_job_even_if_stored_again(self, backend: Backend) -> None:
        anchored = kit.schedule(every=3600, start=NOON)
        await backend.put_schedule(anchored)
        assert len(await backend.fire_due_schedules()) == 1
        await backend.remove_schedule("nightly")
        await backend.put_schedule(anchored)
        assert await backend.fire_due_schedules() == []
        assert len(await kit.all_jobs(backend)) == 1

    async def test_another_job_with_an_occurrences_id_is_not_counted(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-10 X-93
        taken = "nightly@2026-01-01T12:01:00Z"
        for name in (taken, f"{taken}~1"):
            await backend.enqueue_job(kit.new_job(id=name, queue="other"))
        await backend.put_schedule(kit.schedule(every=60))
        clock.advance(60)
        [made] = await backend.fire_due_schedules()
        assert (made.id, made.schedule_id) == (f"{taken}~2", "nightly")
        kept = await backend.get_schedule("nightly")
        assert (kept.run_count, kept.last_job_id) == (1, made.id)
        clock.set(NOON)
        await backend.pause_schedule("nightly")
        await backend.resume_schedule("nightly")  # the same time is planned again
        clock.advance(60)
        assert await backend.fire_due_schedules() == []
        assert (await backend.get_schedule("nightly")).last_job_id == made.id

    async def test_firing_is_limited_the_most_overdue_first(self, backend: Backend, clock: HeldClock) -> None:
        for name, every in (("a", 30), ("b", 10), ("c", 20)):
            await backend.put_schedule(kit.schedule(name, every=every, limit=1))
        clock.advance(60)
        fired = [job.schedule_id for _ in range(4) for job in await backend.fire_due_schedules(limit=1)]
        assert fired == ["b", "c", "a"]

    async def test_a_removed_schedule_leaves_its_jobs(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule())
        clock.advance(60)
        [job] = await backend.fire_due_schedules()
        await backend.remove_schedule("nightly")
        clock.advance(60)
        assert await backend.fire_due_schedules() == []
        assert (await kit.claim(backend)).id == job.id

    async def test_a_delay_of_the_pattern_counts_from_each_run(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-07
        await backend.put_schedule(kit.schedule(job=kit.new_job(delay=5), every=60))
        clock.advance(60)
        [job] = await backend.fire_due_schedules()
        assert job.run_at == clock.now() + kit.seconds(5)

    # -- planned times

    async def test_an_interval_never_drifts(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-08 M-OPT-11 X-93
        await backend.put_schedule(kit.schedule(every=60))
        found = await runs(backend, clock, NOON + kit.seconds(600), kit.seconds(25))
        assert [planned - NOON for planned in found] == [kit.seconds(60 * n) for n in range(1, 11)]

    async def test_a_start_anchors_the_interval_and_an_end_closes_it(self, backend: Backend, clock: HeldClock) -> None:
        # M-OPT-13 X-93
        start = NOON + kit.seconds(90)
        await backend.put_schedule(kit.schedule(every=60, start=start, end=start + kit.seconds(120)))
        found = await runs(backend, clock, NOON + kit.seconds(900), kit.seconds(10))
        assert [planned - start for planned in found] == [kit.seconds(0), kit.seconds(60), kit.seconds(120)]
        assert (await backend.get_schedules())[0].next_run_at is None

    async def test_a_limit_ends_the_schedule(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-09 M-OPT-12 X-93
        await backend.put_schedule(kit.schedule(every=60, limit=3))
        assert len(await runs(backend, clock, NOON + kit.seconds(600), kit.seconds(30))) == 3
        [kept] = await backend.get_schedules()
        assert (kept.run_count, kept.next_run_at) == (3, None)

    @pytest.mark.parametrize(
        ("day", "policy", "expected"),
        [
            # the hour from 2 to 3 does not exist on this day: run at the next time that does
            (SPRING, {}, [SPRING + timedelta(hours=1)]),
            (SPRING, {"on_gap": "skip"}, []),
            # it occurs twice on this day: run at the first
            (AUTUMN, {}, [AUTUMN + timedelta(minutes=30)]),
            (AUTUMN, {"on_overlap": "second"}, [AUTUMN + timedelta(minutes=90)]),
            (AUTUMN, {"on_overlap": "both"}, [AUTUMN + timedelta(minutes=30), AUTUMN + timedelta(minutes=90)]),
        ],
        ids=str,
    )
    async def test_a_daily_time_follows_its_policy_on_dst_changes(
        self, backend: Backend, clock: HeldClock, day: datetime, policy: dict[str, Any], expected: list[datetime]
    ) -> None:
        # M-OPT-10 M-OPT-14 X-93
        clock.set(day - timedelta(hours=1))
        given = kit.schedule(cron="30 2 * * *", tz="Europe/Berlin", **policy)
        assert (await backend.put_schedule(given)).repeat == given.repeat
        found = await runs(backend, clock, day + timedelta(hours=12), timedelta(minutes=10))
        assert found == expected

    async def test_a_cron_pattern_follows_its_own_time_zone(self, backend: Backend) -> None:
        stored = await backend.put_schedule(kit.schedule(cron="30 9 * * *", tz="Asia/Kolkata"))
        assert stored.next_run_at == datetime(2026, 1, 2, 4, 0, tzinfo=UTC)


ON_ONE: dict[str, Callable[[Backend, str], Awaitable[object]]] = {
    "get_schedule": lambda b, name: b.get_schedule(name),
    "pause_schedule": lambda b, name: b.pause_schedule(name),
    "resume_schedule": lambda b, name: b.resume_schedule(name),
    "run_schedule": lambda b, name: b.run_schedule(name),
}


async def schedule_events(backend: Backend) -> list[tuple[str, Any]]:
    """Return the events about schedules, with their details."""
    return [(event.event, event.detail) for event in await kit.log_of(backend) if event.event.startswith("schedule.")]


class TestScheduleActs:
    """`get_schedule`, `pause_schedule`, `resume_schedule`, `run_schedule`, and `put_schedule` on a stored schedule."""

    @pytest.mark.parametrize("verb", ON_ONE)
    async def test_an_unknown_schedule_is_named_in_the_error(self, backend: Backend, verb: str) -> None:
        await backend.put_schedule(kit.schedule("nightly"))
        caught = await kit.refused(backend, ON_ONE[verb](backend, "nihgtly"), ScheduleNotFound)
        assert caught.schedule_id == "nihgtly"
        assert "'nihgtly'" in str(caught)

    async def test_one_schedule_is_found_among_others(self, backend: Backend) -> None:
        stored = [await backend.put_schedule(kit.schedule(name)) for name in ("a", "b", "c")]
        assert await backend.get_schedule("b") == stored[1]

    # -- paused and resumed

    async def test_occurrences_during_a_pause_are_skipped(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule(every=60, catch_up="all"))
        paused = await backend.pause_schedule("nightly")
        assert (paused.paused, paused.next_run_at) == (True, NOON + kit.seconds(60))
        clock.advance(3610)
        assert await backend.fire_due_schedules() == []
        resumed = await backend.resume_schedule("nightly")
        assert (resumed.paused, resumed.next_run_at) == (False, NOON + kit.seconds(3660))
        assert await backend.get_schedule("nightly") == resumed
        assert await backend.fire_due_schedules() == []
        clock.advance(50)
        assert len(await backend.fire_due_schedules()) == 1

    async def test_put_schedule_may_pause_and_resume(self, backend: Backend, clock: HeldClock) -> None:
        given = kit.schedule(cron="0 * * * *")
        await backend.put_schedule(dataclasses.replace(given, paused=True))
        clock.advance(3 * 3600 + 600)
        assert await backend.fire_due_schedules() == []
        resumed = await backend.put_schedule(given)
        assert (resumed.paused, resumed.next_run_at) == (False, NOON + timedelta(hours=4))
        assert await backend.fire_due_schedules() == []

    async def test_keep_pause_leaves_a_pause_alone(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule(), keep_pause=True)
        await backend.pause_schedule("nightly")
        again = await backend.put_schedule(kit.schedule(job=kit.new_job(type="other")), keep_pause=True)
        assert (again.paused, again.job.type) == (True, "other")
        clock.advance(600)
        assert await backend.fire_due_schedules() == []

    async def test_pausing_and_resuming_write_one_event_each(self, backend: Backend) -> None:
        await backend.put_schedule(kit.schedule(job=kit.new_job(type="report", queue="night")))
        assert await schedule_events(backend) == []
        await backend.pause_schedule("nightly")
        async with kit.nothing_changes(backend):
            await backend.pause_schedule("nightly")
        await backend.resume_schedule("nightly")
        async with kit.nothing_changes(backend):
            await backend.resume_schedule("nightly")
        detail = {"schedule_id": "nightly"}
        assert await schedule_events(backend) == [("schedule.paused", detail), ("schedule.resumed", detail)]
        [first, _] = await kit.log_of(backend, queue="night")
        assert (first.queue, first.type, first.job_id, first.to_status) == ("night", "report", None, None)

    # -- run by hand

    async def test_running_a_schedule_by_hand_leaves_its_plan(self, backend: Backend, clock: HeldClock) -> None:
        # M-OPT-15 M-JOB-18
        pattern = kit.new_job(type="report", queue="night", tags=["eu"], payload=b"1", priority=3, max_attempts=2)
        stored = await backend.put_schedule(kit.schedule("nightly", pattern, every=60, limit=2))
        clock.advance(10)
        made = await backend.run_schedule("nightly")
        assert made == await backend.get_job(made.id)
        assert (made.status, made.schedule_id, made.created_at) == (S.INITIAL_PENDING, "nightly", clock.now())
        assert (made.type, made.queue, made.tags, made.payload) == ("report", "night", ("eu",), b"1")
        assert (made.priority, made.max_attempts) == (3, 2)
        assert await backend.get_schedule("nightly") == stored, "it is not counted, and the planned times do not change"
        assert (await kit.claim(backend)).id == made.id
        clock.advance(50)
        assert len(await backend.fire_due_schedules()) == 1
        clock.advance(60)
        assert len(await backend.fire_due_schedules()) == 1
        assert len(await kit.all_jobs(backend, JobFilter(schedule_id="nightly"))) == 3

    async def test_every_run_by_hand_is_a_job_of_its_own(self, backend: Backend) -> None:
        await backend.put_schedule(kit.schedule())
        made = [await backend.run_schedule("nightly") for _ in range(3)]
        assert len({job.id for job in made}) == 3

    @pytest.mark.parametrize("state", ["paused", "ended"])
    async def test_any_schedule_can_be_run_by_hand(self, backend: Backend, clock: HeldClock, state: str) -> None:
        await backend.put_schedule(kit.schedule(every=60, limit=1))
        if state == "paused":
            await backend.pause_schedule("nightly")
        else:
            clock.advance(60)
            assert len(await backend.fire_due_schedules()) == 1
        made = await backend.run_schedule("nightly")
        assert made.schedule_id == "nightly"

    async def test_a_delay_counts_from_a_run_by_hand(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule(job=kit.new_job(delay=5)))
        clock.advance(7)
        assert (await backend.run_schedule("nightly")).run_at == clock.now() + kit.seconds(5)

    # -- failing schedules

    async def test_a_schedule_that_cannot_make_jobs_is_paused_and_logged(
        self, backend: Backend, clock: HeldClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        await backend.put_schedule(outlived("a bad one", clock))
        await backend.put_schedule(kit.schedule("good", every=60))
        clock.advance(60)
        assert [job.schedule_id for job in await backend.fire_due_schedules()] == ["good"]
        bad = await backend.get_schedule("a bad one")
        assert (bad.paused, bad.run_count) == (True, 0)
        assert "9999" in bad.error
        assert await schedule_events(backend) == [("schedule.paused", {"schedule_id": "a bad one", "error": bad.error})]
        assert "'a bad one'" in caplog.text
        assert bad.error in caplog.text
        async with kit.nothing_changes(backend):
            assert await backend.fire_due_schedules() == []
        await kit.refused(backend, backend.run_schedule("a bad one"), field="delay")

    async def test_fixing_clears_the_error(self, open_backend: OpenBackend, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(outlived("s", clock))
        clock.advance(60)
        await backend.fire_due_schedules()
        right = await backend.put_schedule(kit.schedule("s"))
        assert (right.paused, right.error) == (False, "")
        assert right.next_run_at == clock.now() + kit.seconds(60)
        reader = open_backend() if backend.capabilities.shared else backend
        assert await reader.get_schedule("s") == right


def outlived(schedule_id: str, clock: HeldClock) -> Schedule:
    """Return a schedule that repeats every minute, whose jobs would soon be delayed beyond the end of the calendar."""
    left = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - clock.now()
    return kit.schedule(schedule_id, kit.new_job(delay=left - kit.seconds(30)), every=60)


THREE_DAYS = timedelta(days=3)
HOURLY: list[dict[str, Any]] = [{"every": 3600}, {"cron": "0 * * * *"}]


async def fire_all(backend: Backend) -> list[int]:
    """Return how many jobs each pass created, until one creates none."""
    passes = []
    while made := await backend.fire_due_schedules():
        passes.append(len(made))
    return passes


async def occurrences(backend: Backend, schedule_id: str) -> Counter[datetime]:
    """Return how many jobs there are for each planned time."""
    ids = [job.id.rpartition("@") for job in await kit.all_jobs(backend)]
    return Counter(datetime.fromisoformat(time) for name, _, time in ids if name == schedule_id)


class TestMissedRuns:
    """`fire_due_schedules` after a pause of the scheduler, and by several schedulers."""

    async def test_missed_runs_collapse_into_the_last(self, backend: Backend, clock: HeldClock) -> None:
        #
        await backend.put_schedule(kit.schedule(every=60))
        clock.advance(timedelta(days=3, seconds=30))
        assert len(await backend.fire_due_schedules()) == 1
        [kept] = await backend.get_schedules()
        assert kept.last_run_at == NOON + timedelta(days=3)
        assert kept.next_run_at == NOON + timedelta(days=3, seconds=60)

    async def test_catch_up_all_is_capped_in_each_pass(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule(every=60, catch_up="all"))
        clock.advance(60 * 250)
        passes = await fire_all(backend)
        assert sum(passes) == 250
        assert max(passes) <= 20
        assert len({job.id for job in await kit.all_jobs(backend)}) == 250

    async def test_a_pass_is_bounded_by_jobs_punctual_ones_first(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-08 X-93
        for number in range(40):
            await backend.put_schedule(kit.schedule(f"slept-{number:02}", every=60, catch_up="all"))
        await backend.put_schedule(kit.schedule("punctual", every=86400))
        clock.advance(86400)
        first = await backend.fire_due_schedules()
        assert first[0].schedule_id == "punctual"
        assert 100 < len(first) <= 500
        again = await backend.fire_due_schedules()
        assert len(again) <= 500
        assert {job.id for job in first}.isdisjoint(job.id for job in again)

    async def test_a_pass_is_bounded_by_the_bytes_it_stores(self, backend: Backend, clock: HeldClock) -> None:
        #
        for name, megabytes in (("a", 3), ("b", 6), ("c", 1)):
            pattern = kit.new_job(payload=b'"' + b"x" * (megabytes << 20) + b'"')
            await backend.put_schedule(kit.schedule(name, pattern, every=60, catch_up="all", limit=3))
        clock.advance(600)
        passes = []
        while made := await backend.fire_due_schedules():
            passes.append("".join(str(job.schedule_id) for job in made))
            assert sum(len(job.payload) for job in made) <= 4 << 20 or len(made) == 1
        assert sorted("".join(passes)) == list("aaabbbccc")

    async def test_missed_runs_are_dropped_if_requested(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule(cron="0 * * * *", catch_up="none"))
        clock.advance(timedelta(hours=3, minutes=30))
        assert await backend.fire_due_schedules() == []
        clock.advance(timedelta(minutes=30, seconds=20))  # a tick is never exact
        assert len(await backend.fire_due_schedules()) == 1

    @pytest.mark.parametrize("hourly", HOURLY, ids=["every", "cron"])
    @pytest.mark.parametrize(("catch_up", "made"), [("none", 0), ("last", 1), ("all", 72)])
    async def test_catch_up_after_three_days(
        self, backend: Backend, clock: HeldClock, hourly: dict[str, Any], catch_up: str, made: int
    ) -> None:
        # M-SCHED-08 X-93
        await backend.put_schedule(kit.schedule(**hourly, catch_up=catch_up))
        clock.advance(THREE_DAYS + timedelta(minutes=5))
        assert sum(await fire_all(backend)) == made
        found = await occurrences(backend, "nightly")
        assert found == Counter(NOON + THREE_DAYS - timedelta(hours=number) for number in range(made))
        [kept] = await backend.get_schedules()
        assert (kept.run_count, kept.next_run_at) == (made, NOON + THREE_DAYS + timedelta(hours=1))
        clock.set(NOON + THREE_DAYS + timedelta(hours=1))
        assert len(await backend.fire_due_schedules()) == 1, "the next occurrence fires"

    async def test_a_limit_and_an_end_bound_what_is_made_up_for(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-09 M-OPT-12 M-OPT-13 X-93
        await backend.put_schedule(kit.schedule("limited", every=3600, limit=5, catch_up="all"))
        await backend.put_schedule(kit.schedule("bounded", every=3600, end=NOON + timedelta(hours=7), catch_up="all"))
        clock.advance(THREE_DAYS)
        assert sum(await fire_all(backend)) == 12
        assert [kept.next_run_at for kept in await backend.get_schedules()] == [None, None]

    # -- a clock that is set back

    async def test_a_clock_set_back_repeats_no_occurrence(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-10 X-93
        await backend.put_schedule(kit.schedule(every=60))
        clock.advance(180)
        assert len(await backend.fire_due_schedules()) == 1
        clock.set(NOON - timedelta(hours=2))
        assert await backend.fire_due_schedules() == []
        clock.set(NOON + kit.seconds(240))
        assert len(await backend.fire_due_schedules()) == 1
        assert await occurrences(backend, "nightly") == {NOON + kit.seconds(180): 1, NOON + kit.seconds(240): 1}

    async def test_an_occurrence_planned_again_makes_no_second_job(self, backend: Backend, clock: HeldClock) -> None:
        """Resuming plans the schedule from the current time, which the clock has shown before."""
        # M-SCHED-10 X-93
        await backend.put_schedule(kit.schedule(every=60, catch_up="all", limit=8))
        clock.advance(300)
        assert await fire_all(backend) == [5]
        clock.set(NOON)
        await backend.pause_schedule("nightly")
        resumed = await backend.resume_schedule("nightly")
        assert resumed.next_run_at == NOON + kit.seconds(60)
        clock.set(NOON + kit.seconds(420))
        await fire_all(backend)
        clock.advance(3600)
        await fire_all(backend)
        kept = await backend.get_schedule("nightly")
        assert (kept.run_count, kept.next_run_at) == (8, None)
        assert await occurrences(backend, "nightly") == {NOON + kit.seconds(60 * number): 1 for number in range(1, 9)}

    # -- several schedulers

    @pytest.mark.parametrize("times", HOURLY)
    @pytest.mark.parametrize("end", [None, NOON + timedelta(days=30)], ids=["no end", "with an end"])
    async def test_a_clock_that_was_a_year_ahead_stops_no_schedule(
        self, backend: Backend, clock: HeldClock, times: dict[str, Any], end: datetime | None
    ) -> None:
        #
        await backend.put_schedule(kit.schedule(**times, end=end))
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

    async def test_an_occurrence_of_a_removed_job_does_not_recur(self, backend: Backend, clock: HeldClock) -> None:
        #
        made: Counter[str] = Counter()

        async def advance(hours: int) -> None:
            for _ in range(hours):
                clock.advance(3600)
                jobs = await backend.fire_due_schedules()
                made.update(job.id for job in jobs)
                await backend.cancel_jobs(job_ids=[job.id for job in jobs] or ["nobody"])
                await backend.delete_jobs(job_ids=[job.id for job in jobs] or ["nobody"])
                await backend.apply_retention()

        await backend.put_schedule(kit.schedule(every=3600))
        await advance(100)
        clock.set(NOON + timedelta(hours=10))
        await advance(95)
        assert len(made) == 105
        assert set(made.values()) == {1}

    async def test_put_schedule_corrects_a_time_from_a_fast_clock(self, backend: Backend, clock: HeldClock) -> None:
        await backend.put_schedule(kit.schedule(every=3600))
        clock.advance(timedelta(days=365))
        await backend.fire_due_schedules()
        clock.set(NOON + timedelta(minutes=30))
        kept = await backend.put_schedule(kit.schedule(every=3600), keep_pause=True)
        assert kept.next_run_at == NOON + timedelta(hours=1)

    async def test_one_job_per_occurrence(self, open_backend: OpenBackend, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-10 M-SCHED-13 X-93
        if not backend.capabilities.shared:
            pytest.skip("the store has only one backend")
        backends = [backend, open_backend()]
        names = [f"s{number}" for number in range(5)]
        for name in names:
            await backend.put_schedule(kit.schedule(name, every=60, catch_up="all"))
        chance = random.Random(5)
        furthest = NOON
        for _ in range(25):
            clock.set(clock.now() + kit.seconds(chance.choice([-90, -30, 20, 60, 150])))
            furthest = max(furthest, clock.now())
            await asyncio.gather(*(one.fire_due_schedules() for one in backends * 4))
        clock.set(furthest)
        await fire_all(backend)
        planned = {NOON + kit.seconds(60 * number): 1 for number in range(1, (furthest - NOON) // kit.seconds(60) + 1)}
        assert planned
        for name in names:
            assert await occurrences(backend, name) == planned
            assert (await backend.get_schedule(name)).run_count == len(planned)

    async def test_racing_puts_make_one(self, open_backend: OpenBackend, backend: Backend, clock: HeldClock) -> None:
        #
        backends = [backend, open_backend()] if backend.capabilities.shared else [backend]
        given = kit.schedule(job=kit.new_job(type="report"), every=60)
        stored = await asyncio.gather(*(one.put_schedule(given) for one in backends * 6))
        assert {one.id for one in stored} == {"nightly"}
        clock.advance(60)
        assert len(await backend.fire_due_schedules()) == 1
        assert (await backend.get_schedule("nightly")).run_count == 1
