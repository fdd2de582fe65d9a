"""What a store keeps: every field of a job and of a schedule, its times to the microsecond, its edges in order."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.testing.conformance.scenarios import S, all_jobs, claim, enqueue, lease_of, moment, new_job, seconds

VALUE = {"text": "Grüße 🚢", "list": [1, 2.5, None, True], "nested": {"deep": [{}]}, "large": 2**62}

MOVES: dict[str, Callable[[Backend, Job], Awaitable[object]]] = {
    "complete_job": lambda b, j: b.complete_job(j.id, b"1", lease=lease_of(j)),
    "fail_job": lambda b, j: b.fail_job(j.id, "broken", lease=lease_of(j)),
    "fail_job for later": lambda b, j: b.fail_job(j.id, "broken", retry_at=60, lease=lease_of(j)),
    "bury_job": lambda b, j: b.bury_job(j.id, "broken", lease=lease_of(j)),
    "stop_job": lambda b, j: b.stop_job(j.id, lease=lease_of(j)),
    "mark_job_unknown_stopped": lambda b, j: b.mark_job_unknown_stopped(j.id, lease=lease_of(j)),
    "release_lease": lambda b, j: b.release_lease(j.id, lease_of(j)),
    "cancel_jobs": lambda b, j: b.cancel_jobs(job_ids=[j.id]),
    "update_job_status": lambda b, j: b.update_job_status(j.id, S.STOPPED),
    "mark_worker_unresponsive": lambda b, j: b.mark_worker_unresponsive(str(j.assignee_id)),
    "reset_running_jobs": lambda b, _: b.reset_running_jobs(),
}


class TestRecords:
    """Records as they are stored and given back."""

    # -- a job

    async def test_every_field_of_a_whole_life_is_kept(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-01 M-SQL-07 M-JOB-16
        created = clock.now()
        await enqueue(backend, "first")
        await backend.complete_job((await claim(backend)).id)
        await backend.enqueue_job(
            new_job(
                "j1", queue="mail", type="send", payload=b'{"to": "ada"}', priority=-3, max_attempts=5, delay=10,
                depends_on=("first",), parent_id="first", schedule_id="nightly", options={"k": VALUE},
            )
        )  # fmt: skip
        clock.advance(10)
        job = await claim(backend, "worker-7", queues=["mail"])
        await backend.set_progress("j1", {"page": 3}, lease=lease_of(job))
        await backend.append_log("j1", "half-way", "warn", lease=lease_of(job))
        assert (job.started_at, job.assigned_at, job.assignee_id) == (clock.now(), clock.now(), "worker-7")
        assert lease_of(job).expires_at == clock.now() + seconds(30)
        await backend.fail_job("j1", "broken", lease=lease_of(job))
        clock.advance(1)
        failed = await backend.get_job("j1")
        assert (failed.error_message, failed.retry_count, failed.lease) == ("broken", 1, None)
        await backend.complete_job((await claim(backend, queues=["mail"])).id, b'{"sent": true}')
        kept = await backend.get_job("j1")
        assert (kept.id, kept.queue, kept.type, kept.data, kept.priority) == ("j1", "mail", "send", {"to": "ada"}, -3)
        assert (kept.status, kept.executions, kept.retry_count, kept.max_attempts) == (S.COMPLETED, 2, 1, 5)
        assert (kept.created_at, kept.updated_at) == (created, clock.now())
        assert (kept.run_at, kept.started_at, kept.finalized_at) == (
            None,
            created + seconds(10),
            clock.now(),
        )
        assert (kept.result, kept.error_message, kept.progress) == (b'{"sent": true}', "", {"page": 3})
        assert (kept.schedule_id, kept.depends_on, kept.parent_id) == ("nightly", ("first",), "first")
        assert kept.options == {"k": VALUE}
        [line] = await backend.read_logs("j1")
        assert (line.message, line.level, line.at) == ("half-way", "warn", created + seconds(10))

    async def test_what_every_job_must_have_it_has_from_the_start_or_is_refused(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-SCH-02
        job = await enqueue(backend)
        must = (job.queue, job.type, job.status, job.priority, job.executions, job.max_attempts)
        assert must == ("default", "email", S.INITIAL_PENDING, 0, 0, 0)
        assert (job.created_at, job.updated_at) == (clock.now(), clock.now())
        for missing in ({"type": ""}, {"queue": ""}, {"priority": None}, {"max_attempts": None}, {"status": None}):
            with pytest.raises(InvalidArgument):
                await backend.enqueue_job(new_job("incomplete", **missing))
        assert [kept.id for kept in await all_jobs(backend)] == [job.id]

    async def test_times_come_back_to_the_microsecond_and_in_utc(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-03 X-116
        planned = clock.now().replace(microsecond=123_457) + timedelta(days=9)
        elsewhere = planned.astimezone(tz=None)
        await enqueue(backend, "j1", run_at=elsewhere, expires_at=planned + timedelta(microseconds=1))
        job = await backend.get_job("j1")
        assert job.run_at == planned
        assert job.expires_at == planned + timedelta(microseconds=1)
        assert {moment(at).tzinfo for at in (job.run_at, job.expires_at, job.created_at)} == {UTC}
        clock.set(planned - timedelta(microseconds=1))
        assert await backend.dequeue_jobs("w") == []
        clock.set(planned)
        assert (await claim(backend)).started_at == planned

    async def test_any_json_is_kept_as_it_is(self, backend: Backend) -> None:
        # M-SQL-07 M-JOB-04 M-JOB-07 M-JOB-08
        await enqueue(backend, "j1", payload=b'[1, {"a": null}]')
        job = await claim(backend)
        assert job.data == [1, {"a": None}]
        values: list[Any] = [VALUE, None, 0, "", [], 55.5]
        for value in values:
            await backend.set_progress("j1", value)
            await backend.save_checkpoint("j1", value)
            kept = await backend.get_job("j1")
            assert (kept.progress, kept.checkpoint) == (value, value)

    @pytest.mark.parametrize("verb", MOVES)
    async def test_every_change_of_state_is_dated(self, backend: Backend, clock: HeldClock, verb: str) -> None:
        # M-SCH-14
        await enqueue(backend, "j1")
        clock.advance(1)
        job = await claim(backend)
        assert job.updated_at == (await backend.get_job("j1")).updated_at == clock.now()
        clock.advance(1)
        await MOVES[verb](backend, job)
        assert (await backend.get_job("j1")).updated_at == clock.now()

    async def test_a_job_is_plain_data_and_what_is_done_to_a_copy_is_not_done_to_the_store(
        self, backend: Backend
    ) -> None:
        # M-FUT-12
        job = await enqueue(backend, "j1", tags=["eu"], options={"k": [1]})
        with pytest.raises(dataclasses.FrozenInstanceError):
            job.priority = 9  # type: ignore[misc]  # that it cannot be set is the point
        assert job.replace(priority=9, status=S.COMPLETED).priority == 9
        assert await backend.get_job("j1") == job
        assert not [name for name in dir(job) if asyncio.iscoroutinefunction(getattr(job, name, None))]

    # -- found again

    async def test_jobs_are_found_by_what_they_are_known_by(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-04 M-SCH-05 M-SCH-06 M-SCH-07 M-SCH-08 M-SCH-09
        await enqueue(backend, "parent")
        await enqueue(backend, "child", parent_id="parent", queue="mail")
        await enqueue(backend, "repeated", schedule_id="nightly", queue="mail", delay=60)
        await enqueue(backend, "urgent", priority=-1, queue="mail")
        held = await claim(backend, "worker-7", queues=["default"])

        async def found(**wanted: object) -> list[str]:
            return [job.id for job in await all_jobs(backend, JobFilter(**wanted))]  # type: ignore[arg-type]  # by name

        assert await found(parent_id="parent") == ["child"]
        assert await found(schedule_id="nightly") == ["repeated"]
        assert await found(assignee_id="worker-7") == ["parent"]
        assert await found(statuses=(S.RUNNING,)) == ["parent"]
        assert await found(queues=("mail",), statuses=(S.INITIAL_PENDING,)) == ["urgent", "repeated", "child"]
        assert [job.id for job in await backend.dequeue_jobs("w", limit=9)] == ["urgent", "child"]
        clock.advance(30)
        assert held.id in [job.id for job in await backend.reclaim_expired_leases()]

    # -- a schedule

    async def test_every_field_of_a_schedule_is_kept(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-10 M-SCH-11
        start, end = clock.now() + timedelta(days=1), clock.now() + timedelta(days=9)
        pattern = new_job(queue="mail", type="report", payload=b'{"of": "eu"}', max_attempts=3, options={"k": VALUE})
        daily = Repeat(cron="30 6 * * *", tz="Europe/Oslo", limit=2, start=start, end=end)
        stored = await backend.put_schedule(Schedule(id="daily", job=pattern, repeat=daily))
        await backend.put_schedule(Schedule(id="paused", job=pattern, repeat=Repeat(every=60), paused=True))
        await backend.put_schedule(Schedule(id="often", job=pattern, repeat=Repeat(every=90)))
        assert (stored.repeat, stored.paused, stored.created_at) == (daily, False, clock.now())
        assert (stored.job.queue, stored.job.type, stored.job.data) == ("mail", "report", {"of": "eu"})
        assert (stored.job.max_attempts, stored.job.options) == (3, {"k": VALUE})
        assert await backend.next_firing() == clock.now() + seconds(90)
        clock.advance(90)
        [made] = await backend.fire_due_schedules()
        assert (made.schedule_id, made.queue, made.data) == ("often", "mail", {"of": "eu"})
        kept = {schedule.id: schedule for schedule in await backend.get_schedules()}
        assert kept["daily"] == stored
        assert kept["paused"].paused is True
        often = kept["often"]
        assert (often.last_job_id, often.run_count, often.updated_at) == (made.id, 1, clock.now())
        assert often.next_run_at == clock.now() + seconds(90)
        for schedule_id in ("often", "paused"):
            await backend.remove_schedule(schedule_id)
        assert await backend.next_firing() == stored.next_run_at
        await backend.remove_schedule("daily")
        assert await backend.next_firing() is None

    # -- what waits for what

    async def test_edges_are_kept_in_order_once_each_and_go_with_their_job(self, backend: Backend) -> None:
        # M-SCH-12 M-SCH-13
        for name in ("c", "a", "b"):
            await enqueue(backend, name)
        job = await enqueue(backend, "j1", depends_on=("c", "a", "b", "a"))
        assert job.depends_on == ("c", "a", "b")
        await backend.cancel_jobs(job_ids=["j1"])
        await backend.delete_jobs(job_ids=["j1"])
        again = await enqueue(backend, "j1", depends_on=("b",))
        assert again.depends_on == ("b",)
        for _ in ("b", "a", "c"):
            await backend.complete_job((await claim(backend)).id)
        assert (await claim(backend)).id == "j1"
        await backend.delete_jobs(job_ids=["b"])
        assert (await backend.get_job("j1")).depends_on == ("b",)

    # -- until it has been kept long enough

    async def test_retention_goes_through_many_queues_a_few_at_a_time_and_forgets_none(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        queues = [f"q{number}" for number in range(45)]
        await backend.enqueue_jobs([new_job(queue=queue) for queue in queues for _ in range(2)])
        await backend.set_retention("q7", finished=None)
        held = await backend.dequeue_jobs("w", limit=90)
        await backend.settle_jobs([Outcome(job.id, job.lease) for job in held])
        clock.advance(timedelta(days=7) - timedelta(microseconds=1))
        assert await backend.apply_retention() == 0
        clock.advance(timedelta(microseconds=1))
        removed = []
        while batch := await backend.apply_retention(limit=10):
            removed.append(batch)
            for queue in ("late", "later"):  # what comes meanwhile is not looked for twice, nor missed
                await enqueue(backend, queue=queue)
        assert max(removed) <= 10
        assert sum(removed) == 88
        left = {job.queue for job in await all_jobs(backend)}
        assert left == {"q7", "late", "later"}
