"""What people do to schedules: look at one, pause and resume it, run it by hand; and one that goes bad by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.filters import JobFilter
from longshore.core.schedule import Schedule
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.schedules import NOON, schedule
from longshore.testing.conformance.staging import (
    S,
    all_jobs,
    claim,
    log_of,
    new_job,
    nothing_changes,
    refused,
    seconds,
)

ON_ONE: dict[str, Callable[[Backend, str], Awaitable[object]]] = {
    "get_schedule": lambda b, name: b.get_schedule(name),
    "pause_schedule": lambda b, name: b.pause_schedule(name),
    "resume_schedule": lambda b, name: b.resume_schedule(name),
    "run_schedule": lambda b, name: b.run_schedule(name),
}


async def told(backend: Backend) -> list[tuple[str, Any]]:
    """The events about schedules, with what they tell."""
    return [(event.event, event.detail) for event in await log_of(backend) if event.event.startswith("schedule.")]


class TestScheduleActs:
    """`get_schedule`, `pause_schedule`, `resume_schedule`, `run_schedule`, and `put_schedule` on what is known."""

    @pytest.mark.parametrize("verb", ON_ONE)
    async def test_a_schedule_that_nobody_knows_is_named_in_the_refusal(self, backend: Backend, verb: str) -> None:
        await backend.put_schedule(schedule("nightly"))
        async with refused(backend, ScheduleNotFound) as caught:
            await ON_ONE[verb](backend, "nihgtly")
        assert caught.value.schedule_id == "nihgtly"
        assert "'nihgtly'" in str(caught.value)

    async def test_one_schedule_is_found_among_others(self, backend: Backend) -> None:
        stored = [await backend.put_schedule(schedule(name)) for name in ("a", "b", "c")]
        assert await backend.get_schedule("b") == stored[1]

    # -- paused and resumed

    async def test_a_paused_schedule_makes_nothing_and_what_fell_into_the_pause_is_not_made_up_for(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.put_schedule(schedule(every=60, catch_up="all"))
        paused = await backend.pause_schedule("nightly")
        assert (paused.paused, paused.next_run_at) == (True, NOON + seconds(60))
        clock.advance(3610)
        assert await backend.fire_due_schedules() == []
        resumed = await backend.resume_schedule("nightly")
        assert (resumed.paused, resumed.next_run_at) == (False, NOON + seconds(3660))
        assert await backend.get_schedule("nightly") == resumed
        assert await backend.fire_due_schedules() == []
        clock.advance(50)
        assert len(await backend.fire_due_schedules()) == 1

    async def test_a_schedule_is_paused_and_resumed_by_putting_it_so_too(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        given = schedule(cron="0 * * * *")
        await backend.put_schedule(dataclasses.replace(given, paused=True))
        clock.advance(3 * 3600 + 600)
        assert await backend.fire_due_schedules() == []
        resumed = await backend.put_schedule(given)
        assert (resumed.paused, resumed.next_run_at) == (False, NOON + timedelta(hours=4))
        assert await backend.fire_due_schedules() == []

    async def test_a_program_that_puts_its_schedules_when_it_starts_leaves_a_pause_alone(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.put_schedule(schedule(), keep_pause=True)
        await backend.pause_schedule("nightly")
        again = await backend.put_schedule(schedule(job=new_job(type="other")), keep_pause=True)
        assert (again.paused, again.job.type) == (True, "other")
        clock.advance(600)
        assert await backend.fire_due_schedules() == []

    async def test_pausing_and_resuming_are_told_once(self, backend: Backend) -> None:
        await backend.put_schedule(schedule(job=new_job(type="report", queue="night")))
        assert await told(backend) == []
        await backend.pause_schedule("nightly")
        async with nothing_changes(backend):
            await backend.pause_schedule("nightly")
        await backend.resume_schedule("nightly")
        async with nothing_changes(backend):
            await backend.resume_schedule("nightly")
        detail = {"schedule_id": "nightly"}
        assert await told(backend) == [("schedule.paused", detail), ("schedule.resumed", detail)]
        [first, _] = await log_of(backend, queue="night")
        assert (first.queue, first.type, first.job_id, first.to_status) == ("night", "report", None, None)

    # -- run by hand

    async def test_a_schedule_run_by_hand_makes_its_job_at_once_and_the_plan_goes_on_undisturbed(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-OPT-15 M-JOB-18
        pattern = new_job(type="report", queue="night", tags=["eu"], payload=b"1", priority=3, max_attempts=2)
        stored = await backend.put_schedule(schedule("nightly", pattern, every=60, limit=2))
        clock.advance(10)
        made = await backend.run_schedule("nightly")
        assert made == await backend.get_job(made.id)
        assert (made.status, made.schedule_id, made.created_at) == (S.INITIAL_PENDING, "nightly", clock.now())
        assert (made.type, made.queue, made.tags, made.payload) == ("report", "night", ("eu",), b"1")
        assert (made.priority, made.max_attempts) == (3, 2)
        assert await backend.get_schedule("nightly") == stored, "it is not counted, and no planned time is used up"
        assert (await claim(backend)).id == made.id
        clock.advance(50)
        assert len(await backend.fire_due_schedules()) == 1
        clock.advance(60)
        assert len(await backend.fire_due_schedules()) == 1
        assert len(await all_jobs(backend, JobFilter(schedule_id="nightly"))) == 3

    async def test_every_run_by_hand_is_a_job_of_its_own(self, backend: Backend) -> None:
        await backend.put_schedule(schedule())
        made = [await backend.run_schedule("nightly") for _ in range(3)]
        assert len({job.id for job in made}) == 3

    @pytest.mark.parametrize("state", ["paused", "ended"])
    async def test_a_schedule_that_is_paused_or_has_ended_can_be_run_by_hand(
        self, backend: Backend, clock: HeldClock, state: str
    ) -> None:
        await backend.put_schedule(schedule(every=60, limit=1))
        if state == "paused":
            await backend.pause_schedule("nightly")
        else:
            clock.advance(60)
            assert len(await backend.fire_due_schedules()) == 1
        made = await backend.run_schedule("nightly")
        assert made.schedule_id == "nightly"

    async def test_a_delay_of_the_pattern_counts_from_a_run_by_hand_too(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.put_schedule(schedule(job=new_job(delay=5)))
        clock.advance(7)
        assert (await backend.run_schedule("nightly")).run_at == clock.now() + seconds(5)

    # -- gone bad

    async def test_a_schedule_whose_jobs_cannot_be_made_any_more_is_paused_and_told_of_and_holds_up_nobody(
        self, backend: Backend, clock: HeldClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        await backend.put_schedule(outlived("a bad one", clock))
        await backend.put_schedule(schedule("good", every=60))
        clock.advance(60)
        assert [job.schedule_id for job in await backend.fire_due_schedules()] == ["good"]
        bad = await backend.get_schedule("a bad one")
        assert (bad.paused, bad.run_count) == (True, 0)
        assert "9999" in bad.error
        assert await told(backend) == [("schedule.paused", {"schedule_id": "a bad one", "error": bad.error})]
        assert "'a bad one'" in caplog.text
        assert bad.error in caplog.text
        async with nothing_changes(backend):
            assert await backend.fire_due_schedules() == []
        async with refused(backend, InvalidArgument, field="delay"):
            await backend.run_schedule("a bad one")

    async def test_a_schedule_put_right_again_has_no_error_any_more(
        self, open_backend: OpenBackend, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.put_schedule(outlived("s", clock))
        clock.advance(60)
        await backend.fire_due_schedules()
        right = await backend.put_schedule(schedule("s"))
        assert (right.paused, right.error) == (False, "")
        assert right.next_run_at == clock.now() + seconds(60)
        reader = open_backend() if backend.capabilities.shared else backend
        assert await reader.get_schedule("s") == right


def outlived(schedule_id: str, clock: HeldClock) -> Schedule:
    """One that repeats every minute, whose jobs would soon be delayed beyond the end of the calendar."""
    left = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - clock.now()
    return schedule(schedule_id, new_job(delay=left - seconds(30)), every=60)
