"""Cancelled jobs, and jobs that are removed by their options."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import JobNotFound, JobNotInflight
from longshore.core.job import Job
from longshore.core.status import FINAL, TRANSITIONS, Verb
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.scenarios import S

CANCELLED = {
    S.CREATED: S.UNSCHEDULED,
    S.WAITING_CHILDREN: S.UNSCHEDULED,
    S.INITIAL_PENDING: S.UNSCHEDULED,
    S.RUNNING: S.CANCELLING,
    S.FAILED_RETRY: S.STOPPED,
    S.UNKNOWN_RETRY: S.STOPPED,
}


class TestCancellation:
    """`cancel_jobs` and `acknowledge_cancellation`."""

    @pytest.mark.parametrize(("source", "target"), CANCELLED.items())
    async def test_a_live_job_is_cancelled(self, backend: Backend, clock: HeldClock, source: S, target: S) -> None:
        # B-CAN-03 B-CAN-04 B-CAN-05 B-CAN-06 B-CAN-08 B-CAN-12 X-15
        job = await kit.job_in(backend, source)
        clock.advance(1)
        assert await backend.cancel_jobs(job_ids=[job.id]) == ([job.id], [])
        after = await backend.get_job(job.id)
        assert after.status is target
        assert after.finalized_at == (clock.now() if target.final else None)
        assert (after.assignee_id, after.assigned_at) == (job.assignee_id, job.assigned_at)
        event = (await kit.history(backend, job.id))[-1]
        assert event.event == ("job.cancelling" if target is S.CANCELLING else "job.stopped")
        assert (event.from_status, event.to_status) == (source, target)

    async def test_the_products_table_has_these_arrows(self) -> None:
        assert {arrow.source: arrow.target for arrow in TRANSITIONS if arrow.verb is Verb.CANCEL} == CANCELLED

    @pytest.mark.parametrize("status", [s for s in kit.EVERY_STATUS if s in FINAL])
    async def test_cancelling_a_final_job_reports_it_as_unknown(self, backend: Backend, status: S) -> None:
        # B-CAN-08 B-CAN-09 X-17
        job = await kit.job_in(backend, status, tags=["eu"])
        async with kit.nothing_changes(backend):
            cancelled, unknown = await backend.cancel_jobs(job_ids=[job.id, "nobody"])
            assert (cancelled, sorted(unknown)) == ([], sorted([job.id, "nobody"]))
            assert await backend.cancel_jobs(tags=["eu"]) == ([], [job.id])

    async def test_a_job_being_cancelled_stays_so_and_is_listed_as_cancelled(self, backend: Backend) -> None:
        # B-CAN-07
        job = await kit.job_in(backend, S.CANCELLING)
        async with kit.nothing_changes(backend):
            assert await backend.cancel_jobs(job_ids=[job.id]) == ([job.id], [])

    async def test_the_targets_are_those_with_all_the_tags_and_those_named_each_once(self, backend: Backend) -> None:
        # B-CAN-02 B-CAN-10 X-17
        await kit.enqueue(backend, "both", tags=["eu", "slow"])
        await kit.enqueue(backend, "one", tags=["eu"])
        await kit.enqueue(backend, "named")
        await kit.enqueue(backend, "left alone", tags=["slow"])
        cancelled, unknown = await backend.cancel_jobs(["eu", "slow"], ["named", "both", "named", "nobody"])
        assert sorted(cancelled) == ["both", "named"]
        assert unknown == ["nobody"]
        assert await kit.claimable(backend) == ["one", "left alone"]

    async def test_ids_alone_select_nothing_more(self, backend: Backend) -> None:
        # X-16
        await backend.enqueue_jobs([kit.new_job("a"), kit.new_job("b")])
        assert await backend.cancel_jobs(job_ids=["a"]) == (["a"], [])
        assert await kit.status_of(backend, "b") is S.INITIAL_PENDING

    async def test_neither_tags_nor_ids_is_an_error_not_everything(self, backend: Backend) -> None:
        # B-CAN-01 X-16
        await kit.enqueue(backend)
        await kit.refused(backend, backend.cancel_jobs())
        await kit.refused(backend, backend.cancel_jobs(queue="default"))

    async def test_a_queue_narrows_both_tags_and_ids(self, backend: Backend) -> None:
        await kit.enqueue(backend, "mail", queue="mail", tags=["eu"])
        await kit.enqueue(backend, "bill", queue="bills", tags=["eu"])
        assert await backend.cancel_jobs(["eu"], ["bill"], queue="mail") == (["mail"], ["bill"])
        assert await kit.status_of(backend, "bill") is S.INITIAL_PENDING

    @pytest.mark.parametrize("status", [s for s in kit.EVERY_STATUS if not s.final])
    async def test_running_jobs_are_skipped_on_request(self, backend: Backend, status: S) -> None:
        # X-96 X-97 X-98
        job = await kit.job_in(backend, status, tags=["eu"])
        if status.holds_capacity:
            async with kit.nothing_changes(backend):
                assert await backend.cancel_jobs(job_ids=[job.id], held=False) == ([], [job.id])
                assert await backend.cancel_jobs(tags=["eu"], held=False) == ([], [job.id])
        else:
            assert await backend.cancel_jobs(job_ids=[job.id], held=False) == ([job.id], [])
            assert (await backend.get_job(job.id)).status.final

    async def test_held_is_true_or_false(self, backend: Backend) -> None:
        await kit.enqueue(backend, "a")
        await kit.refused(backend, backend.cancel_jobs(job_ids=["a"], held=1), field="held")  # type: ignore[arg-type]  # a wrong type on purpose

    async def test_many_jobs_are_cancelled_in_one_call(self, backend: Backend) -> None:
        # B-CAN-11 B-PERF-04
        await backend.enqueue_jobs([kit.new_job(tags=["batch"]) for _ in range(200)])
        running = [job.id for job in await backend.dequeue_jobs("worker-1", limit=50)]
        cancelled, unknown = await backend.cancel_jobs(["batch"])
        assert (len(cancelled), unknown) == (200, [])
        counts = await backend.count_jobs()
        assert (counts[S.CANCELLING], counts[S.UNSCHEDULED]) == (50, 150)
        assert {await kit.status_of(backend, job_id) for job_id in running} == {S.CANCELLING}

    async def test_a_cancelled_job_never_starts(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "now")
        await kit.enqueue(backend, "later", run_at=60)
        await backend.cancel_jobs(job_ids=["now", "later"])
        clock.advance(60)
        assert await backend.dequeue_jobs("worker-1", limit=10) == []

    async def test_a_job_being_cancelled_keeps_its_owner_and_its_lease(self, backend: Backend) -> None:
        # X-18: the owner sees it on the record and at its next renewal
        job = await kit.job_in(backend, S.RUNNING)
        await backend.cancel_jobs(job_ids=[job.id])
        cancelling = await backend.get_job(job.id)
        lease = kit.lease_of(cancelling)
        assert (lease.token, lease.epoch, lease.expires_at) == (
            kit.lease_of(job).token,
            kit.lease_of(job).epoch,
            kit.lease_of(job).expires_at,
        )
        assert lease.cancel_requested
        assert await backend.dequeue_jobs("worker-2") == []

    @pytest.mark.parametrize(("was_executing", "target"), [(True, S.STOPPED), (False, S.UNKNOWN_STOPPED)])
    async def test_an_acknowledged_cancellation_ends_the_job(
        self, backend: Backend, clock: HeldClock, was_executing: bool, target: S
    ) -> None:
        # B-ACK-02 B-ACK-03 B-ACK-04 B-ACK-05 X-03: it returns nothing; the Queue frees the slot by its own record
        job = await kit.job_in(backend, S.CANCELLING)
        clock.advance(1)
        acknowledged = backend.acknowledge_cancellation(job.id, was_executing, lease=kit.lease_of(job))
        answer: object = await acknowledged  # type: ignore[func-returns-value]  # it must return nothing
        assert answer is None
        over = await backend.get_job(job.id)
        assert (over.status, over.finalized_at) == (target, clock.now())
        assert (over.assignee_id, over.assigned_at) == ("worker-1", job.assigned_at)
        event = (await kit.history(backend, job.id))[-1]
        assert (event.event, event.detail["was_executing"]) == ("job.stopped", was_executing)

    async def test_a_cancellation_can_still_be_outrun_by_the_result(self, backend: Backend) -> None:
        # B-COMP-03
        job = await kit.job_in(backend, S.CANCELLING)
        assert await backend.complete_job(job.id, b"done", lease=kit.lease_of(job)) == {"worker-1": 1}
        assert await kit.status_of(backend, job.id) is S.COMPLETED

    # -- unacknowledged

    @pytest.mark.parametrize("lease", [None, 30, 86_400], ids=["without an end", "renewed", "long"])
    async def test_a_cancellation_times_out(self, backend: Backend, clock: HeldClock, lease: float | None) -> None:
        # X-15
        await kit.enqueue(backend, "slow")
        job = await kit.claim(backend, lease=lease)
        clock.advance(5)
        await backend.cancel_jobs(job_ids=["slow"])
        for _ in range(3):
            clock.advance(20)
            renewed = await backend.extend_leases({"slow": kit.lease_of(job)}, 30)
            assert renewed["slow"].cancel_requested is True
            await backend.set_progress("slow", 50, lease=renewed["slow"])  # it is alive, and ignores the cancellation
            assert await backend.time_out_cancellations(60.000001) == []
        [over] = await backend.time_out_cancellations(60)
        assert (over.id, over.status, over.finalized_at) == ("slow", S.UNKNOWN_STOPPED, clock.now())
        assert (over.lease, over.assignee_id, over.crashes) == (None, job.assignee_id, 0)
        assert "acknowledged" in over.error_message
        event = (await kit.history(backend, "slow"))[-1]
        assert (event.event, event.from_status, event.to_status) == ("job.stopped", S.CANCELLING, S.UNKNOWN_STOPPED)
        assert await backend.time_out_cancellations(0) == []
        for late in (
            backend.acknowledge_cancellation("slow", True, lease=kit.lease_of(job)),
            backend.stop_job("slow", lease=kit.lease_of(job)),
            backend.complete_job("slow", lease=kit.lease_of(job)),
        ):
            with pytest.raises(JobNotInflight):
                await late
        assert await backend.extend_leases({"slow": kit.lease_of(job)}, 30) == {}

    async def test_the_oldest_cancellations_time_out_first(self, backend: Backend, clock: HeldClock) -> None:
        for status in kit.EVERY_STATUS:
            await kit.job_in(backend, status, f"a {status}")
        for name in ("first", "second", "third"):
            clock.advance(1)
            await kit.job_in(backend, S.CANCELLING, name)
        clock.advance(10)
        assert [job.id for job in await backend.time_out_cancellations(11, limit=2)] == ["a CANCELLING", "first"]
        assert [job.id for job in await backend.time_out_cancellations(11)] == ["second"]
        assert [job.id for job in await backend.time_out_cancellations(11)] == []
        assert await kit.status_of(backend, "third") is S.CANCELLING
        assert await kit.status_of(backend, "a RUNNING") is S.RUNNING

    async def test_a_repeated_cancellation_keeps_its_first_deadline(self, backend: Backend, clock: HeldClock) -> None:
        await kit.job_in(backend, S.RUNNING, "by hand")
        await backend.update_job_status("by hand", S.CANCELLING)
        clock.advance(10)
        await backend.cancel_jobs(job_ids=["by hand"])
        assert [job.id for job in await backend.time_out_cancellations(10)] == ["by hand"]

    async def test_a_cancellation_timeout_frees_its_slot(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", running=1, per_key=1)
        await kit.enqueue(backend, "slow", concurrency_key="k")
        await kit.claim(backend, lease=None)
        await kit.enqueue(backend, "next", concurrency_key="k")
        await kit.enqueue(backend, "follower", depends_on=("slow",), on_dependency_failure="stop")
        await backend.cancel_jobs(job_ids=["slow"])
        clock.advance(60)
        assert await backend.dequeue_jobs("w") == []
        await backend.time_out_cancellations(60)
        assert await kit.status_of(backend, "follower") is S.UNSCHEDULED
        assert (await kit.claim(backend)).id == "next"


Ends = Callable[[Backend, HeldClock, Job], Awaitable[object]]
NAMES = ("remove_on_complete", "remove_on_fail")


async def _lease_runs_out(backend: Backend, clock: HeldClock, job: Job) -> None:
    clock.advance(30)
    [reclaimed] = await backend.reclaim_expired_leases()
    assert (reclaimed.id, reclaimed.status) == (job.id, S.DEAD)


ENDINGS: dict[str, tuple[str, str, Ends]] = {
    "complete_job": (
        "remove_on_complete",
        "job.completed",
        lambda b, _, job: b.complete_job(job.id, b"done", lease=job.lease),
    ),
    "settle_jobs": (
        "remove_on_complete",
        "job.completed",
        lambda b, _, job: b.settle_jobs([Outcome(job.id, job.lease)]),
    ),
    "settle_and_dequeue": (
        "remove_on_complete",
        "job.completed",
        lambda b, _, job: b.settle_and_dequeue([Outcome(job.id, job.lease)], "worker-1"),
    ),
    "update_job_status": (
        "remove_on_complete",
        "job.updated",
        lambda b, _, job: b.update_job_status(job.id, S.COMPLETED),
    ),
    "bury_job": ("remove_on_fail", "job.dead", lambda b, _, job: b.bury_job(job.id, "hopeless", lease=job.lease)),
    "settle_jobs with bury": (
        "remove_on_fail",
        "job.dead",
        lambda b, _, job: b.settle_jobs([Outcome(job.id, job.lease, "bury", error="hopeless")]),
    ),
    "settle_jobs with crash": (
        "remove_on_fail",
        "job.dead",
        lambda b, _, job: b.settle_jobs([Outcome(job.id, job.lease, "crash")]),
    ),
    "lease ran out": ("remove_on_fail", "job.dead", _lease_runs_out),
    "worker unresponsive": ("remove_on_fail", "job.dead", lambda b, _, __: b.mark_worker_unresponsive("worker-1")),
    "running jobs reset": ("remove_on_fail", "job.dead", lambda b, _, __: b.reset_running_jobs()),
}
"""The option, the last event, and the call that ends the job."""


async def finish(backend: Backend, clock: HeldClock, job_id: str, **fields: Any) -> None:
    """Run one job to its completion, a second after the last one."""
    job = await kit.job_in(backend, S.RUNNING, job_id, **fields)
    clock.advance(1)
    await backend.settle_jobs([Outcome(job.id, kit.lease_of(job))])


async def kept(backend: Backend) -> set[str]:
    """Return the ids of all jobs."""
    return {job.id for job in await kit.all_jobs(backend)}


class TestRemoval:
    """`remove_on_complete` and `remove_on_fail`: True, or how many of the queue's jobs are kept."""

    # -- the job itself

    @pytest.mark.parametrize(("option", "last", "ends"), ENDINGS.values(), ids=ENDINGS.keys())
    @pytest.mark.parametrize("value", [True, 0])
    async def test_a_job_is_removed_with_its_end_whichever_verb_brings_it(
        self, backend: Backend, clock: HeldClock, option: str, last: str, ends: Ends, value: object
    ) -> None:
        # M-OPT-08 M-OPT-09 M-TR-13 X-100
        bystander = await kit.job_in(backend, S.COMPLETED)
        options = {option: value, "backoff": {"type": "fixed", "delay": 5}}
        job = await kit.job_in(backend, S.RUNNING, "leaves", max_crashes=0, tags=["eu"], options=options)
        await backend.append_log("leaves", "a line")
        await ends(backend, clock, job)
        with pytest.raises(JobNotFound):
            await backend.get_job("leaves")
        assert await kept(backend) == {bystander.id}
        assert (await kit.story(backend, "leaves"))[-2:] == [last, "job.removed"]
        assert (await backend.get_job_stats(["eu"])).total_jobs == 0
        assert await kit.claimable(backend) == []

    async def test_removed_jobs_are_reported_as_settled(self, backend: Backend) -> None:
        # M-TR-13
        gone = await kit.job_in(backend, S.RUNNING, "gone", options={"remove_on_complete": True})
        dead = await kit.job_in(backend, S.RUNNING, "dead", options={"remove_on_fail": True})
        stays = await kit.job_in(backend, S.RUNNING, "stays")
        report = await backend.settle_jobs(
            [
                Outcome("gone", kit.lease_of(gone)),
                Outcome("dead", kit.lease_of(dead), "bury", error="hopeless"),
                Outcome("stays", kit.lease_of(stays)),
            ]
        )
        assert report.settled == {"gone": S.COMPLETED, "dead": S.DEAD, "stays": S.COMPLETED}
        assert (report.refused, report.freed) == ({}, {"worker-1": 3})
        assert await kept(backend) == {"stays"}
        removed = (await kit.history(backend, "gone"))[-1]
        assert (removed.event, removed.detail, removed.actor) == ("job.removed", {"status": "COMPLETED"}, "")

    async def test_a_status_that_is_not_final_removes_no_job(self, backend: Backend) -> None:
        # M-OPT-09: only on the final failure
        both = {"remove_on_complete": True, "remove_on_fail": True}
        for status in kit.EVERY_STATUS:
            if status not in (S.COMPLETED, S.DEAD):
                await kit.job_in(backend, status, options=both)
        assert {job.status for job in await kit.all_jobs(backend)} == set(kit.EVERY_STATUS) - {S.COMPLETED, S.DEAD}

    @pytest.mark.parametrize(
        "options",
        [
            {"remove_on_complete": False, "remove_on_fail": False},
            {"note": "remove_on_complete", "remove_on_fails": True, "nested": {"remove_on_fail": True}},
        ],
    )
    async def test_without_the_option_it_stays(self, backend: Backend, options: dict[str, Any]) -> None:
        # X-100: False is the default
        await kit.job_in(backend, S.COMPLETED, options=options)
        await kit.job_in(backend, S.DEAD, options=options)
        assert len(await kept(backend)) == 2

    async def test_each_option_is_for_its_own_end(self, backend: Backend) -> None:
        await kit.job_in(backend, S.COMPLETED, "completed", options={"remove_on_fail": True})
        await kit.job_in(backend, S.DEAD, "dead", options={"remove_on_complete": True})
        assert await kept(backend) == {"completed", "dead"}

    async def test_a_late_result_removes_a_job_that_was_given_up(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.UNKNOWN_STOPPED, options={"remove_on_complete": True})
        await backend.complete_job(job.id, b"after all")
        assert await kept(backend) == set()
        assert kit.steps(await kit.history(backend, job.id))[-1] == (S.UNKNOWN_STOPPED, S.COMPLETED)

    # -- dependents and keys

    async def test_a_removed_completed_job_satisfies_its_dependents(self, backend: Backend) -> None:
        # X-88 M-OPT-16
        gone = await kit.job_in(backend, S.RUNNING, "gone", options={"remove_on_complete": True})
        await kit.enqueue(backend, "waits", depends_on=["gone"])
        await backend.settle_jobs([Outcome("gone", kit.lease_of(gone))])
        assert await kit.status_of(backend, "waits") is S.INITIAL_PENDING
        assert (await kit.enqueue(backend, "late", depends_on=["gone"])).status is S.INITIAL_PENDING

    async def test_a_removed_failed_job_fails_its_dependents(self, backend: Backend) -> None:
        # X-88
        gone = await kit.job_in(backend, S.RUNNING, "gone", options={"remove_on_fail": True})
        await kit.enqueue(backend, "stops", depends_on=["gone"], on_dependency_failure="stop")
        await kit.enqueue(backend, "ignores", depends_on=["gone"], on_dependency_failure="ignore")
        await backend.bury_job("gone", "hopeless", lease=kit.lease_of(gone))
        assert await kept(backend) == {"stops", "ignores"}
        assert await kit.status_of(backend, "stops") is S.UNSCHEDULED
        assert await kit.status_of(backend, "ignores") is S.INITIAL_PENDING
        assert (await kit.enqueue(backend, depends_on=["gone"], on_dependency_failure="stop")).status is S.UNSCHEDULED

    async def test_the_slot_of_its_key_is_freed(self, backend: Backend) -> None:
        await backend.set_limits("default", per_key=1, running=1)
        options = {"remove_on_complete": True}
        await backend.enqueue_jobs([kit.new_job(name, concurrency_key="k", options=options) for name in ("a", "b")])
        job = await kit.claim(backend)
        assert await backend.dequeue_jobs("worker-2") == []
        _, [following] = await backend.settle_and_dequeue([Outcome(job.id, kit.lease_of(job))], "worker-1")
        assert following.id == "b"
        assert await kept(backend) == {"b"}

    async def test_its_key_and_its_id_are_remembered_as_of_any_removed_job(self, backend: Backend) -> None:
        await kit.job_in(backend, S.RUNNING, "gone", idempotency_key="order-7", options={"remove_on_complete": True})
        await backend.complete_job("gone")
        assert await backend.enqueue_job(kit.new_job("again", idempotency_key="order-7")) == "gone"
        assert (await kit.enqueue(backend, "gone")).status is S.INITIAL_PENDING

    # -- the newest jobs are kept

    async def test_the_most_recently_finished_are_kept(self, backend: Backend, clock: HeldClock) -> None:
        # M-OPT-08 X-100
        for number in range(5):
            await finish(backend, clock, f"j{number}", options={"remove_on_complete": 2})
        assert await kept(backend) == {"j3", "j4"}
        assert [(await kit.story(backend, f"j{number}"))[-1] for number in range(5)] == [
            *["job.removed"] * 3,
            *["job.completed"] * 2,
        ]

    async def test_it_is_the_end_that_counts_and_not_the_beginning(self, backend: Backend, clock: HeldClock) -> None:
        # X-100
        jobs = [await kit.job_in(backend, S.RUNNING, f"j{n}", options={"remove_on_complete": 2}) for n in range(4)]
        for number in (2, 0, 3, 1):
            clock.advance(1)
            await backend.complete_job(jobs[number].id)
        assert await kept(backend) == {"j1", "j3"}

    async def test_only_its_own_queue_and_status_are_affected(self, backend: Backend, clock: HeldClock) -> None:
        # X-100
        await kit.job_in(backend, S.DEAD, "dead")
        await kit.job_in(backend, S.STOPPED, "stopped")
        await finish(backend, clock, "elsewhere", queue="bills")
        await finish(backend, clock, "plain")
        await finish(backend, clock, "last", options={"remove_on_complete": 1, "remove_on_fail": True})
        assert await kept(backend) == {"dead", "stopped", "elsewhere", "last"}  # a job without the option counts, too

    async def test_the_dead_are_counted_by_themselves(self, backend: Backend, clock: HeldClock) -> None:
        # M-OPT-09 X-100
        await finish(backend, clock, "completed")
        for number in range(3):
            clock.advance(1)
            await kit.job_in(backend, S.DEAD, f"d{number}", options={"remove_on_fail": 1})
        assert await kept(backend) == {"completed", "d2"}

    async def test_the_jobs_of_one_batch_are_counted_together(self, backend: Backend, clock: HeldClock) -> None:
        await finish(backend, clock, "before")
        fields: list[dict[str, Any]] = [{"remove_on_complete": 3}, {"remove_on_complete": True}, {}]
        jobs = [kit.new_job(f"j{number}", options=fields[number % 3]) for number in range(9)]
        await backend.enqueue_jobs(jobs)
        held = await backend.dequeue_jobs("worker-1", limit=9)
        clock.advance(1)
        report = await backend.settle_jobs([Outcome(job.id, kit.lease_of(job)) for job in held])
        assert set(report.settled.values()) == {S.COMPLETED}
        assert len(report.settled) == 9
        assert await kept(backend) == {"j5", "j6", "j8"}

    async def test_a_large_remainder_goes_in_several_transactions(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([kit.new_job() for _ in range(1200)])
        held = await backend.dequeue_jobs("worker-1", limit=1200)
        await backend.settle_jobs([Outcome(job.id, kit.lease_of(job)) for job in held])
        await finish(backend, clock, "first", options={"remove_on_complete": 2})
        some = len(await kept(backend))
        assert 2 < some < 1201
        await finish(backend, clock, "second", options={"remove_on_complete": 2})
        assert await kept(backend) == {"first", "second"}

    async def test_removals_are_race_free(self, backend: Backend, open_backend: OpenBackend, clock: HeldClock) -> None:
        # X-100
        others = [open_backend() for _ in range(3)] if backend.capabilities.shared else [backend] * 3
        options = {"remove_on_complete": 5}
        await backend.enqueue_jobs([kit.new_job(options=options) for _ in range(60)])
        held = await backend.dequeue_jobs("worker-1", limit=60)
        for part in range(0, 60, 3):
            clock.advance(1)
            ending = [Outcome(job.id, kit.lease_of(job)) for job in held[part : part + 3]]
            await asyncio.gather(*(b.settle_jobs([end]) for b, end in zip(others, ending, strict=True)))
            assert len(await kept(backend)) >= min(part + 3, 5)
        await finish(backend, clock, "last", options=options)
        assert len(await kept(backend)) == 5

    # -- refusals

    @pytest.mark.parametrize("option", NAMES)
    @pytest.mark.parametrize("value", [-1, 1.0, 2**31, "yes", None, [], {"count": 5}])
    async def test_a_malformed_wish_is_refused_at_the_door(self, backend: Backend, option: str, value: object) -> None:
        # M-OPT-08 M-OPT-09
        await kit.refused(backend, backend.enqueue_job(kit.new_job(options={option: value})), field=f"options.{option}")
