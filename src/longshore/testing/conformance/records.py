"""Records: every field of a job and a schedule, the notes of a running job, and the operations of a store."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend, Capabilities, Outcome, SettleReport
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, JobNotFound, JobNotInflight
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobStats
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, TRANSITIONS, JobStatus
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

VALUE = {"text": "Grüße 🚢", "list": [1, 2.5, None, True], "nested": {"deep": [{}]}, "large": 2**62}

MOVES: dict[str, Callable[[Backend, Job], Awaitable[object]]] = {
    "complete_job": lambda b, j: b.complete_job(j.id, b"1", lease=kit.lease_of(j)),
    "fail_job": lambda b, j: b.fail_job(j.id, "broken", lease=kit.lease_of(j)),
    "fail_job for later": lambda b, j: b.fail_job(j.id, "broken", retry_at=60, lease=kit.lease_of(j)),
    "bury_job": lambda b, j: b.bury_job(j.id, "broken", lease=kit.lease_of(j)),
    "stop_job": lambda b, j: b.stop_job(j.id, lease=kit.lease_of(j)),
    "mark_job_unknown_stopped": lambda b, j: b.mark_job_unknown_stopped(j.id, lease=kit.lease_of(j)),
    "release_lease": lambda b, j: b.release_lease(j.id, kit.lease_of(j)),
    "cancel_jobs": lambda b, j: b.cancel_jobs(job_ids=[j.id]),
    "update_job_status": lambda b, j: b.update_job_status(j.id, S.STOPPED),
    "mark_worker_unresponsive": lambda b, j: b.mark_worker_unresponsive(str(j.assignee_id)),
    "reset_running_jobs": lambda b, _: b.reset_running_jobs(),
}


class TestRecords:
    """Records as stored and returned."""

    # -- a job

    async def test_every_field_of_a_whole_life_is_kept(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-01 M-SQL-07 M-JOB-16
        created = clock.now()
        await kit.enqueue(backend, "first")
        await backend.complete_job((await kit.claim(backend)).id)
        await backend.enqueue_job(
            kit.new_job(
                "j1", queue="mail", type="send", payload=b'{"to": "ada"}', priority=-3, max_attempts=5, delay=10,
                depends_on=("first",), parent_id="first", schedule_id="nightly", options={"k": VALUE},
            )
        )  # fmt: skip
        clock.advance(10)
        job = await kit.claim(backend, "worker-7", queues=["mail"])
        await backend.set_progress("j1", {"page": 3}, lease=kit.lease_of(job))
        await backend.append_log("j1", "half-way", "warn", lease=kit.lease_of(job))
        assert (job.started_at, job.assigned_at, job.assignee_id) == (clock.now(), clock.now(), "worker-7")
        assert kit.lease_of(job).expires_at == clock.now() + kit.seconds(30)
        await backend.fail_job("j1", "broken", lease=kit.lease_of(job))
        clock.advance(1)
        failed = await backend.get_job("j1")
        assert (failed.error_message, failed.retry_count, failed.lease) == ("broken", 1, None)
        await backend.complete_job((await kit.claim(backend, queues=["mail"])).id, b'{"sent": true}')
        kept = await backend.get_job("j1")
        assert (kept.id, kept.queue, kept.type, kept.data, kept.priority) == ("j1", "mail", "send", {"to": "ada"}, -3)
        assert (kept.status, kept.executions, kept.retry_count, kept.max_attempts) == (S.COMPLETED, 2, 1, 5)
        assert (kept.created_at, kept.updated_at) == (created, clock.now())
        assert (kept.run_at, kept.started_at, kept.finalized_at) == (None, created + kit.seconds(10), clock.now())
        assert (kept.result, kept.error_message, kept.progress) == (b'{"sent": true}', "", {"page": 3})
        assert (kept.schedule_id, kept.depends_on, kept.parent_id) == ("nightly", ("first",), "first")
        assert kept.options == {"k": VALUE}
        [line] = await backend.read_logs("j1")
        assert (line.message, line.level, line.at) == ("half-way", "warn", created + kit.seconds(10))

    async def test_required_fields_are_set_or_the_job_is_refused(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-02
        job = await kit.enqueue(backend)
        must = (job.queue, job.type, job.status, job.priority, job.executions, job.max_attempts)
        assert must == ("default", "email", S.INITIAL_PENDING, 0, 0, 0)
        assert (job.created_at, job.updated_at) == (clock.now(), clock.now())
        for missing in ({"type": ""}, {"queue": ""}, {"priority": None}, {"max_attempts": None}, {"status": None}):
            with pytest.raises(InvalidArgument):
                await backend.enqueue_job(kit.new_job("incomplete", **missing))
        assert [kept.id for kept in await kit.all_jobs(backend)] == [job.id]

    async def test_times_come_back_to_the_microsecond_and_in_utc(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-03 X-116
        planned = clock.now().replace(microsecond=123_457) + timedelta(days=9)
        elsewhere = planned.astimezone(tz=None)
        await kit.enqueue(backend, "j1", run_at=elsewhere, expires_at=planned + timedelta(microseconds=1))
        job = await backend.get_job("j1")
        assert job.run_at == planned
        assert job.expires_at == planned + timedelta(microseconds=1)
        assert {kit.moment(at).tzinfo for at in (job.run_at, job.expires_at, job.created_at)} == {UTC}
        clock.set(planned - timedelta(microseconds=1))
        assert await backend.dequeue_jobs("w") == []
        clock.set(planned)
        assert (await kit.claim(backend)).started_at == planned

    async def test_any_json_is_kept_as_it_is(self, backend: Backend) -> None:
        # M-SQL-07 M-JOB-04 M-JOB-07 M-JOB-08
        await kit.enqueue(backend, "j1", payload=b'[1, {"a": null}]')
        job = await kit.claim(backend)
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
        await kit.enqueue(backend, "j1")
        clock.advance(1)
        job = await kit.claim(backend)
        assert job.updated_at == (await backend.get_job("j1")).updated_at == clock.now()
        clock.advance(1)
        await MOVES[verb](backend, job)
        assert (await backend.get_job("j1")).updated_at == clock.now()

    async def test_changing_a_copy_of_a_job_does_not_change_the_store(self, backend: Backend) -> None:
        # M-FUT-12
        job = await kit.enqueue(backend, "j1", tags=["eu"], options={"k": [1]})
        with pytest.raises(dataclasses.FrozenInstanceError):
            job.priority = 9  # type: ignore[misc]  # it must be read-only
        assert job.replace(priority=9, status=S.COMPLETED).priority == 9
        assert await backend.get_job("j1") == job
        assert not [name for name in dir(job) if asyncio.iscoroutinefunction(getattr(job, name, None))]

    # -- filters

    async def test_jobs_are_found_by_what_they_are_known_by(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCH-04 M-SCH-05 M-SCH-06 M-SCH-07 M-SCH-08 M-SCH-09
        await kit.enqueue(backend, "parent")
        await kit.enqueue(backend, "child", parent_id="parent", queue="mail")
        await kit.enqueue(backend, "repeated", schedule_id="nightly", queue="mail", delay=60)
        await kit.enqueue(backend, "urgent", priority=-1, queue="mail")
        held = await kit.claim(backend, "worker-7", queues=["default"])

        async def found(**wanted: object) -> list[str]:
            return [job.id for job in await kit.all_jobs(backend, JobFilter(**wanted))]  # type: ignore[arg-type]  # by name

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
        sample = kit.new_job(queue="mail", type="report", payload=b'{"of": "eu"}', max_attempts=3, options={"k": VALUE})
        daily = Repeat(cron="30 6 * * *", tz="Europe/Oslo", limit=2, start=start, end=end)
        stored = await backend.put_schedule(Schedule(id="daily", job=sample, repeat=daily))
        await backend.put_schedule(Schedule(id="paused", job=sample, repeat=Repeat(every=60), paused=True))
        await backend.put_schedule(Schedule(id="often", job=sample, repeat=Repeat(every=90)))
        assert (stored.repeat, stored.paused, stored.created_at) == (daily, False, clock.now())
        assert (stored.job.queue, stored.job.type, stored.job.data) == ("mail", "report", {"of": "eu"})
        assert (stored.job.max_attempts, stored.job.options) == (3, {"k": VALUE})
        assert await backend.next_firing() == clock.now() + kit.seconds(90)
        clock.advance(90)
        [made] = await backend.fire_due_schedules()
        assert (made.schedule_id, made.queue, made.data) == ("often", "mail", {"of": "eu"})
        kept = {schedule.id: schedule for schedule in await backend.get_schedules()}
        assert kept["daily"] == stored
        assert kept["paused"].paused is True
        often = kept["often"]
        assert (often.last_job_id, often.run_count, often.updated_at) == (made.id, 1, clock.now())
        assert often.next_run_at == clock.now() + kit.seconds(90)
        for schedule_id in ("often", "paused"):
            await backend.remove_schedule(schedule_id)
        assert await backend.next_firing() == stored.next_run_at
        await backend.remove_schedule("daily")
        assert await backend.next_firing() is None

    # -- dependencies

    async def test_edges_are_kept_in_order_once_each_and_go_with_their_job(self, backend: Backend) -> None:
        # M-SCH-12 M-SCH-13
        for name in ("c", "a", "b"):
            await kit.enqueue(backend, name)
        job = await kit.enqueue(backend, "j1", depends_on=("c", "a", "b", "a"))
        assert job.depends_on == ("c", "a", "b")
        await backend.cancel_jobs(job_ids=["j1"])
        await backend.delete_jobs(job_ids=["j1"])
        again = await kit.enqueue(backend, "j1", depends_on=("b",))
        assert again.depends_on == ("b",)
        for _ in ("b", "a", "c"):
            await backend.complete_job((await kit.claim(backend)).id)
        assert (await kit.claim(backend)).id == "j1"
        await backend.delete_jobs(job_ids=["b"])
        assert (await backend.get_job("j1")).depends_on == ("b",)

    # -- retention

    async def test_retention_reaches_every_queue(self, backend: Backend, clock: HeldClock) -> None:
        queues = [f"q{number}" for number in range(45)]
        await backend.enqueue_jobs([kit.new_job(queue=queue) for queue in queues for _ in range(2)])
        await backend.set_retention("q7", finished=None)
        held = await backend.dequeue_jobs("w", limit=90)
        await backend.settle_jobs([Outcome(job.id, job.lease) for job in held])
        clock.advance(timedelta(days=7) - timedelta(microseconds=1))
        assert await backend.apply_retention() == 0
        clock.advance(timedelta(microseconds=1))
        removed = []
        while batch := await backend.apply_retention(limit=10):
            removed.append(batch)
            for queue in ("late", "later"):  # a queue added meanwhile is neither visited twice nor missed
                await kit.enqueue(backend, queue=queue)
        assert max(removed) <= 10
        assert sum(removed) == 88
        left = {job.queue for job in await kit.all_jobs(backend)}
        assert left == {"q7", "late", "later"}


JSON_VALUES: list[Any] = [
    0,
    100,
    42.5,
    -0.0,
    2**63 - 1,
    -(2**63),
    True,
    None,
    "text with 🐙, zażółć and \x00",
    {"page": 3, "of": [1, None, {"deep": True}], "": "empty key", "🐙": "odd key"},
    [],
]


class TestNotes:
    """`set_progress`, `append_log`, `read_logs`, `save_checkpoint`; the lease tests cover their fences."""

    @pytest.mark.parametrize("value", JSON_VALUES, ids=repr)
    async def test_progress_is_the_last_json_value(self, backend: Backend, clock: HeldClock, value: Any) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await backend.set_progress(job.id, "something else", lease=kit.lease_of(job))
        clock.advance(1)
        await backend.set_progress(job.id, value, lease=kit.lease_of(job))
        after = await backend.get_job(job.id)
        assert repr(after.progress) == repr(value)
        assert after == job.replace(progress=after.progress, updated_at=clock.now())
        assert await kit.story(backend, job.id) == ["job.added", "job.active", "job.progress", "job.progress"]

    async def test_log_lines_have_number_time_and_level(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        for level in ("debug", "info", "warn", "error"):
            await backend.append_log(job.id, f"a line of {level}", level, lease=kit.lease_of(job))
            clock.advance(1)
        lines = await backend.read_logs(job.id)
        assert [(line.number, line.level, line.message) for line in lines] == [
            (1, "debug", "a line of debug"),
            (2, "info", "a line of info"),
            (3, "warn", "a line of warn"),
            (4, "error", "a line of error"),
        ]
        assert [line.at - lines[0].at for line in lines] == [kit.seconds(n) for n in range(4)]
        assert [line.number for line in await backend.read_logs(job.id, after=2)] == [3, 4]
        assert await backend.read_logs(job.id, after=4) == []
        event = (await kit.history(backend, job.id))[-1]
        assert (event.event, event.detail["level"]) == ("job.log_added", "error")

    async def test_a_line_is_info_if_nothing_is_said(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await backend.append_log(job.id, "")
        [line] = await backend.read_logs(job.id)
        assert (line.level, line.message) == ("info", "")

    async def test_a_level_that_is_none_is_refused(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await kit.refused(backend, backend.append_log(job.id, "psst", "secret"), field="level")

    async def test_each_job_has_its_own_log(self, backend: Backend) -> None:
        a, b = await kit.job_in(backend, S.RUNNING), await kit.job_in(backend, S.RUNNING)
        await backend.append_log(a.id, "of a")
        await backend.append_log(b.id, "of b")
        assert [(line.number, line.message) for line in await backend.read_logs(b.id)] == [(1, "of b")]

    async def test_any_caller_may_add_a_log_line_even_to_a_final_job(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.COMPLETED)
        await backend.append_log(job.id, "checked by hand")
        assert len(await backend.read_logs(job.id)) == 1

    async def test_the_log_of_an_unknown_job_is_not_found(self, backend: Backend) -> None:
        with pytest.raises(JobNotFound):
            await backend.read_logs("nobody")

    @pytest.mark.parametrize("value", [*JSON_VALUES, b"", b"\x00\xff raw", b"null"], ids=repr)
    async def test_the_next_claim_has_the_checkpoint(self, backend: Backend, clock: HeldClock, value: Any) -> None:
        # X-67
        job = await kit.job_in(backend, S.RUNNING)
        await backend.save_checkpoint(job.id, {"page": 0}, lease=kit.lease_of(job))
        await backend.save_checkpoint(job.id, value, lease=kit.lease_of(job))
        clock.advance(30)
        await backend.reclaim_expired_leases()
        again = await kit.claim(backend, "worker-2")
        assert repr(again.checkpoint) == repr(value)

    async def test_a_checkpoint_writes_no_event(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await backend.save_checkpoint(job.id, 1)
        assert await kit.story(backend, job.id) == ["job.added", "job.active"]

    @pytest.mark.parametrize("status", sorted(FINAL))
    async def test_a_job_that_is_over_takes_no_progress_and_no_checkpoint(self, backend: Backend, status: S) -> None:
        job = await kit.job_in(backend, status)
        await kit.refused(backend, backend.set_progress(job.id, 100), JobNotInflight)
        await kit.refused(backend, backend.save_checkpoint(job.id, 100), JobNotInflight)

    async def test_progress_log_and_checkpoint_survive_every_turn(self, backend: Backend) -> None:
        await kit.enqueue(backend, "j1")
        await kit.claim(backend)
        await backend.set_progress("j1", 30)
        await backend.append_log("j1", "first try")
        await backend.save_checkpoint("j1", {"page": 3})
        await backend.fail_job("j1", "busy")
        again = await kit.claim(backend)
        assert (again.progress, again.checkpoint) == (30, {"page": 3})
        await backend.append_log("j1", "second try")
        await backend.complete_job("j1")
        done = await backend.get_job("j1")
        assert (done.progress, done.checkpoint) == (30, {"page": 3})
        assert [line.number for line in await backend.read_logs("j1")] == [1, 2]


DOCUMENTED = {
    "enqueue_job": ("job",),
    "enqueue_jobs": ("jobs", "connection"),
    "dequeue_jobs": ("assignee_id", "tags", "limit", "queues", "types", "lease"),
    "complete_job": ("job_id", "result", "lease"),
    "fail_job": ("job_id", "error", "retry_at", "lease"),
    "stop_job": ("job_id", "error", "lease"),
    "stop_job_with_retry": ("job_id", "error", "lease"),
    "mark_job_unknown_stopped": ("job_id", "error", "lease"),
    "update_job_status": ("job_id", "status", "result", "error"),
    "cancel_jobs": ("tags", "job_ids", "queue", "held"),
    "acknowledge_cancellation": ("job_id", "was_executing", "lease"),
    "mark_worker_unresponsive": ("assignee_id",),
    "get_job": ("job_id",),
    "get_job_stats": ("tags", "queue"),
    "reset_running_jobs": ("queue",),
    "cleanup_expired_jobs": ("ttl", "queue"),
    "delete_jobs": ("tags", "job_ids", "queue"),
    "close": (),
}
"""The operations of the storage document by their names here; leases, queues and others belong to this contract."""

BEYOND_IT = (
    *("accept_jobs", "extend_leases", "release_lease", "bury_job", "settle_jobs", "reclaim_expired_leases"),
    *("list_jobs", "count_jobs", "retry_job", "promote_job", "set_progress", "append_log", "read_logs"),
    *("save_checkpoint", "read_events", "wait_for_change", "pause_queue", "resume_queue", "set_limits", "list_queues"),
    *("put_schedule", "get_schedules", "remove_schedule", "fire_due_schedules", "heartbeat_worker", "list_workers"),
    *("get_schedule", "pause_schedule", "resume_schedule", "run_schedule"),
    *("end_of_events", "record_worker_event", "add_jobs", "enqueue_new_jobs", "now", "count_delayed", "next_due"),
)


class TestSurface:
    """What a caller may rely on before the first job is stored."""

    async def test_every_documented_verb_is_there_with_its_parameters(self, backend: Backend) -> None:
        # B-API-01 B-UPD-09
        assert isinstance(backend, Backend)
        for name, parameters in DOCUMENTED.items():
            assert tuple(inspect.signature(getattr(backend, name)).parameters) == parameters, name
        assert set(DOCUMENTED) | set(BEYOND_IT) <= Backend.__abstractmethods__

    async def test_every_verb_is_awaited_so_that_every_call_can_be_cancelled(self, backend: Backend) -> None:
        # B-API-02
        for name in sorted(Backend.__abstractmethods__):
            assert inspect.iscoroutinefunction(getattr(backend, name)), name

    async def test_a_store_says_what_it_can_do_beyond_the_contract(self, backend: Backend) -> None:
        assert isinstance(backend.capabilities, Capabilities)

    async def test_the_shared_records_come_back_from_the_verbs(self, backend: Backend, clock: HeldClock) -> None:
        # B-CON-10 B-OBS-01 B-OBS-02 B-OBS-03
        await kit.enqueue(backend, "j1")
        claimed = await kit.claim(backend)
        freed = await backend.fail_job("j1", "no route to host", lease=kit.lease_of(claimed))
        job = await backend.get_job("j1")
        assert isinstance(job, Job)
        assert (job.status, job.assignee_id, job.retry_count) == (S.FAILED_RETRY, "worker-1", 1)
        assert job.created_at == job.assigned_at == job.started_at == job.last_retry_at == clock.now()
        assert freed == {"worker-1": 1}
        stats = await backend.get_job_stats()
        assert isinstance(stats, JobStats)
        assert stats.failed_jobs == 1
        assert isinstance(await backend.settle_jobs([]), SettleReport)

    async def test_times_come_back_in_utc_to_the_microsecond(self, backend: Backend, clock: HeldClock) -> None:
        # X-116
        clock.set(datetime(2026, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC))
        job = await kit.enqueue(backend)
        assert job.created_at == datetime(2026, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC)
        assert job.created_at.utcoffset() == UTC.utcoffset(None)

    async def test_the_statuses_and_what_they_mean_are_the_documented_ones(self) -> None:
        # B-CON-07 B-CON-09 X-06 T-ST-05
        assert {S.INITIAL_PENDING, S.FAILED_RETRY, S.UNKNOWN_RETRY} == ELIGIBLE
        assert {S.RUNNING, S.CANCELLING} == HOLDS_CAPACITY
        assert {S.COMPLETED, S.STOPPED, S.UNSCHEDULED, S.UNKNOWN_STOPPED, S.DEAD} == FINAL
        assert len(JobStatus) == 12

    async def test_no_arrow_leads_back_to_initial_pending_from_a_job_that_was_there(self) -> None:
        # B-INV-03
        assert {arrow.source for arrow in TRANSITIONS if arrow.target is S.INITIAL_PENDING} == {
            S.CREATED,
            S.WAITING_CHILDREN,
        }
