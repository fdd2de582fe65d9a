"""Operators' actions: retry, promote, delete, and `update_job_status` over the whole transition table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidTransition, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)


class TestOperators:
    """`retry_job`, `promote_job`, `delete_jobs`, `cleanup_expired_jobs`, retention."""

    # -- dead jobs

    async def test_the_dead_letters_can_be_listed_brought_back_and_removed(self, backend: Backend) -> None:
        # T-M8-02 X-69 X-104
        ids = [(await kit.job_in(backend, S.DEAD, f"dead {number}")).id for number in range(3)]
        await kit.job_in(backend, S.COMPLETED)
        assert [job.id for job in await kit.all_jobs(backend, JobFilter(statuses=[S.DEAD]))] == ids[::-1]
        await backend.retry_job(ids[0], actor="ada")
        await backend.delete_jobs(job_ids=[ids[1]])
        assert [job.id for job in await kit.all_jobs(backend, JobFilter(statuses=[S.DEAD]))] == [ids[2]]
        assert await kit.claimable(backend) == [ids[0]]

    async def test_retry_job_resets_counters_and_records_the_actor(self, backend: Backend, clock: HeldClock) -> None:
        # X-69 X-94
        job = await kit.job_in(backend, S.INITIAL_PENDING, max_crashes=0)
        await kit.claim(backend)
        await backend.fail_job(job.id, "busy")
        await kit.claim(backend)
        await backend.reset_running_jobs()
        dead = await backend.get_job(job.id)
        assert (dead.status, dead.retry_count, dead.crashes, dead.executions) == (S.DEAD, 1, 1, 2)
        clock.advance(DAY)
        await backend.retry_job(job.id, actor="ada@example.org")
        back = await backend.get_job(job.id)
        assert (back.status, back.retry_count, back.crashes) == (S.FAILED_RETRY, 0, 0)
        assert (back.executions, back.epoch) == (2, 2)
        assert (back.error_message, back.finalized_at, back.run_at) == ("", None, None)
        event = (await kit.history(backend, job.id))[-1]
        assert (event.event, event.actor, event.detail["reset"]) == ("job.retried", "ada@example.org", True)
        again = await kit.claim(backend)
        assert (again.id, again.executions, again.epoch) == (job.id, 3, 3)

    async def test_the_counters_can_be_kept(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.DEAD)
        await backend.retry_job(job.id, reset=False)
        back = await backend.get_job(job.id)
        assert (back.retry_count, back.crashes) == (1, 0)
        assert (await kit.history(backend, job.id))[-1].detail["reset"] is False

    # -- delayed jobs

    @pytest.mark.parametrize("status", sorted(ELIGIBLE))
    async def test_promote_job_makes_a_delayed_job_due(self, backend: Backend, clock: HeldClock, status: S) -> None:
        if status is S.INITIAL_PENDING:
            job = await kit.enqueue(backend, run_at=3600)
        else:
            job = await kit.job_in(backend, S.RUNNING)
            if status is S.FAILED_RETRY:
                await backend.fail_job(job.id, "later", retry_at=3600)
            else:
                await backend.release_lease(job.id, job.lease, run_at=3600)  # type: ignore[arg-type]  # it is held
        assert await backend.dequeue_jobs("worker-1") == []
        clock.advance(1)
        await backend.promote_job(job.id)
        promoted = await backend.get_job(job.id)
        assert (promoted.status, promoted.run_at, promoted.updated_at) == (status, None, clock.now())
        assert (await kit.story(backend, job.id))[-1] == "job.promoted"
        assert (await kit.claim(backend)).id == job.id

    async def test_promoting_a_job_that_may_run_already_does_nothing(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "ready")
        await kit.enqueue(backend, "due", run_at=10)
        clock.advance(10)
        async with kit.nothing_changes(backend):
            await backend.promote_job("ready")
            await backend.promote_job("due")

    @pytest.mark.parametrize("status", [status for status in kit.EVERY_STATUS if status not in ELIGIBLE])
    async def test_only_a_job_in_the_queue_can_be_promoted(self, backend: Backend, status: S) -> None:
        job = await kit.job_in(backend, status)
        await kit.refused(backend, backend.promote_job(job.id), InvalidTransition)

    async def test_an_unknown_job_cannot_be_promoted(self, backend: Backend) -> None:
        await kit.refused(backend, backend.promote_job("nobody"), JobNotFound)

    # -- delete

    @pytest.mark.parametrize("status", sorted(FINAL))
    async def test_a_final_job_is_removed_permanently(self, backend: Backend, status: S) -> None:
        # B-DEL-04
        job = await kit.job_in(backend, status, tags=["eu"])
        await backend.append_log(job.id, "a line")
        await backend.delete_jobs(job_ids=[job.id])
        with pytest.raises(JobNotFound):
            await backend.get_job(job.id)
        with pytest.raises(JobNotFound):
            await backend.read_logs(job.id)
        assert (await backend.get_job_stats(["eu"])).total_jobs == 0
        assert await kit.all_jobs(backend, JobFilter(tags=["eu"])) == []
        event = (await kit.history(backend, job.id))[-1]
        assert (event.event, event.detail["status"]) == ("job.removed", status)
        await kit.enqueue(backend, job.id)
        assert await backend.read_logs(job.id) == []

    @pytest.mark.parametrize("status", [status for status in kit.EVERY_STATUS if status not in FINAL])
    async def test_if_any_target_is_not_final_none_is_removed(self, backend: Backend, status: S) -> None:
        # B-DEL-03 B-DEL-04 B-ERR-06 X-98
        done = await kit.job_in(backend, S.COMPLETED, tags=["batch"])
        live = await kit.job_in(backend, status, tags=["batch"])
        caught = await kit.refused(backend, backend.delete_jobs(job_ids=[done.id, live.id]), InvalidTransition)
        assert (caught.job_id, caught.status) == (live.id, status)
        await kit.refused(backend, backend.delete_jobs(["batch"]), InvalidTransition)

    async def test_the_targets_are_those_with_all_the_tags_and_those_named(self, backend: Backend) -> None:
        # B-DEL-02
        for name, tags in (("both", ["eu", "slow"]), ("one", ["eu"]), ("named", []), ("left", ["slow"])):
            await kit.job_in(backend, S.STOPPED, name, tags=tags)
        await backend.delete_jobs(["eu", "slow"], ["named", "both"])
        assert sorted(job.id for job in await kit.all_jobs(backend)) == ["left", "one"]

    async def test_unknown_ids_are_passed_over(self, backend: Backend) -> None:
        # B-DEL-05 X-19
        job = await kit.job_in(backend, S.COMPLETED)
        await backend.delete_jobs(job_ids=["nobody", job.id])
        await backend.delete_jobs(job_ids=[job.id])
        assert await kit.all_jobs(backend) == []

    async def test_neither_tags_nor_ids_is_an_error_not_everything(self, backend: Backend) -> None:
        # B-DEL-01 X-16
        await kit.job_in(backend, S.COMPLETED)
        await kit.refused(backend, backend.delete_jobs())
        await kit.refused(backend, backend.delete_jobs(queue="default"))

    async def test_a_queue_narrows_what_is_removed(self, backend: Backend) -> None:
        for queue in ("mail", "bills"):
            await kit.job_in(backend, S.COMPLETED, queue, queue=queue, tags=["eu"])
        await backend.delete_jobs(["eu"], ["bills"], queue="mail")
        assert [job.id for job in await kit.all_jobs(backend)] == ["bills"]

    # -- clean up

    async def test_cleanup_removes_jobs_completed_longer_ago(self, backend: Backend, clock: HeldClock) -> None:
        # B-CLN-02 B-CLN-04 X-32
        await kit.job_in(backend, S.COMPLETED, "old", created_at=clock.now() - 9 * DAY)
        clock.advance(TICK)
        await kit.job_in(backend, S.COMPLETED, "new", created_at=clock.now() - 9 * DAY)
        clock.advance(timedelta(hours=1) - TICK)
        assert await backend.cleanup_expired_jobs(timedelta(hours=1)) == 1
        assert [job.id for job in await kit.all_jobs(backend)] == ["new"]
        assert (await backend.get_job_stats()).completed_jobs == 1
        assert (await kit.story(backend, "old"))[-1] == "job.removed"
        assert await backend.cleanup_expired_jobs(timedelta(hours=1)) == 0

    @pytest.mark.parametrize("status", [status for status in kit.EVERY_STATUS if status is not S.COMPLETED])
    async def test_only_completed_jobs_are_cleaned_up(self, backend: Backend, clock: HeldClock, status: S) -> None:
        # B-CLN-02
        await kit.job_in(backend, status)
        clock.advance(1000 * DAY)
        async with kit.nothing_changes(backend):
            assert await backend.cleanup_expired_jobs(1) == 0

    async def test_a_clean_up_goes_through_however_many_there_are(self, backend: Backend, clock: HeldClock) -> None:
        # B-CLN-03
        await backend.enqueue_jobs([kit.new_job(queue=f"q{number % 3}") for number in range(1100)])
        for job in await backend.dequeue_jobs("worker-1", limit=1100):
            await backend.complete_job(job.id)
        clock.advance(60)
        assert await backend.cleanup_expired_jobs(60, queue="q0") == 367
        assert await backend.cleanup_expired_jobs(60) == 733
        assert (await backend.get_job_stats()).total_jobs == 0

    @pytest.mark.parametrize("ttl", [0, -1, timedelta(0), timedelta(seconds=-1)])
    async def test_a_time_to_live_that_is_not_positive_is_refused(self, backend: Backend, ttl: float) -> None:
        # B-CLN-01
        await kit.job_in(backend, S.COMPLETED)
        await kit.refused(backend, backend.cleanup_expired_jobs(ttl), field="ttl")

    # -- retention

    @pytest.mark.parametrize(
        ("status", "days"),
        [(S.COMPLETED, 7), (S.STOPPED, 7), (S.UNSCHEDULED, 7), (S.UNKNOWN_STOPPED, 7), (S.CREATED, 7), (S.DEAD, 30)],
    )
    async def test_retention_removes_final_jobs(self, backend: Backend, clock: HeldClock, status: S, days: int) -> None:
        #
        job = await kit.job_in(backend, status)
        clock.advance(days * DAY - TICK)
        await kit.retain(backend)
        assert await kit.status_of(backend, job.id) is status
        clock.advance(TICK)
        assert await kit.retain(backend) > 0
        assert await kit.all_jobs(backend) == []
        assert await backend.apply_retention() == 0

    @pytest.mark.parametrize("status", [s for s in kit.EVERY_STATUS if s not in FINAL and s is not S.CREATED])
    async def test_retention_keeps_unfinished_jobs(self, backend: Backend, clock: HeldClock, status: S) -> None:
        job = await kit.job_in(backend, status)
        clock.advance(4000 * DAY)
        await kit.retain(backend)
        assert await kit.status_of(backend, job.id) is status

    async def test_how_long_is_each_queues_own_and_may_be_for_ever(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_retention("short", finished=60, dead=120)
        await backend.set_retention("archive", finished=None, dead=None)
        for queue in ("short", "archive", "default"):
            await kit.job_in(backend, S.COMPLETED, f"done {queue}", queue=queue)
            await kit.job_in(backend, S.DEAD, f"dead {queue}", queue=queue)
        clock.advance(60)
        await kit.retain(backend)
        assert "done short" not in {job.id for job in await kit.all_jobs(backend)}
        clock.advance(60)
        await kit.retain(backend)
        assert "dead short" not in {job.id for job in await kit.all_jobs(backend)}
        clock.advance(1000 * DAY)
        await kit.retain(backend)
        assert sorted(job.id for job in await kit.all_jobs(backend)) == ["dead archive", "done archive"]

    async def test_a_retention_that_is_not_named_stays_as_it_is(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_retention("default", finished=60)
        await backend.set_retention("default", dead=None)
        await kit.job_in(backend, S.COMPLETED)
        dead = await kit.job_in(backend, S.DEAD)
        clock.advance(60)
        await kit.retain(backend)
        clock.advance(1000 * DAY)
        await kit.retain(backend)
        assert [job.id for job in await kit.all_jobs(backend)] == [dead.id]

    async def test_retention_goes_in_batches(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([kit.new_job() for _ in range(10)])
        for job in await backend.dequeue_jobs("worker-1", limit=10):
            await backend.complete_job(job.id)
        clock.advance(8 * DAY)
        assert await backend.apply_retention(limit=4) == 4
        assert (await backend.get_job_stats()).total_jobs == 6


# Written by hand from the documents: the transitions of all operations, except those reserved to one of them.
BY_HAND: dict[S, set[S]] = {
    S.CREATED: {S.UNSCHEDULED},
    S.WAITING_CHILDREN: {S.UNSCHEDULED},
    S.INITIAL_PENDING: {S.RUNNING, S.UNSCHEDULED},
    S.FAILED_RETRY: {S.RUNNING, S.STOPPED, S.DEAD},
    S.UNKNOWN_RETRY: {S.RUNNING, S.COMPLETED, S.FAILED_RETRY, S.STOPPED, S.UNKNOWN_STOPPED, S.DEAD},
    S.RUNNING: {S.COMPLETED, S.FAILED_RETRY, S.STOPPED, S.UNKNOWN_STOPPED, S.CANCELLING, S.UNKNOWN_RETRY},
    S.CANCELLING: {S.COMPLETED, S.STOPPED, S.UNKNOWN_STOPPED},
    S.UNKNOWN_STOPPED: {S.COMPLETED},
    S.COMPLETED: set(),
    S.STOPPED: set(),
    S.UNSCHEDULED: set(),
    S.DEAD: set(),
}
LEGAL = [(source, target) for source, targets in BY_HAND.items() for target in sorted(targets)]


class TestUpdates:
    """`update_job_status`: for transitions that no other operation makes."""

    @pytest.mark.parametrize(("source", "target"), LEGAL, ids=lambda status: status.value)
    async def test_update_makes_a_legal_move(self, backend: Backend, clock: HeldClock, source: S, target: S) -> None:
        # B-UPD-01 B-UPD-03 B-UPD-04 B-UPD-05 B-UPD-06 B-UPD-07 B-INV-03 X-10 X-15
        job = await kit.job_in(backend, source)
        clock.advance(1)
        freed = await backend.update_job_status(job.id, target)
        after = await backend.get_job(job.id)
        assert after.status is target
        leaves = source in HOLDS_CAPACITY and target not in HOLDS_CAPACITY
        assert freed == ({"worker-1": 1} if leaves else {})
        assert (after.executions, after.retry_count, after.crashes) == (job.executions, job.retry_count, job.crashes)
        assert (after.last_retry_at, after.assignee_id) == (job.last_retry_at, job.assignee_id)
        assert after.assigned_at == job.assigned_at
        started = clock.now() if target is S.RUNNING and job.started_at is None else job.started_at
        assert after.started_at == started
        if target.final:
            assert after.finalized_at == (job.finalized_at or clock.now())
        event = (await kit.history(backend, job.id))[-1]
        assert (event.event, event.from_status, event.to_status) == ("job.updated", source, target)

    @pytest.mark.parametrize("source", kit.EVERY_STATUS)
    async def test_every_move_outside_the_table_is_refused(self, backend: Backend, source: S) -> None:
        # B-UPD-01 B-UPD-08 B-ERR-02 B-INV-03 X-10
        job = await kit.job_in(backend, source)
        for target in kit.EVERY_STATUS:
            if target is not source and target not in BY_HAND[source]:
                caught = await kit.refused(backend, backend.update_job_status(job.id, target), InvalidTransition)
                assert (caught.status, caught.target) == (source, target)

    @pytest.mark.parametrize("status", kit.EVERY_STATUS)
    async def test_the_same_status_again_changes_nothing_and_raises_nothing(self, backend: Backend, status: S) -> None:
        #
        job = await kit.job_in(backend, status)
        async with kit.nothing_changes(backend):
            assert await backend.update_job_status(job.id, status) == {}

    async def test_an_unknown_job_is_not_found(self, backend: Backend) -> None:
        # B-UPD-08
        await kit.refused(backend, backend.update_job_status("nobody", S.STOPPED), JobNotFound)

    async def test_a_result_and_an_error_are_written_only_where_they_are_given(self, backend: Backend) -> None:
        # B-UPD-02
        job = await kit.job_in(backend, S.FAILED_RETRY)
        await backend.update_job_status(job.id, S.RUNNING)
        assert (await backend.get_job(job.id)).error_message == "failed by the test setup"
        await backend.update_job_status(job.id, S.UNKNOWN_STOPPED, result=b"half", error="power cut")
        half = await backend.get_job(job.id)
        assert (half.result, half.error_message) == (b"half", "power cut")
        await backend.update_job_status(job.id, S.COMPLETED)
        done = await backend.get_job(job.id)
        assert (done.result, done.error_message) == (b"half", "power cut")
        job = await kit.job_in(backend, S.RUNNING)
        await backend.update_job_status(job.id, S.COMPLETED, result=b"")
        assert (await backend.get_job(job.id)).result == b""

    async def test_update_to_running_sets_a_lease_without_an_owner(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.job_in(backend, S.UNKNOWN_RETRY)
        clock.advance(1)
        assert await backend.update_job_status(job.id, S.RUNNING) == {}
        running = await backend.get_job(job.id)
        lease = kit.lease_of(running)
        assert (lease.epoch, lease.expires_at) == (2, clock.now() + kit.seconds(30))
        assert running.started_at == job.started_at
        # it frees no slot, because no worker held one
        assert await backend.complete_job(job.id) == {}

    async def test_a_job_set_running_is_recovered_by_the_sweep(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.job_in(backend, S.INITIAL_PENDING)
        await backend.update_job_status(job.id, S.RUNNING)
        clock.advance(30)
        assert [swept.id for swept in await backend.reclaim_expired_leases()] == [job.id]
        assert (await kit.claim(backend)).id == job.id

    async def test_a_job_set_running_is_not_the_worker_s_that_had_it_before(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.UNKNOWN_RETRY)
        await backend.update_job_status(job.id, S.RUNNING)
        await backend.mark_worker_unresponsive("worker-1")
        assert await kit.status_of(backend, job.id) is S.RUNNING

    async def test_a_change_of_status_by_hand_frees_the_slot_of_its_queue(self, backend: Backend) -> None:
        await backend.set_limits("default", running=1)
        job = await kit.job_in(backend, S.RUNNING)
        await kit.enqueue(backend, "next")
        assert await backend.dequeue_jobs("worker-2") == []
        await backend.update_job_status(job.id, S.STOPPED)
        assert (await kit.claim(backend, "worker-2")).id == "next"

    @pytest.mark.parametrize("limits", [{"running": 1}, {"per_key": 1}])
    async def test_a_job_is_not_set_running_beyond_a_full_limit(self, backend: Backend, limits: dict[str, Any]) -> None:
        await backend.set_limits("default", **limits)
        running = await kit.job_in(backend, S.RUNNING, concurrency_key="customer-1")
        waiting = await kit.job_in(backend, S.INITIAL_PENDING, concurrency_key="customer-1")
        await kit.refused(backend, backend.update_job_status(waiting.id, S.RUNNING), InvalidTransition)
        await backend.complete_job(running.id)
        await backend.update_job_status(waiting.id, S.RUNNING)
        assert kit.steps(await kit.history(backend, waiting.id))[-1] == (S.INITIAL_PENDING, S.RUNNING)
