"""Claims: which jobs, in which order, alone and together with a settle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import JobNotFound, LeaseLost
from longshore.core.filters import JobFilter
from longshore.core.status import ELIGIBLE
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S


class TestClaiming:
    """`dequeue_jobs`: eligibility, order, tags, queues, and the record of the new owner."""

    # -- which jobs

    @pytest.mark.parametrize("status", kit.EVERY_STATUS)
    async def test_only_a_job_in_an_eligible_status_is_claimed(self, backend: Backend, status: S) -> None:
        # B-CON-07 B-DEQ-03
        job = await kit.job_in(backend, status)
        claimed = await backend.dequeue_jobs("worker-2")
        assert [job.id for job in claimed] == ([job.id] if status in ELIGIBLE else [])

    async def test_nothing_to_claim_is_an_empty_list_and_leaves_no_trace(self, backend: Backend) -> None:
        # B-DEQ-10 T-RES-02
        async with kit.nothing_changes(backend):
            assert await backend.dequeue_jobs("worker-1", limit=10) == []

    async def test_a_claim_takes_at_most_the_limit_and_fewer_if_there_are_fewer(self, backend: Backend) -> None:
        # B-DEQ-09 T-RES-01
        await backend.enqueue_jobs([kit.new_job() for _ in range(5)])
        assert len(await backend.dequeue_jobs("worker-1", limit=3)) == 3
        assert len(await backend.dequeue_jobs("worker-1", limit=3)) == 2
        assert len(await backend.dequeue_jobs("worker-1", limit=3)) == 0

    async def test_one_job_is_claimed_if_no_limit_is_named(self, backend: Backend) -> None:
        # T-RES-01
        await backend.enqueue_jobs([kit.new_job() for _ in range(3)])
        assert len(await backend.dequeue_jobs("worker-1")) == 1

    async def test_a_claimed_job_is_out_of_sight_until_it_is_eligible_again(self, backend: Backend) -> None:
        # B-DEQ-13 T-RES-03 T-ST-03 B-INV-05
        await kit.enqueue(backend, "j1")
        await kit.claim(backend)
        assert await backend.dequeue_jobs("worker-1") == []
        assert await backend.dequeue_jobs("worker-2") == []
        await backend.fail_job("j1", "try another")
        assert (await kit.claim(backend, "worker-2")).id == "j1"

    async def test_a_claim_does_not_count_what_the_worker_holds(self, backend: Backend) -> None:
        # B-INT-02 B-CON-04
        await backend.enqueue_jobs([kit.new_job() for _ in range(25)])
        for _ in range(5):
            assert len(await backend.dequeue_jobs("worker-1", limit=5)) == 5
        held = await kit.all_jobs(backend, JobFilter(assignee_id="worker-1"))
        assert len(held) == 25

    async def test_a_job_is_claimable_exactly_at_its_run_at(self, backend: Backend, clock: HeldClock) -> None:
        # T-REC-05 X-47
        await kit.enqueue(backend, "j1", run_at=clock.now() + kit.seconds(60))
        clock.advance(timedelta(seconds=60) - timedelta(microseconds=1))
        assert await backend.dequeue_jobs("worker-1") == []
        clock.advance(timedelta(microseconds=1))
        assert (await kit.claim(backend)).id == "j1"

    async def test_a_job_is_not_started_once_its_expires_at_has_come(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "short-lived", expires_at=60)
        await kit.enqueue(backend, "first of two", expires_at=120)
        clock.advance(kit.seconds(60) - timedelta(microseconds=1))
        assert len(await kit.claimable(backend)) == 2
        clock.advance(timedelta(microseconds=1))
        assert await kit.claimable(backend) == ["first of two"]

    # -- by types

    async def test_a_claim_takes_only_jobs_of_the_types_it_names(self, backend: Backend) -> None:
        # S5, B-DEQ-09
        await backend.enqueue_jobs(
            [kit.new_job(f"{kind} {n}", type=kind) for n in range(3) for kind in ("mail", "pdf", "x")]
        )
        assert await kit.claimable(backend, types=["unheard of"]) == []
        assert [job.id for job in await backend.dequeue_jobs("w", limit=1, types=["pdf"])] == ["pdf 0"]
        claimed = await backend.dequeue_jobs("w", limit=3, types=["x", "mail", "x"])
        assert [job.id for job in claimed] == ["mail 0", "x 0", "mail 1"]
        assert await kit.claimable(backend) == ["pdf 1", "x 1", "mail 2", "pdf 2", "x 2"]

    async def test_an_empty_list_of_types_claims_nothing_and_none_claims_all(self, backend: Backend) -> None:
        # S5
        await kit.enqueue(backend, "j1")
        async with kit.nothing_changes(backend):
            assert await backend.dequeue_jobs("w", limit=10, types=[]) == []
        assert [job.id for job in await backend.dequeue_jobs("w", limit=10, types=None)] == ["j1"]

    @pytest.mark.parametrize("limit", [1, 7, 100])
    async def test_a_claim_by_type_keeps_the_order(self, backend: Backend, clock: HeldClock, limit: int) -> None:
        # S5, B-DEQ-05 B-DEQ-06
        await backend.enqueue_jobs([kit.new_job(type="other", priority=n % 3) for n in range(300)])
        await kit.enqueue(backend, "late", type="b", run_at=1)
        await kit.enqueue(backend, "low", type="a", priority=2)
        await kit.enqueue(backend, "first", type="a", priority=1)
        await kit.enqueue(backend, "second", type="b", priority=1)
        await kit.enqueue(backend, "lifo", type="b", priority=1, lifo=True)
        await kit.enqueue(backend, "not due", type="a", priority=-1, run_at=5)
        clock.advance(1)
        await kit.enqueue(backend, "third", type="a", priority=1)
        found: list[str] = []
        while jobs := await backend.dequeue_jobs("w", limit=limit, types=["b", "a"]):
            found += [job.id for job in jobs]
        assert found == ["late", "lifo", "first", "second", "third", "low"]
        clock.advance(4)
        assert [job.id for job in await backend.dequeue_jobs("w", types=["a"])] == ["not due"]

    async def test_types_combine_with_tags_and_queues(self, backend: Backend) -> None:
        # S5, B-DEQ-07
        for queue in ("q1", "q2"):
            for kind in ("a", "b"):
                await kit.enqueue(backend, f"{queue} {kind} eu", type=kind, queue=queue, tags=["eu"])
                await kit.enqueue(backend, f"{queue} {kind}", type=kind, queue=queue)
        assert await kit.claimable(backend, tags=["eu"], types=["b"], queues=["q1"]) == ["q1 b eu"]
        assert await kit.claimable(backend, tags=["eu"], types=["b"]) == ["q1 b eu", "q2 b eu"]
        assert await kit.claimable(backend, types=["a"], queues=["q2"]) == ["q2 a eu", "q2 a"]
        claimed = await backend.dequeue_jobs("w", limit=10, types=["a"])
        assert [job.id for job in claimed] == ["q1 a eu", "q1 a", "q2 a eu", "q2 a"]

    @pytest.mark.parametrize("crowd", [0, 200])
    async def test_types_combine_with_limits_and_with_full_keys(self, backend: Backend, crowd: int) -> None:
        # S5, X-13
        await backend.set_limits("default", per_key=1, running=5)
        await backend.enqueue_jobs([kit.new_job(type="other", concurrency_key=f"o{n}") for n in range(crowd)])
        await backend.enqueue_jobs(
            [kit.new_job(f"{key}{n}", type="mine", concurrency_key=key) for n in range(60) for key in ("k", "l")]
        )
        await kit.enqueue(backend, "free", type="mine")
        first = await backend.dequeue_jobs("w", limit=2, types=["mine"])
        assert [job.id for job in first] == ["k0", "l0"]
        assert [job.id for job in await backend.dequeue_jobs("w", limit=10, types=["mine"])] == ["free"]
        await backend.complete_job("l0")
        assert [job.id for job in await backend.dequeue_jobs("w", limit=10, types=["mine"])] == ["l1"]
        await backend.pause_queue("default")
        await backend.complete_job("k0")
        assert await backend.dequeue_jobs("w", limit=10, types=["mine"]) == []
        await backend.resume_queue("default")
        assert [job.id for job in await backend.dequeue_jobs("w", limit=10, types=["mine"])] == ["k1"]
        others = await backend.dequeue_jobs("w", limit=10, types=["other"])
        assert len(others) == min(crowd, 2)  # five may run, and three jobs of type "mine" do

    async def test_a_claim_by_type_ends_expired_jobs_of_its_types(self, backend: Backend, clock: HeldClock) -> None:
        # S5
        await kit.enqueue(backend, "old", type="mine", expires_at=5)
        await kit.enqueue(backend, "good", type="mine")
        await kit.enqueue(backend, "other", type="other", expires_at=5)
        clock.advance(5)
        assert [job.id for job in await backend.dequeue_jobs("w", limit=5, types=["mine"])] == ["good"]
        assert (await backend.get_job("old")).status is S.UNSCHEDULED

    async def test_settle_and_dequeue_settles_jobs_of_any_type(self, backend: Backend) -> None:
        # S5
        await kit.enqueue(backend, "j1", type="a")
        await kit.enqueue(backend, "j2", type="b")
        job = await kit.claim(backend)
        outcomes = [Outcome(job.id, job.lease)]
        report, jobs = await backend.settle_and_dequeue(outcomes, "w", (), 5, types=())
        assert (list(report.settled), jobs) == (["j1"], [])
        _, jobs = await backend.settle_and_dequeue([], "w", (), 5, types=["a"])
        assert jobs == []
        _, jobs = await backend.settle_and_dequeue([], "w", (), 5, types=["a", "b"])
        assert [job.id for job in jobs] == ["j2"]

    # -- by tags

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ([], ["both", "more", "one", "none"]),
            (["eu"], ["both", "more", "one"]),
            (["eu", "slow"], ["both", "more"]),
            (["slow", "eu"], ["both", "more"]),
            (["slow", "eu", "slow"], ["both", "more"]),
            (["eu", "slow", "gpu"], ["more"]),
            (["EU"], []),
            (["eu", "unheard of"], []),
            (["e"], []),
        ],
    )
    async def test_a_claim_matches_all_tags(self, backend: Backend, wanted: list[str], found: list[str]) -> None:
        # B-CON-06 B-DEQ-04 B-INV-04 B-TST-01
        await kit.enqueue(backend, "both", tags=["slow", "eu"])
        await kit.enqueue(backend, "more", tags=["gpu", "eu", "slow"])
        await kit.enqueue(backend, "one", tags=["eu"])
        await kit.enqueue(backend, "none")
        assert [job.id for job in await backend.dequeue_jobs("worker-1", wanted, 10)] == found

    async def test_tags_that_hold_odd_characters_are_only_compared(self, backend: Backend) -> None:
        odd = ["a,b", "a%", "%", "'; DROP TABLE jobs; --", '"', "\\", "名前"]
        for tag in odd:
            await kit.enqueue(backend, f"job of {tag}", tags=[tag])
        for tag in odd:
            assert await kit.claimable(backend, tags=[tag]) == [f"job of {tag}"]

    async def test_a_claim_by_tags_keeps_the_order(self, backend: Backend, clock: HeldClock) -> None:
        # B-DEQ-05
        for number in range(6):
            await kit.enqueue(
                backend, f"j{number}", tags=["eu", "slow"] if number % 2 else ["eu"], priority=-(number // 4)
            )
            clock.advance(1)
        assert await kit.claimable(backend, tags=["eu"]) == ["j4", "j5", "j0", "j1", "j2", "j3"]
        assert await kit.claimable(backend, tags=["eu", "slow"]) == ["j5", "j1", "j3"]

    # -- by queue

    async def test_only_the_requested_queues_are_claimed_from(self, backend: Backend) -> None:
        # T-RES-01
        await kit.enqueue(backend, "mail", queue="mail")
        await kit.enqueue(backend, "bill", queue="bills")
        await kit.enqueue(backend, "plain")
        assert await kit.claimable(backend, queues=["bills"]) == ["bill"]
        assert await kit.claimable(backend, queues=["mail", "default"]) == ["mail", "plain"]
        assert await kit.claimable(backend, queues=["unheard of"]) == []
        assert await kit.claimable(backend) == ["mail", "bill", "plain"]

    async def test_several_queues_are_served_as_one_line(self, backend: Backend, clock: HeldClock) -> None:
        # B-DEQ-05
        for number in range(6):
            await kit.enqueue(backend, f"j{number}", queue=f"queue {number % 3}", priority=number // 4)
            clock.advance(1)
        assert [job.id for job in await backend.dequeue_jobs("w", limit=5)] == ["j0", "j1", "j2", "j3", "j4"]

    # -- order

    async def test_the_oldest_comes_first_whenever_it_was_stored(self, backend: Backend, clock: HeldClock) -> None:
        # B-DEQ-05 B-INV-06 B-DEQ-06 X-13 B-TST-01
        for age in (3, 1, 4, 2, 5):
            await kit.enqueue(backend, f"age {age}", created_at=clock.now() - kit.seconds(age))
        assert await kit.claimable(backend) == ["age 5", "age 4", "age 3", "age 2", "age 1"]

    async def test_jobs_of_one_instant_come_in_the_order_they_were_stored(self, backend: Backend) -> None:
        #
        ids = ["m", "z", "a", "q", "b"]
        for job_id in ids:
            await kit.enqueue(backend, job_id)
        assert await kit.claimable(backend) == ids

    async def test_a_failed_job_is_ordered_by_the_time_of_its_failure(self, backend: Backend, clock: HeldClock) -> None:
        # B-DEQ-05 X-14 X-110
        await kit.enqueue(backend, "first")
        clock.advance(1)
        await kit.enqueue(backend, "second")
        clock.advance(1)
        assert (await kit.claim(backend)).id == "first"
        await backend.fail_job("first", "again, please")
        clock.advance(1)
        await kit.enqueue(backend, "third")
        assert await kit.claimable(backend) == ["second", "first", "third"]

    async def test_a_released_or_crashed_job_keeps_its_sort_key(self, backend: Backend, clock: HeldClock) -> None:
        #
        for name in ("handed back", "crashed", "third"):
            await kit.enqueue(backend, name)
            clock.advance(1)
        handed_back, _ = await backend.dequeue_jobs("worker-1", limit=2)
        await backend.release_lease(handed_back.id, kit.lease_of(handed_back))
        await backend.mark_worker_unresponsive("worker-1")
        assert (await backend.get_job("crashed")).last_retry_at is None
        clock.advance(1)
        assert await kit.claimable(backend) == ["handed back", "crashed", "third"]

    async def test_a_smaller_priority_comes_first_and_negative_ones_before_the_default(self, backend: Backend) -> None:
        #
        for priority in (5, -1, 0, 2**31 - 1, -(2**31), 1):
            await kit.enqueue(backend, str(priority), priority=priority)
        assert await kit.claimable(backend) == [str(-(2**31)), "-1", "0", "1", "5", str(2**31 - 1)]

    async def test_lifo_jobs_lead_their_priority_the_newest_first(self, backend: Backend, clock: HeldClock) -> None:
        #
        for job_id, lifo, priority in [
            ("fifo 1", False, 0),
            ("lifo 1", True, 0),
            ("urgent", False, -1),
            ("lifo 2", True, 0),
            ("fifo 2", False, 0),
            ("lifo of no hurry", True, 1),
        ]:
            await kit.enqueue(backend, job_id, lifo=lifo, priority=priority)
            clock.advance(1)
        order = ["urgent", "lifo 2", "lifo 1", "fifo 1", "fifo 2", "lifo of no hurry"]
        assert await kit.claimable(backend) == order

    async def test_a_lifo_job_waits_for_its_time_like_any_other(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "later", lifo=True, run_at=10)
        await kit.enqueue(backend, "now")
        assert await kit.claimable(backend) == ["now"]
        clock.advance(10)
        assert await kit.claimable(backend) == ["later", "now"]

    async def test_a_delayed_job_is_ordered_by_its_run_at(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "due at 20", run_at=20)
        await kit.enqueue(backend, "due at 10", run_at=10)
        clock.advance(15)
        await kit.enqueue(backend, "came at 15")
        clock.advance(10)
        assert await kit.claimable(backend) == ["due at 10", "came at 15", "due at 20"]

    async def test_a_future_created_at_counts_as_now(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "from tomorrow", created_at=clock.now() + timedelta(days=1))
        clock.advance(1)
        await kit.enqueue(backend, "from today")
        assert await kit.claimable(backend) == ["from tomorrow", "from today"]

    # -- the record

    async def test_a_claim_names_the_new_owner_and_the_time(self, backend: Backend, clock: HeldClock) -> None:
        # B-DEQ-07 B-DEQ-08 B-CON-04 T-REC-07 X-70 X-115
        await kit.enqueue(backend, "j1")
        clock.advance(5)
        first = await kit.claim(backend, "worker-1")
        assert (first.status, first.assignee_id, first.assigned_at) == (S.RUNNING, "worker-1", clock.now())
        assert first.started_at == first.updated_at == clock.now()
        assert (first.executions, first.retry_count, first.epoch) == (1, 0, 1)
        await backend.fail_job("j1", "again")
        started = clock.now()
        clock.advance(5)
        second = await kit.claim(backend, "worker-2")
        assert (second.assignee_id, second.assigned_at, second.started_at) == ("worker-2", clock.now(), started)
        assert (second.executions, second.retry_count, second.epoch) == (2, 1, 2)
        assert await backend.get_job("j1") == second

    async def test_the_answer_is_the_record_as_stored(self, backend: Backend) -> None:
        # B-DEQ-11
        await backend.enqueue_jobs([kit.new_job(tags=["a", "b"], payload=b"x", options={"k": 1}) for _ in range(3)])
        for job in await backend.dequeue_jobs("worker-1", limit=3):
            assert job == await backend.get_job(job.id)


class TestTurnover:
    """`settle_and_dequeue`: what it settles and claims, and that neither hinders the other."""

    async def test_a_turn_settles_what_ended_and_claims_what_is_next(self, backend: Backend, clock: HeldClock) -> None:
        # B-DEQ-05 B-FREE-04
        await backend.enqueue_jobs([kit.new_job(job_id) for job_id in ("a", "b", "c", "d", "e")])
        held = {job.id: kit.lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=2)}
        clock.advance(5)
        report, jobs = await backend.settle_and_dequeue(
            [Outcome("a", held["a"], result=b"42"), Outcome("b", held["b"], "stop", error="enough")],
            "worker-1",
            limit=2,
            lease=60,
        )
        assert report.settled == {"a": S.COMPLETED, "b": S.STOPPED}
        assert (report.refused, report.freed) == ({}, {"worker-1": 2})
        assert [job.id for job in jobs] == ["c", "d"]
        assert all(kit.lease_of(job).expires_at == clock.now() + kit.seconds(60) for job in jobs)
        assert jobs == [await backend.get_job("c"), await backend.get_job("d")]
        assert (await backend.get_job("a")).result == b"42"
        assert await kit.status_of(backend, "e") is S.INITIAL_PENDING

    async def test_settle_and_dequeue_claims_into_the_slots_it_frees(self, backend: Backend) -> None:
        #
        await backend.set_limits("default", per_key=1)
        kinds = ("completes", "vanishes", "fails", "stale", "stops")
        for kind in kinds:
            options = {"remove_on_complete": True} if kind == "vanishes" else {}
            await kit.enqueue(backend, kind, concurrency_key=kind, options=options)
            await kit.enqueue(backend, f"after {kind}", concurrency_key=kind)
        held = {job.id: kit.lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=10)}
        assert sorted(held) == sorted(kinds)
        outcomes = [
            Outcome("stale", kit.STALE),
            Outcome("completes", held["completes"], result=b"1"),
            Outcome("fails", held["fails"], "bury", error="no use"),
            Outcome("vanishes", held["vanishes"]),
            Outcome("stops", held["stops"], "stop", error="enough"),
        ]
        report, jobs = await backend.settle_and_dequeue(outcomes, "worker-1", limit=10)
        ends = {"completes": S.COMPLETED, "vanishes": S.COMPLETED, "fails": S.DEAD, "stops": S.STOPPED}
        assert (report.settled, list(report.refused), report.freed) == (ends, ["stale"], {"worker-1": 4})
        assert sorted(job.id for job in jobs) == ["after completes", "after fails", "after stops", "after vanishes"]

    async def test_the_claim_goes_by_tags_and_queues(self, backend: Backend) -> None:
        await kit.enqueue(backend, "plain", queue="north")
        await kit.enqueue(backend, "tagged", queue="north", tags=["eu"])
        await kit.enqueue(backend, "elsewhere", queue="south", tags=["eu"])
        _, jobs = await backend.settle_and_dequeue([], "worker-1", ["eu"], 5, queues=["north"], lease=None)
        assert [(job.id, kit.lease_of(job).expires_at) for job in jobs] == [("tagged", None)]

    async def test_without_outcomes_it_is_a_claim(self, backend: Backend) -> None:
        await kit.enqueue(backend, "a")
        report, [job] = await backend.settle_and_dequeue([], "worker-1")
        assert (report.settled, report.refused, report.freed) == ({}, {}, {})
        assert (job.id, job.assignee_id) == ("a", "worker-1")

    async def test_with_a_limit_of_nothing_it_only_settles(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await kit.enqueue(backend, "waits")
        report, jobs = await backend.settle_and_dequeue([Outcome(job.id, kit.lease_of(job))], "worker-1", limit=0)
        assert (report.settled, jobs) == ({job.id: S.COMPLETED}, [])
        assert await kit.status_of(backend, "waits") is S.INITIAL_PENDING

    async def test_with_neither_nothing_happens(self, backend: Backend) -> None:
        await kit.enqueue(backend, "waits")
        async with kit.nothing_changes(backend):
            report, jobs = await backend.settle_and_dequeue([], "worker-1", limit=0)
        assert (report.settled, report.refused, report.freed, jobs) == ({}, {}, {}, [])

    async def test_a_refused_outcome_does_not_hinder_the_claim(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.RUNNING, "held")
        await kit.enqueue(backend, "next")
        wrong: Any = "explode"
        report, jobs = await backend.settle_and_dequeue(
            [Outcome("held", kit.STALE), Outcome("unknown", None), Outcome("held", kit.lease_of(job), wrong)],
            "worker-1",
            limit=5,
        )
        assert report.settled == {}
        assert {name: type(error) for name, error in report.refused.items()} == {
            "held": LeaseLost,
            "unknown": JobNotFound,
        }
        assert [job.id for job in jobs] == ["next"]
        assert await kit.status_of(backend, "held") is S.RUNNING

    # -- the claim sees what was settled

    async def test_the_slot_of_an_ended_job_is_free_for_the_next(self, backend: Backend) -> None:
        # B-FREE-01
        await backend.set_limits("default", running=1, per_key=1)
        await backend.enqueue_jobs([kit.new_job(job_id, concurrency_key="k") for job_id in ("a", "b", "c")])
        job = await kit.claim(backend)
        assert await backend.dequeue_jobs("worker-1", limit=5) == []
        for following in ("b", "c"):
            report, jobs = await backend.settle_and_dequeue([Outcome(job.id, kit.lease_of(job))], "worker-1", limit=5)
            assert report.settled == {job.id: S.COMPLETED}
            [job] = jobs
            assert job.id == following

    async def test_a_job_that_waited_for_the_one_that_ended_can_be_claimed_at_once(self, backend: Backend) -> None:
        # M-SCHED-11 X-88
        await kit.enqueue(backend, "first")
        await kit.enqueue(backend, "second", depends_on=["first"])
        job = await kit.claim(backend)
        _, jobs = await backend.settle_and_dequeue([Outcome("first", kit.lease_of(job))], "worker-1", limit=5)
        assert [job.id for job in jobs] == ["second"]

    async def test_a_job_that_goes_back_can_come_again_in_the_same_turn(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING, "again")
        report, [again] = await backend.settle_and_dequeue(
            [Outcome("again", kit.lease_of(job), "fail", error="busy")], "worker-2"
        )
        assert report.settled == {"again": S.FAILED_RETRY}
        assert report.freed == {"worker-1": 1}
        assert (again.id, again.status, again.assignee_id) == ("again", S.RUNNING, "worker-2")
        assert (again.epoch, again.executions, again.retry_count) == (2, 2, 1)
        assert await backend.get_job("again") == again

    async def test_jobs_met_too_late_are_ended_on_the_way(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.job_in(backend, S.RUNNING, "held")
        await kit.enqueue(backend, "late", expires_at=1)
        await kit.enqueue(backend, "good")
        clock.advance(2)
        report, jobs = await backend.settle_and_dequeue([Outcome("held", kit.lease_of(job))], "worker-1", limit=5)
        assert report.settled == {"held": S.COMPLETED}
        assert [job.id for job in jobs] == ["good"]
        assert await kit.status_of(backend, "late") is S.UNSCHEDULED

    # -- refusals

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("limit", value) for value in (-1, True, 1.0, "3", None, 2**40)),
            *(("lease", value) for value in (0, -1, "30", float("nan"))),
            *(("assignee_id", value) for value in ("", None)),
            *(("tags", value) for value in ("eu", [""], 5)),
            *(("queues", value) for value in ("north", [""], 5)),
            *(("outcomes", value) for value in (None, "job", [None])),
        ],
        ids=lambda value: value if isinstance(value, str) else repr(value),
    )
    async def test_a_refused_settle_and_dequeue_does_nothing(self, backend: Backend, field: str, value: Any) -> None:
        # B-ERR-05
        job = await kit.job_in(backend, S.RUNNING)
        await kit.enqueue(backend, "waits")
        call: dict[str, Any] = {
            "outcomes": [Outcome(job.id, kit.lease_of(job))],
            "assignee_id": "worker-1",
            field: value,
        }
        await kit.refused(backend, backend.settle_and_dequeue(**call), field=field)
