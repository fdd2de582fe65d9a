"""Enqueue: a job is stored whole and once, under its id and its idempotency key, and accepted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import DuplicateJob, InvalidTransition, JobNotFound, KeyReused
from longshore.core.job import Job
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.scenarios import S

DAY = timedelta(days=1)


class TestSubmission:
    """`enqueue_job`, `enqueue_jobs`, `accept_jobs`: identity, stored fields, two-phase submit."""

    # -- one job

    async def test_a_job_is_stored_under_its_own_id_and_is_there_at_once(self, backend: Backend) -> None:
        # B-ENQ-05 B-ENQ-07
        assert await backend.enqueue_job(kit.new_job("j1", tags=["eu"])) == "j1"
        assert (await backend.get_job("j1")).status is S.INITIAL_PENDING
        stats = await backend.get_job_stats(["eu"])
        assert (stats.total_jobs, stats.pending_jobs) == (1, 1)
        assert (await kit.claim(backend)).id == "j1"

    async def test_everything_a_caller_may_set_is_stored_as_given(self, backend: Backend, clock: HeldClock) -> None:
        # B-ENQ-06 B-GET-01 T-REC-01 T-REC-02 T-REC-03 T-REC-04 T-REC-05 T-REC-06 T-REC-08
        given = Job(
            id="order 7/ø",
            type="invoice",
            payload=b'\x00\xff {"not": json',
            queue="billing",
            tags=("eu", "slow"),
            priority=-3,
            lifo=True,
            run_at=clock.now() + kit.seconds(90),
            delay=kit.seconds(30),
            expires_at=clock.now() + DAY,
            timeout=kit.seconds(12.5),
            max_attempts=4,
            max_crashes=2,
            idempotency_key="order-7",
            concurrency_key="customer-1",
            parent_id="order",
            on_dependency_failure="stop",
            schedule_id="nightly",
            options={"backoff": {"type": "fixed", "delay": 3}, "text": "zażółć", "list": [1, 2.5, None, True]},
            created_at=clock.now() - DAY,
        )
        await backend.enqueue_job(given)
        stored = await backend.get_job(given.id)
        assert stored == given.replace(uid=stored.uid, updated_at=clock.now())
        assert stored.uid > 0

    async def test_a_job_that_says_nothing_gets_the_plain_defaults(self, backend: Backend, clock: HeldClock) -> None:
        # T-REC-08 X-42: unset is 0, no limit
        job = await kit.enqueue(backend)
        assert (job.queue, job.payload, job.tags, job.priority, job.lifo) == ("default", b"null", (), 0, False)
        assert job.max_attempts == 0
        assert (job.max_crashes, job.timeout, job.run_at, job.expires_at) == (None, None, None, None)
        assert (job.created_at, job.started_at, job.finalized_at) == (clock.now(), None, None)

    async def test_a_new_job_has_no_history_whatever_its_record_says(self, backend: Backend, clock: HeldClock) -> None:
        # X-12
        later = clock.now() + DAY
        claimed = kit.new_job(
            "j1", executions=5, retry_count=4, crashes=3, epoch=2, assignee_id="another", result=b"42", uid=77
        ).replace(started_at=later, finalized_at=later, last_retry_at=later, assigned_at=later, error_message="old")
        job = await kit.enqueue(backend, "plain")
        await backend.enqueue_job(claimed)
        stored = await backend.get_job("j1")
        assert stored == job.replace(id="j1", uid=stored.uid)
        assert stored.uid != job.uid

    async def test_the_store_keeps_a_copy_that_the_caller_cannot_reach(self, backend: Backend) -> None:
        # X-12
        options: dict[str, Any] = {"keep": [1]}
        await backend.enqueue_job(kit.new_job("j1", options=options))
        options["keep"].append(2)
        read = await backend.get_job("j1")
        assert dict(read.options) == {"keep": [1]}
        assert isinstance(read.options, dict)
        read.options["keep"].append(3)
        assert dict((await backend.get_job("j1")).options) == {"keep": [1]}

    async def test_tags_given_twice_are_stored_once(self, backend: Backend) -> None:
        # X-12
        assert (await kit.enqueue(backend, tags=("eu", "eu", "slow", "eu"))).tags == ("eu", "slow")

    @pytest.mark.parametrize("status", [s for s in kit.EVERY_STATUS if s not in (S.INITIAL_PENDING, S.CREATED)])
    async def test_a_new_job_in_another_status_is_refused(self, backend: Backend, status: S) -> None:
        # B-ENQ-03 B-ENQS-02 X-12
        await kit.refused(backend, backend.enqueue_job(kit.new_job(status=status)), field="status")
        await kit.refused(
            backend, backend.enqueue_jobs([kit.new_job(), kit.new_job(status=status)]), field="jobs[1].status"
        )

    @pytest.mark.parametrize("nothing", [None, {"id": "j1", "type": "email"}, "j1"])
    async def test_only_a_job_can_be_enqueued(self, backend: Backend, nothing: Any) -> None:
        # B-ENQ-01 B-ENQS-02 B-ERR-05
        await kit.refused(backend, backend.enqueue_job(nothing), field="job")
        await kit.refused(backend, backend.enqueue_jobs([kit.new_job(), nothing]), field="jobs[1].job")

    async def test_an_empty_id_is_refused(self, backend: Backend) -> None:
        # B-ENQ-02 B-ENQS-02 B-ENQ-10
        await kit.refused(backend, backend.enqueue_job(kit.new_job("")), field="id")
        await kit.refused(
            backend, backend.enqueue_jobs([kit.new_job(), kit.new_job(), kit.new_job("")]), field="jobs[2].id"
        )

    async def test_a_second_job_with_the_same_id_is_refused_and_the_first_is_untouched(self, backend: Backend) -> None:
        # B-ENQ-04 B-ENQ-08 B-ERR-06 X-112
        first = await kit.enqueue(backend, "j1", payload=b"1", tags=["a"])
        caught = await kit.refused(
            backend, backend.enqueue_job(kit.new_job("j1", payload=b"2", tags=["b"], queue="other")), DuplicateJob
        )
        assert list(caught.job_ids) == ["j1"]
        assert await backend.get_job("j1") == first

    async def test_an_id_may_come_again_after_its_job_was_removed_but_a_uid_never(self, backend: Backend) -> None:
        first = await kit.job_in(backend, S.COMPLETED, "j1")
        await backend.delete_jobs(job_ids=["j1"])
        second = await kit.enqueue(backend, "j1")
        assert second.uid > first.uid
        assert second.status is S.INITIAL_PENDING

    # -- many jobs

    async def test_an_empty_batch_stores_nothing_and_is_not_an_error(self, backend: Backend) -> None:
        # B-ENQS-01
        async with kit.nothing_changes(backend):
            assert await backend.enqueue_jobs([]) == []

    async def test_a_batch_is_stored_whole_and_its_ids_come_back_in_input_order(self, backend: Backend) -> None:
        # B-ENQS-05 B-ENQS-06
        ids = ["c", "a", "d", "b"]
        assert await backend.enqueue_jobs([kit.new_job(job_id, tags=["batch"]) for job_id in ids]) == ids
        assert (await backend.get_job_stats(["batch"])).pending_jobs == 4
        assert await kit.claimable(backend) == ids

    async def test_an_id_twice_in_a_batch_stops_the_whole_batch(self, backend: Backend) -> None:
        # B-ENQS-03 B-ENQS-07 B-ENQS-08 B-ENQS-10 B-ERR-07 X-02
        caught = await kit.refused(
            backend,
            backend.enqueue_jobs([kit.new_job("a"), kit.new_job("b"), kit.new_job("c"), kit.new_job("b")]),
            DuplicateJob,
        )
        assert list(caught.job_ids) == ["b"]
        assert "'b'" in str(caught)

    async def test_ids_that_are_stored_already_stop_the_whole_batch_and_all_are_named(self, backend: Backend) -> None:
        # B-ENQS-04 B-ENQS-07 B-ENQS-08 B-ENQS-10 B-ERR-07 B-INV-02 X-02
        await backend.enqueue_jobs([kit.new_job("a"), kit.new_job("c")])
        caught = await kit.refused(
            backend, backend.enqueue_jobs([kit.new_job(job_id) for job_id in "abcde"]), DuplicateJob
        )
        assert list(caught.job_ids) == ["a", "c"]

    async def test_every_duplicate_id_of_a_batch_is_named_once_in_input_order(self, backend: Backend) -> None:
        # M5 B-ENQS-03 B-ENQS-04 B-ENQS-10
        await backend.enqueue_jobs([kit.new_job("a"), kit.new_job("c"), kit.new_job("keyed", idempotency_key="known")])
        gone = await kit.job_in(backend, S.COMPLETED, "gone")
        await backend.delete_jobs(job_ids=[gone.id])
        batch = [kit.new_job(job_id) for job_id in ("e", "c", "b", "gone", "b", "a", "c", "b")]
        for enqueue_all in (backend.enqueue_jobs, backend.enqueue_new_jobs):
            caught = await kit.refused(backend, enqueue_all(batch), DuplicateJob)
            assert caught.job_ids == ["c", "b", "a"]
        keys = [kit.new_job("x", idempotency_key="known"), kit.new_job("y", idempotency_key="twice")]
        caught = await kit.refused(
            backend,
            backend.enqueue_new_jobs([batch[1], *keys, kit.new_job("z", idempotency_key="twice"), *batch]),
            DuplicateJob,
        )
        assert caught.job_ids == ["c", "keyed", "y", "b", "a"]
        others = [kit.new_job(job_id, payload=b"another") for job_id in ("c", "e", "a", "c")]
        caught = await kit.refused(backend, backend.add_jobs(others, same_only=True), DuplicateJob)
        assert caught.job_ids == ["c", "a"]

    async def test_a_large_batch_names_every_duplicate_id_and_its_message_stays_short(self, backend: Backend) -> None:
        # M5 B-ENQS-10
        ids = [f"{number:03}".rjust(255, "x") for number in range(300)]
        await backend.enqueue_jobs([kit.new_job(job_id) for job_id in ids[100:]])
        caught = await kit.refused(
            backend, backend.enqueue_jobs([kit.new_job(job_id) for job_id in [*ids, *ids[:50]]]), DuplicateJob
        )
        assert caught.job_ids == [*ids[:50], *ids[100:]]
        assert "and 240 more" in str(caught)
        assert len(str(caught)) < 4096

    async def test_one_bad_job_stops_the_whole_batch_and_the_error_says_which(self, backend: Backend) -> None:
        # B-ENQS-02 B-ENQS-07 B-ENQS-10
        await kit.refused(
            backend,
            backend.enqueue_jobs([kit.new_job(), kit.new_job(priority=2**40), kit.new_job()]),
            field="jobs[1].priority",
        )

    # -- idempotency keys

    async def test_a_repeated_key_gives_the_first_job_and_changes_nothing(self, backend: Backend) -> None:
        # T-M6-01 X-50
        assert await backend.enqueue_job(kit.new_job("first", idempotency_key="order-7", payload=b"1")) == "first"
        async with kit.nothing_changes(backend):
            assert await backend.enqueue_job(kit.new_job("second", idempotency_key="order-7", payload=b"2")) == "first"
            again = [kit.new_job("third", idempotency_key="order-7"), kit.new_job("first", idempotency_key="order-7")]
            assert await backend.enqueue_jobs(again) == ["first", "first"]

    async def test_a_key_twice_in_one_batch_makes_one_job(self, backend: Backend) -> None:
        # T-M6-01
        batch = [kit.new_job("a", idempotency_key="k"), kit.new_job("b"), kit.new_job("c", idempotency_key="k")]
        assert await backend.enqueue_jobs(batch) == ["a", "b", "a"]
        assert {job.id for job in await kit.all_jobs(backend)} == {"a", "b"}

    async def test_a_key_belongs_to_its_queue(self, backend: Backend) -> None:
        # X-50
        await backend.enqueue_job(kit.new_job("a", queue="mail", idempotency_key="k"))
        assert await backend.enqueue_job(kit.new_job("b", queue="bills", idempotency_key="k")) == "b"

    @pytest.mark.parametrize("status", [S.RUNNING, S.COMPLETED, S.DEAD, S.UNSCHEDULED])
    async def test_a_key_answers_wherever_its_job_stands(self, backend: Backend, status: S) -> None:
        # X-50
        await kit.job_in(backend, status, "a", idempotency_key="k")
        assert await backend.enqueue_job(kit.new_job("b", idempotency_key="k")) == "a"
        assert await kit.status_of(backend, "a") is status

    async def test_a_removed_jobs_key_is_kept_for_a_day(self, backend: Backend, clock: HeldClock) -> None:
        await kit.job_in(backend, S.COMPLETED, "a", idempotency_key="k")
        await backend.delete_jobs(job_ids=["a"])
        clock.advance(DAY - kit.seconds(1))
        async with kit.nothing_changes(backend):
            assert await backend.enqueue_job(kit.new_job("b", idempotency_key="k")) == "a"
        clock.advance(kit.seconds(2))
        assert await backend.enqueue_job(kit.new_job("b", idempotency_key="k")) == "b"
        assert await backend.enqueue_job(kit.new_job("c", idempotency_key="k")) == "b"

    # -- two-phase submit

    async def test_a_created_job_never_runs_until_accepted(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.enqueue(backend, "j1", status=S.CREATED)
        assert job.status is S.CREATED
        clock.advance(DAY)
        await backend.reclaim_expired_leases()
        await backend.reset_running_jobs()
        assert await kit.claimable(backend) == []
        assert await kit.status_of(backend, "j1") is S.CREATED
        await backend.accept_jobs(["j1"])
        assert await kit.claimable(backend) == ["j1"]
        assert (await kit.story(backend, "j1"))[:2] == ["job.added", "job.accepted"]

    async def test_a_repeated_key_of_a_created_job_gives_it_back_and_does_not_accept_it(self, backend: Backend) -> None:
        # X-64
        await kit.enqueue(backend, "first", status=S.CREATED, idempotency_key="k")
        async with kit.nothing_changes(backend):
            assert await backend.enqueue_job(kit.new_job("second", idempotency_key="k")) == "first"
        assert await kit.claimable(backend) == []

    async def test_accepting_takes_all_or_none(self, backend: Backend) -> None:
        await backend.enqueue_jobs(
            [kit.new_job("a", status=S.CREATED), kit.new_job("b", status=S.CREATED), kit.new_job("c")]
        )
        await kit.refused(backend, backend.accept_jobs(["a", "nobody"]), JobNotFound)
        await kit.refused(backend, backend.accept_jobs(["a", "c"]), InvalidTransition)
        await backend.accept_jobs(["b", "a", "a"])
        assert await kit.status_of(backend, "a") is await kit.status_of(backend, "b") is S.INITIAL_PENDING

    async def test_an_accepted_job_waits_for_run_at_and_dependencies(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "later", status=S.CREATED, run_at=60)
        await kit.enqueue(backend, "waiting", status=S.CREATED, depends_on=["later"])
        await backend.accept_jobs(["later", "waiting"])
        assert await kit.story(backend, "later") == ["job.added", "job.accepted", "job.delayed"]
        assert await kit.status_of(backend, "waiting") is S.WAITING_CHILDREN
        assert await kit.claimable(backend) == []
        clock.advance(60)
        assert (await kit.claim(backend)).id == "later"

    # -- delayed

    async def test_a_job_is_ready_or_scheduled_by_its_run_at(self, backend: Backend, clock: HeldClock) -> None:
        # T-ENQ-01 T-ST-01 T-ST-02 X-87
        await kit.enqueue(backend, "no time")
        await kit.enqueue(backend, "past", run_at=clock.now() - DAY)
        await kit.enqueue(backend, "now", run_at=clock.now())
        await kit.enqueue(backend, "future", run_at=clock.now() + kit.seconds(10))
        await kit.enqueue(backend, "in a while", run_at=10)
        assert sorted(await kit.claimable(backend)) == ["no time", "now", "past"]
        assert (await backend.get_job("in a while")).run_at == clock.now() + kit.seconds(10)
        clock.advance(10)
        assert len(await kit.claimable(backend)) == 5

    async def test_a_delay_counts_from_the_stores_clock(self, backend: Backend, clock: HeldClock) -> None:
        # X-87: if both are given, run_at applies
        job = await kit.enqueue(backend, "a", delay=30)
        assert (job.delay, job.run_at) == (kit.seconds(30), clock.now() + kit.seconds(30))
        both = await kit.enqueue(backend, "b", delay=30, run_at=clock.now() + kit.seconds(5))
        assert (both.delay, both.run_at) == (kit.seconds(30), clock.now() + kit.seconds(5))

    async def test_a_job_for_later_writes_that_it_was_added_and_that_it_was_delayed(self, backend: Backend) -> None:
        await kit.enqueue(backend, "now")
        await kit.enqueue(backend, "later", run_at=60)
        assert await kit.story(backend, "now") == ["job.added"]
        assert await kit.story(backend, "later") == ["job.added", "job.delayed"]

    async def test_the_first_event_names_the_jobs_parent_schedule_and_key(self, backend: Backend) -> None:
        many = [kit.new_job(f"m{number}", concurrency_key=f"k'\"{number}") for number in range(150)]
        belongs = {"concurrency_key": "eu", "schedule_id": "nightly", "parent_id": "flow"}
        await backend.enqueue_jobs(
            [kit.new_job("alone"), kit.new_job("keyed", concurrency_key="eu"), kit.new_job("all", **belongs)]
        )
        await backend.enqueue_jobs(many)
        details = {event.job_id: event.detail for event in await kit.log_of(backend)}
        assert not details["alone"]
        assert details["keyed"] == {"key": "eu"}
        assert details["all"] == {"key": "eu", "schedule_id": "nightly", "parent_id": "flow"}
        assert all(details[job.id] == {"key": job.concurrency_key} for job in many)

    async def test_a_job_may_be_dated_long_before_1970(self, backend: Backend) -> None:
        beginning = datetime(1, 1, 1, tzinfo=UTC)
        await kit.enqueue(backend, "new")
        assert (await kit.enqueue(backend, "old", created_at=beginning)).created_at == beginning
        assert await kit.claimable(backend) == ["old", "new"]

    async def test_a_job_may_be_due_in_the_year_9999(self, backend: Backend, clock: HeldClock) -> None:
        end = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        assert (await kit.enqueue(backend, "far", run_at=end)).run_at == end
        assert await kit.claimable(backend) == []
        clock.set(end)
        assert (await kit.claim(backend, lease=None)).id == "far"


async def add(backend: Backend, *jobs: Job) -> list[Job]:
    """Add the jobs; check that every answer equals the job as read now."""
    answers = await backend.add_jobs(jobs)
    assert answers == [await backend.get_job(job.id) for job in answers]
    return answers


class TestAdding:
    """`add_jobs`."""

    async def test_a_new_job_is_answered_as_it_is_stored(self, backend: Backend, clock: HeldClock) -> None:
        # B-ENQ-01
        plain, full = await add(
            backend,
            kit.new_job("plain"),
            kit.new_job(
                "full",
                queue="mail",
                payload=b'{"to": "ada"}',
                tags=["eu", "eu", "slow"],
                priority=-3,
                lifo=True,
                delay=60,
                expires_at=timedelta(hours=1),
                timeout=10,
                max_attempts=5,
                max_crashes=3,
                idempotency_key="once",
                concurrency_key="customer 7",
                parent_id="mother",
                schedule_id="nightly",
                options={"backoff": {"type": "fixed", "delay": 5.0}},
            ),
        )
        assert (plain.id, plain.status, plain.created_at) == ("plain", S.INITIAL_PENDING, clock.now())
        assert (full.tags, full.run_at, full.timeout) == (
            ("eu", "slow"),
            clock.now() + kit.seconds(60),
            kit.seconds(10),
        )
        assert 0 < plain.uid < full.uid
        assert await kit.story(backend, "full") == ["job.added", "job.delayed"]
        assert await add(backend) == []

    async def test_jobs_that_are_held_back_or_wait_are_answered_so(self, backend: Backend) -> None:
        created, child, parent = await add(
            backend,
            kit.new_job("created", status=S.CREATED),
            kit.new_job("child", depends_on=["parent"]),
            kit.new_job("parent"),
        )
        assert [created.status, child.status, parent.status] == [S.CREATED, S.WAITING_CHILDREN, S.INITIAL_PENDING]
        assert child.depends_on == ("parent",)

    async def test_jobs_that_are_over_as_they_come_are_answered_so(self, backend: Backend) -> None:
        dead = await kit.job_in(backend, S.DEAD)
        answers = await add(
            backend,
            kit.new_job("doomed", depends_on=[dead.id], on_dependency_failure="stop"),
            kit.new_job("with it", depends_on=["doomed"], on_dependency_failure="stop"),
            kit.new_job("not at all"),
        )
        assert [job.status.final for job in answers] == [True, True, False]

    async def test_an_id_in_use_answers_with_its_job_and_changes_nothing(self, backend: Backend) -> None:
        # X-112
        for status in (S.INITIAL_PENDING, S.RUNNING, S.COMPLETED):
            known = await kit.job_in(backend, status, f"{status}", queue="mail")
            async with kit.nothing_changes(backend):
                assert await add(backend, kit.new_job(known.id, type="other", queue="bills", priority=9)) == [known]

    async def test_known_and_new_jobs_come_together_each_in_its_place(self, backend: Backend) -> None:
        # X-112
        known = [await kit.enqueue(backend, f"known {number}", idempotency_key=f"key {number}") for number in range(3)]
        answers = await add(
            backend,
            kit.new_job("new 1"),
            kit.new_job("known 0"),
            kit.new_job("new 1", type="again"),
            kit.new_job("another", idempotency_key="key 1"),
            kit.new_job("new 2", idempotency_key="new key"),
            kit.new_job("another", idempotency_key="new key"),
            kit.new_job("known 2", idempotency_key="key 1"),
            kit.new_job("another"),
        )
        new = ["new 1", "known 0", "new 1", "known 1", "new 2", "new 2", "known 1", "another"]
        assert [job.id for job in answers] == new
        assert {job.type for job in answers} == {"email"}
        assert (answers[1], answers[3]) == (known[0], known[1])
        assert len(await kit.all_jobs(backend)) == 6

    async def test_many_known_ids_are_handled_like_one(self, backend: Backend) -> None:
        ids = [f"job {number}" for number in range(300)]
        await backend.enqueue_jobs([kit.new_job(job_id) for job_id in ids[::2]])
        answers = await backend.add_jobs([kit.new_job(job_id) for job_id in ids])
        assert [job.id for job in answers] == ids
        assert len(await kit.all_jobs(backend)) == 300

    async def test_a_key_is_known_in_its_own_queue_only(self, backend: Backend) -> None:
        mail, bill = await add(
            backend,
            kit.new_job("mail", queue="mail", idempotency_key="once"),
            kit.new_job("bill", queue="bills", idempotency_key="once"),
        )
        assert (mail.id, bill.id) == ("mail", "bill")

    async def test_the_key_of_a_removed_job_returns_its_tombstone(self, backend: Backend, clock: HeldClock) -> None:
        gone = await kit.job_in(backend, S.STOPPED, "gone", queue="mail", payload=b"1", idempotency_key="once")
        await backend.delete_jobs(job_ids=["gone"])
        await kit.enqueue(backend, "gone", type="another of this name")
        async with kit.nothing_changes(backend):
            [answer] = await backend.add_jobs([kit.new_job("new", queue="mail", idempotency_key="once")])
        assert (answer.id, answer.uid, answer.queue, answer.type) == ("gone", gone.uid, "mail", "email")
        assert (answer.status, answer.idempotency_key, answer.payload) == (S.STOPPED, "once", b"null")
        assert (answer.created_at, answer.lease) == (None, None)
        clock.advance(timedelta(hours=24))
        [answer] = await add(backend, kit.new_job("new", queue="mail", idempotency_key="once"))
        assert answer.id == "new"

    async def test_of_jobs_that_are_to_be_new_a_known_key_is_in_the_way_as_an_id_is(self, backend: Backend) -> None:
        await kit.enqueue(backend, "known", queue="mail", idempotency_key="once")
        gone = await kit.job_in(backend, S.COMPLETED, "gone", queue="mail", idempotency_key="then")
        await backend.delete_jobs(job_ids=[gone.id])
        for in_the_way, named in (
            (kit.new_job("other", queue="mail", idempotency_key="once"), "known"),
            (kit.new_job("known", queue="mail", idempotency_key="once"), "known"),
            (kit.new_job("other", queue="mail", idempotency_key="then"), "gone"),
            (kit.new_job("known"), "known"),
        ):
            error = await kit.refused(backend, backend.enqueue_new_jobs([kit.new_job("new"), in_the_way]), DuplicateJob)
            assert error.job_ids == [named]
        twins = [kit.new_job("a", idempotency_key="twice"), kit.new_job("b", idempotency_key="twice")]
        await kit.refused(backend, backend.enqueue_new_jobs(twins), DuplicateJob)
        assert await backend.enqueue_new_jobs([kit.new_job("a", idempotency_key="new")]) == ["a"]
        await kit.refused(
            backend, backend.enqueue_new_jobs([kit.new_job(), kit.new_job(priority="high")]), field="jobs[1].priority"
        )

    async def test_only_repeats_refuses_the_batch_for_a_different_job(self, backend: Backend) -> None:
        printed = {"request": "0123456789abcdef" * 2}
        await kit.enqueue(backend, "by key", idempotency_key="once", payload=b"1")
        await kit.enqueue(backend, "by request", idempotency_key="said", payload=b"1", options=printed)
        known = [
            kit.new_job("x", idempotency_key="once", payload=b"1"),
            kit.new_job("y", idempotency_key="said", payload=b"2", options=printed),
            kit.new_job("by key", payload=b"1"),
        ]
        async with kit.nothing_changes(backend):
            answers = await backend.add_jobs(known, same_only=True)
        assert [job.id for job in answers] == ["by key", "by request", "by key"]
        for other in (
            kit.new_job("x", idempotency_key="once", payload=b"2"),
            kit.new_job("x", idempotency_key="once", payload=b"1", type="another"),
            kit.new_job("y", idempotency_key="said", payload=b"1"),
            kit.new_job("y", idempotency_key="said", payload=b"1", options={"request": "f" * 32}),
        ):
            error = await kit.refused(backend, backend.add_jobs([kit.new_job("new"), other], same_only=True), KeyReused)
            assert error.job_id in ("by key", "by request")
        for other in (kit.new_job("by key", payload=b"2"), kit.new_job("by key", payload=b"1", queue="another")):
            taken = await kit.refused(
                backend, backend.add_jobs([kit.new_job("new"), other], same_only=True), DuplicateJob
            )
            assert taken.job_ids == ["by key"]
        other = kit.new_job("by key", idempotency_key="never said", payload=b"1")  # an answer would promise this key
        taken = await kit.refused(backend, backend.add_jobs([kit.new_job("new"), other], same_only=True), DuplicateJob)
        assert taken.job_ids == ["by key"]
        [new, again] = await backend.add_jobs([kit.new_job("new"), known[0]], same_only=True)
        assert (new.id, again.id) == ("new", "by key")
        await kit.refused(backend, backend.add_jobs([kit.new_job()], same_only=1), field="same_only")  # type: ignore[arg-type]  # a wrong type on purpose

    async def test_of_a_removed_job_the_request_is_remembered_with_its_key(self, backend: Backend) -> None:
        printed = {"request": "0123456789abcdef" * 2, "backoff": {"type": "fixed", "delay": 5.0}}
        for job_id, options in (("printed", printed), ("plain", {}), ("odd", {"request": "x\x00y"})):
            await kit.job_in(backend, S.COMPLETED, job_id, idempotency_key=job_id, payload=b"1", options=options)
        await backend.delete_jobs(job_ids=["printed", "plain", "odd"])
        [printed_job] = await backend.add_jobs(
            [kit.new_job(idempotency_key="printed", payload=b"2", options={"request": printed["request"]})],
            same_only=True,
        )
        assert (printed_job.id, dict(printed_job.options)) == ("printed", {"request": printed["request"]})
        await kit.refused(
            backend, backend.add_jobs([kit.new_job(idempotency_key="printed", payload=b"1")], same_only=True), KeyReused
        )
        for job_id in ("plain", "odd"):  # their requests are not remembered
            [answer] = await backend.add_jobs([kit.new_job(idempotency_key=job_id, payload=b"2")], same_only=True)
            assert (answer.id, dict(answer.options)) == (job_id, {})
        await kit.refused(
            backend, backend.add_jobs([kit.new_job(idempotency_key="plain", type="another")], same_only=True), KeyReused
        )

    async def test_an_id_whose_job_was_removed_is_free(self, backend: Backend) -> None:
        gone = await kit.job_in(backend, S.COMPLETED, "gone")
        await backend.delete_jobs(job_ids=["gone"])
        [answer] = await add(backend, kit.new_job("gone"))
        assert answer.uid > gone.uid

    async def test_one_wrong_job_stops_them_all(self, backend: Backend) -> None:
        # B-ENQS-03
        await kit.enqueue(backend, "known")
        await kit.refused(
            backend,
            backend.add_jobs([kit.new_job("known"), kit.new_job(), kit.new_job(priority="high")]),
            field="jobs[2].priority",
        )
        await kit.refused(
            backend,
            backend.add_jobs([kit.new_job("a", depends_on=["b"]), kit.new_job("b", depends_on=["a"])]),
            field="depends_on",
        )
        await kit.refused(backend, backend.add_jobs("a"), field="jobs")  # type: ignore[arg-type]  # a wrong type on purpose
        await kit.refused(backend, backend.add_jobs([kit.new_job()], connection=object()), field="connection")

    async def test_concurrent_adds_of_one_job_store_it_once(self, backend: Backend, open_backend: OpenBackend) -> None:
        # X-112
        others = [backend, open_backend()] if backend.capabilities.shared else [backend]
        for number in range(5):
            wanted = [
                kit.new_job(f"a {number}"),
                kit.new_job(f"b {number}", idempotency_key=f"key {number}"),
                kit.new_job(),
            ]
            answers = await asyncio.gather(*(each.add_jobs(wanted) for each in others * 4))
            assert {tuple(job.uid for job in jobs) for jobs in answers} == {tuple(job.uid for job in answers[0])}
        assert len(await kit.all_jobs(backend)) == 15

    async def test_an_added_job_is_claimed_as_it_was_returned(self, backend: Backend) -> None:
        [job] = await add(backend, kit.new_job("a", payload=b"1", tags=["eu"]))
        claimed = await kit.claim(backend)
        assert (
            claimed.replace(
                **{
                    name: getattr(job, name) for name in ("status", "lease", "assignee_id", "assigned_at", "started_at")
                },
                **{name: getattr(job, name) for name in ("updated_at", "epoch", "executions")},
            )
            == job
        )

    async def test_the_store_returns_its_own_time(self, backend: Backend, clock: HeldClock) -> None:
        assert await backend.now() == clock.now()
        clock.advance(1.5)
        assert await backend.now() == clock.now()
