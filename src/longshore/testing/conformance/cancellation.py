"""Somebody calls jobs off: what nobody runs ends at once, what somebody runs is asked to end and acknowledged."""

from __future__ import annotations

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, JobNotInflight
from longshore.core.status import FINAL, TABLE, Verb
from longshore.testing.conformance.scenarios import (
    EVERY_STATUS,
    S,
    claim,
    claimable,
    enqueue,
    history,
    job_in,
    lease_of,
    new_job,
    nothing_changes,
    refused,
    status_of,
)

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
    async def test_a_job_that_is_not_over_is_cancelled(
        self, backend: Backend, clock: HeldClock, source: S, target: S
    ) -> None:
        # B-CAN-03 B-CAN-04 B-CAN-05 B-CAN-06 B-CAN-08 B-CAN-12 X-15
        job = await job_in(backend, source)
        clock.advance(1)
        assert await backend.cancel_jobs(job_ids=[job.id]) == ([job.id], [])
        after = await backend.get_job(job.id)
        assert after.status is target
        assert after.finalized_at == (clock.now() if target.final else None)
        assert (after.assignee_id, after.assigned_at) == (job.assignee_id, job.assigned_at)
        event = (await history(backend, job.id))[-1]
        assert event.event == ("job.cancelling" if target is S.CANCELLING else "job.stopped")
        assert (event.from_status, event.to_status) == (source, target)

    async def test_the_products_table_has_these_arrows(self) -> None:
        assert {arrow.source: arrow.target for arrow in TABLE if arrow.verb is Verb.CANCEL} == CANCELLED

    @pytest.mark.parametrize("status", [s for s in EVERY_STATUS if s in FINAL])
    async def test_a_job_that_is_over_is_unknown_and_never_makes_the_call_fail(
        self, backend: Backend, status: S
    ) -> None:
        # B-CAN-08 B-CAN-09 X-17
        job = await job_in(backend, status, tags=["eu"])
        async with nothing_changes(backend):
            cancelled, unknown = await backend.cancel_jobs(job_ids=[job.id, "nobody"])
            assert (cancelled, sorted(unknown)) == ([], sorted([job.id, "nobody"]))
            assert await backend.cancel_jobs(tags=["eu"]) == ([], [job.id])

    async def test_a_job_being_cancelled_stays_so_and_is_listed_as_cancelled(self, backend: Backend) -> None:
        # B-CAN-07
        job = await job_in(backend, S.CANCELLING)
        async with nothing_changes(backend):
            assert await backend.cancel_jobs(job_ids=[job.id]) == ([job.id], [])

    async def test_the_targets_are_those_with_all_the_tags_and_those_named_each_once(self, backend: Backend) -> None:
        # B-CAN-02 B-CAN-10 X-17
        await enqueue(backend, "both", tags=["eu", "slow"])
        await enqueue(backend, "one", tags=["eu"])
        await enqueue(backend, "named")
        await enqueue(backend, "left alone", tags=["slow"])
        cancelled, unknown = await backend.cancel_jobs(["eu", "slow"], ["named", "both", "named", "nobody"])
        assert sorted(cancelled) == ["both", "named"]
        assert unknown == ["nobody"]
        assert await claimable(backend) == ["one", "left alone"]

    async def test_ids_alone_select_nothing_more(self, backend: Backend) -> None:
        #
        await backend.enqueue_jobs([new_job("a"), new_job("b")])
        assert await backend.cancel_jobs(job_ids=["a"]) == (["a"], [])
        assert await status_of(backend, "b") is S.INITIAL_PENDING

    async def test_neither_tags_nor_ids_is_an_error_not_everything(self, backend: Backend) -> None:
        # B-CAN-01 X-16
        await enqueue(backend)
        async with refused(backend, InvalidArgument):
            await backend.cancel_jobs()
        async with refused(backend, InvalidArgument):
            await backend.cancel_jobs(queue="default")

    async def test_a_queue_narrows_both_tags_and_ids(self, backend: Backend) -> None:
        await enqueue(backend, "mail", queue="mail", tags=["eu"])
        await enqueue(backend, "bill", queue="bills", tags=["eu"])
        assert await backend.cancel_jobs(["eu"], ["bill"], queue="mail") == (["mail"], ["bill"])
        assert await status_of(backend, "bill") is S.INITIAL_PENDING

    @pytest.mark.parametrize("status", [s for s in EVERY_STATUS if not s.final])
    async def test_what_somebody_holds_is_left_alone_on_request(self, backend: Backend, status: S) -> None:
        # X-96 X-97 X-98
        job = await job_in(backend, status, tags=["eu"])
        if status.holds_capacity:
            async with nothing_changes(backend):
                assert await backend.cancel_jobs(job_ids=[job.id], held=False) == ([], [job.id])
                assert await backend.cancel_jobs(tags=["eu"], held=False) == ([], [job.id])
        else:
            assert await backend.cancel_jobs(job_ids=[job.id], held=False) == ([job.id], [])
            assert (await backend.get_job(job.id)).status.final

    async def test_held_is_true_or_false(self, backend: Backend) -> None:
        await enqueue(backend, "a")
        async with refused(backend, InvalidArgument, field="held"):
            await backend.cancel_jobs(job_ids=["a"], held=1)  # type: ignore[arg-type]  # that it is no bool is the point

    async def test_many_jobs_are_cancelled_in_one_call(self, backend: Backend) -> None:
        # B-CAN-11 B-PERF-04
        await backend.enqueue_jobs([new_job(tags=["batch"]) for _ in range(200)])
        running = [job.id for job in await backend.dequeue_jobs("worker-1", limit=50)]
        cancelled, unknown = await backend.cancel_jobs(["batch"])
        assert (len(cancelled), unknown) == (200, [])
        counts = await backend.count_jobs()
        assert (counts[S.CANCELLING], counts[S.UNSCHEDULED]) == (50, 150)
        assert {await status_of(backend, job_id) for job_id in running} == {S.CANCELLING}

    async def test_a_cancelled_job_never_starts(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "now")
        await enqueue(backend, "later", run_at=60)
        await backend.cancel_jobs(job_ids=["now", "later"])
        clock.advance(60)
        assert await backend.dequeue_jobs("worker-1", limit=10) == []

    async def test_a_job_being_cancelled_keeps_its_owner_and_its_lease(self, backend: Backend) -> None:
        # the owner sees it on the record and at its next renewal
        job = await job_in(backend, S.RUNNING)
        await backend.cancel_jobs(job_ids=[job.id])
        cancelling = await backend.get_job(job.id)
        lease = lease_of(cancelling)
        assert (lease.token, lease.epoch, lease.expires_at) == (
            lease_of(job).token,
            lease_of(job).epoch,
            lease_of(job).expires_at,
        )
        assert lease.cancel_requested
        assert await backend.dequeue_jobs("worker-2") == []

    @pytest.mark.parametrize(("was_executing", "target"), [(True, S.STOPPED), (False, S.UNKNOWN_STOPPED)])
    async def test_an_acknowledged_cancellation_ends_the_job(
        self, backend: Backend, clock: HeldClock, was_executing: bool, target: S
    ) -> None:
        # B-ACK-02 B-ACK-03 B-ACK-04 B-ACK-05 X-03: no map comes back, the Queue frees the slot by its own ledger
        job = await job_in(backend, S.CANCELLING)
        clock.advance(1)
        acknowledged = backend.acknowledge_cancellation(job.id, was_executing, lease=lease_of(job))
        answer: object = await acknowledged  # type: ignore[func-returns-value]  # that it returns nothing is the point
        assert answer is None
        over = await backend.get_job(job.id)
        assert (over.status, over.finalized_at) == (target, clock.now())
        assert (over.assignee_id, over.assigned_at) == ("worker-1", job.assigned_at)
        event = (await history(backend, job.id))[-1]
        assert (event.event, event.detail["was_executing"]) == ("job.stopped", was_executing)

    async def test_a_cancellation_can_still_be_outrun_by_the_result(self, backend: Backend) -> None:
        # B-COMP-03
        job = await job_in(backend, S.CANCELLING)
        assert await backend.complete_job(job.id, b"done", lease=lease_of(job)) == {"worker-1": 1}
        assert await status_of(backend, job.id) is S.COMPLETED

    # -- nobody answers

    @pytest.mark.parametrize("lease", [None, 30, 86_400], ids=["without an end", "renewed", "long"])
    async def test_a_cancellation_nobody_answers_is_timed_out_whatever_the_lease(
        self, backend: Backend, clock: HeldClock, lease: float | None
    ) -> None:
        #
        await enqueue(backend, "slow")
        job = await claim(backend, lease=lease)
        clock.advance(5)
        await backend.cancel_jobs(job_ids=["slow"])
        for _ in range(3):
            clock.advance(20)
            renewed = await backend.extend_leases({"slow": lease_of(job)}, 30)
            assert renewed["slow"].cancel_requested is True
            await backend.set_progress("slow", 50, lease=renewed["slow"])  # it is well, and does not listen
            assert await backend.time_out_cancellations(60.000001) == []
        [over] = await backend.time_out_cancellations(60)
        assert (over.id, over.status, over.finalized_at) == ("slow", S.UNKNOWN_STOPPED, clock.now())
        assert (over.lease, over.assignee_id, over.crashes) == (None, job.assignee_id, 0)
        assert "acknowledged" in over.error_message
        event = (await history(backend, "slow"))[-1]
        assert (event.event, event.from_status, event.to_status) == ("job.stopped", S.CANCELLING, S.UNKNOWN_STOPPED)
        assert await backend.time_out_cancellations(0) == []
        for late in (
            backend.acknowledge_cancellation("slow", True, lease=lease_of(job)),
            backend.stop_job("slow", lease=lease_of(job)),
            backend.complete_job("slow", lease=lease_of(job)),
        ):
            with pytest.raises(JobNotInflight):
                await late
        assert await backend.extend_leases({"slow": lease_of(job)}, 30) == {}

    async def test_only_jobs_being_cancelled_are_timed_out_the_longest_asked_first(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        for status in EVERY_STATUS:
            await job_in(backend, status, f"a {status}")
        for name in ("first", "second", "third"):
            clock.advance(1)
            await job_in(backend, S.CANCELLING, name)
        clock.advance(10)
        assert [job.id for job in await backend.time_out_cancellations(11, limit=2)] == ["a CANCELLING", "first"]
        assert [job.id for job in await backend.time_out_cancellations(11)] == ["second"]
        assert [job.id for job in await backend.time_out_cancellations(11)] == []
        assert await status_of(backend, "third") is S.CANCELLING
        assert await status_of(backend, "a RUNNING") is S.RUNNING

    async def test_a_cancellation_asked_for_by_hand_or_twice_is_timed_out_from_the_first_time(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await job_in(backend, S.RUNNING, "by hand")
        await backend.update_job_status("by hand", S.CANCELLING)
        clock.advance(10)
        await backend.cancel_jobs(job_ids=["by hand"])
        assert [job.id for job in await backend.time_out_cancellations(10)] == ["by hand"]

    async def test_what_a_cancellation_held_is_free_once_it_is_timed_out(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.set_limits("default", running=1, per_key=1)
        await enqueue(backend, "slow", concurrency_key="k")
        await claim(backend, lease=None)
        await enqueue(backend, "next", concurrency_key="k")
        await enqueue(backend, "follower", depends_on=("slow",), on_dependency_failure="stop")
        await backend.cancel_jobs(job_ids=["slow"])
        clock.advance(60)
        assert await backend.dequeue_jobs("w") == []
        await backend.time_out_cancellations(60)
        assert await status_of(backend, "follower") is S.UNSCHEDULED
        assert (await claim(backend)).id == "next"
