"""Jobs that wait for jobs: satisfied, failed, missing, removed, circular; and what their ends set free."""

from __future__ import annotations

from datetime import timedelta

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.status import FINAL
from longshore.testing.conformance.staging import (
    S,
    claim,
    claimable,
    enqueue,
    history,
    job_in,
    new_job,
    refused,
    seconds,
    status_of,
    story,
)

ENDED_OTHERWISE = sorted(FINAL - {S.COMPLETED})


async def end(backend: Backend, job_id: str, status: S) -> None:
    """Brings a pending job to this final status."""
    if status is S.UNSCHEDULED:
        await backend.cancel_jobs(job_ids=[job_id])
        return
    await backend.update_job_status(job_id, S.RUNNING)
    if status is S.DEAD:
        await backend.bury_job(job_id, "hopeless")
    else:
        await backend.update_job_status(job_id, status)


class TestDependencies:
    """`depends_on` under the policies wait, stop and ignore."""

    # -- the plain way

    async def test_a_job_waits_until_the_one_it_depends_on_has_completed(self, backend: Backend) -> None:
        #
        await enqueue(backend, "first")
        second = await enqueue(backend, "second", depends_on=["first"])
        assert (second.status, second.depends_on) == (S.WAITING_CHILDREN, ("first",))
        assert await story(backend, "second") == ["job.added", "job.waiting_children"]
        assert (await claim(backend)).id == "first"
        assert await backend.dequeue_jobs("worker-1") == []
        await backend.complete_job("first")
        assert await status_of(backend, "second") is S.INITIAL_PENDING
        assert (await story(backend, "second"))[2:] == ["job.dependencies_completed", "job.promoted"]
        assert (await claim(backend)).id == "second"

    async def test_a_job_whose_dependencies_are_all_completed_waits_for_nothing(self, backend: Backend) -> None:
        done = await job_in(backend, S.COMPLETED)
        job = await enqueue(backend, depends_on=[done.id])
        assert (job.status, job.depends_on) == (S.INITIAL_PENDING, (done.id,))

    async def test_a_job_waits_for_the_last_of_many(self, backend: Backend) -> None:
        parents = [f"p{number}" for number in range(20)]
        await backend.enqueue_jobs([new_job(name) for name in parents])
        await enqueue(backend, "fan-in", depends_on=parents)
        for name in parents:
            assert await status_of(backend, "fan-in") is S.WAITING_CHILDREN
            await claim(backend)
            await backend.complete_job(name)
        assert await status_of(backend, "fan-in") is S.INITIAL_PENDING

    async def test_many_wait_for_one_and_all_are_set_free_in_one_go(self, backend: Backend) -> None:
        await enqueue(backend, "parent")
        await backend.enqueue_jobs([new_job(f"c{number}", depends_on=("parent",)) for number in range(20)])
        await claim(backend)
        await backend.complete_job("parent")
        assert (await backend.count_jobs())[S.INITIAL_PENDING] == 20

    async def test_a_batch_of_endings_sets_a_dependent_free_once(self, backend: Backend) -> None:
        await backend.enqueue_jobs([new_job(f"p{number}") for number in range(3)])
        await enqueue(backend, "child", depends_on=["p0", "p1", "p2"])
        held = await backend.dequeue_jobs("worker-1", limit=3)
        await backend.settle_jobs([Outcome(job.id, job.lease, "complete") for job in held])
        assert (await story(backend, "child")).count("job.dependencies_completed") == 1
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_whole_flow_may_come_in_one_batch_in_any_order(self, backend: Backend) -> None:
        await backend.enqueue_jobs(
            [
                new_job("report", depends_on=("left", "right")),
                new_job("left", depends_on=("load",)),
                new_job("load"),
                new_job("right", depends_on=("load",)),
            ]
        )
        ran = []
        while jobs := await backend.dequeue_jobs("worker-1", limit=10):
            ran.append(sorted(job.id for job in jobs))
            for job in jobs:
                await backend.complete_job(job.id)
        assert ran == [["load"], ["left", "right"], ["report"]]

    async def test_a_dependent_set_free_still_waits_for_its_time(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "parent")
        await enqueue(backend, "child", depends_on=["parent"], run_at=60)
        await claim(backend)
        await backend.complete_job("parent")
        assert (await story(backend, "child"))[-2:] == ["job.dependencies_completed", "job.delayed"]
        assert await backend.dequeue_jobs("worker-1") == []
        clock.advance(60)
        assert (await claim(backend)).id == "child"

    async def test_a_dependent_set_free_stands_where_its_age_puts_it(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "parent")
        await enqueue(backend, "old child", depends_on=["parent"])
        clock.advance(1)
        await claim(backend)
        await enqueue(backend, "newcomer")
        clock.advance(1)
        await backend.complete_job("parent")
        assert await claimable(backend) == ["old child", "newcomer"]

    async def test_a_dependency_named_twice_counts_once(self, backend: Backend) -> None:
        await enqueue(backend, "parent")
        child = await enqueue(backend, "child", depends_on=("parent", "parent"))
        assert child.depends_on == ("parent",)
        await claim(backend)
        await backend.complete_job("parent")
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_late_result_counts_as_completed(self, backend: Backend) -> None:
        parent = await job_in(backend, S.UNKNOWN_STOPPED)
        await enqueue(backend, "child", depends_on=[parent.id])
        assert await status_of(backend, "child") is S.WAITING_CHILDREN
        await backend.complete_job(parent.id)
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    # -- when a dependency ends otherwise

    @pytest.mark.parametrize("ended", ENDED_OTHERWISE)
    @pytest.mark.parametrize("before", [True, False], ids=["before the dependent came", "while it waits"])
    async def test_by_default_a_job_goes_on_waiting(self, backend: Backend, ended: S, before: bool) -> None:
        #
        await enqueue(backend, "parent")
        if before:
            await end(backend, "parent", ended)
        await enqueue(backend, "child", depends_on=["parent"])
        if not before:
            await end(backend, "parent", ended)
        assert await status_of(backend, "child") is S.WAITING_CHILDREN

    @pytest.mark.parametrize("ended", ENDED_OTHERWISE)
    @pytest.mark.parametrize("before", [True, False], ids=["before the dependent came", "while it waits"])
    async def test_under_stop_the_job_is_unscheduled_and_says_why(
        self, backend: Backend, clock: HeldClock, ended: S, before: bool
    ) -> None:
        #
        await enqueue(backend, "parent")
        if before:
            await end(backend, "parent", ended)
        await enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="stop")
        clock.advance(1)
        if not before:
            await end(backend, "parent", ended)
        child = await backend.get_job("child")
        assert child.status is S.UNSCHEDULED
        assert "parent" in child.error_message
        last = (await history(backend, "child"))[-1]
        assert (last.event, last.detail["dependency"]) == ("job.stopped", "parent")
        assert (last.from_status, last.to_status) == (S.WAITING_CHILDREN, S.UNSCHEDULED)

    @pytest.mark.parametrize("ended", ENDED_OTHERWISE)
    @pytest.mark.parametrize("before", [True, False], ids=["before the dependent came", "while it waits"])
    async def test_under_ignore_any_end_sets_the_job_free(self, backend: Backend, ended: S, before: bool) -> None:
        #
        await enqueue(backend, "parent")
        if before:
            await end(backend, "parent", ended)
        await enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="ignore")
        if not before:
            await end(backend, "parent", ended)
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    @pytest.mark.parametrize("policy", ["wait", "stop", "ignore"])
    async def test_a_failure_that_will_be_retried_is_no_end(self, backend: Backend, policy: str) -> None:
        await enqueue(backend, "parent")
        await enqueue(backend, "child", depends_on=["parent"], on_dependency_failure=policy)
        await claim(backend)
        await backend.fail_job("parent", "again")
        await claim(backend)
        await backend.reset_running_jobs()
        assert await status_of(backend, "child") is S.WAITING_CHILDREN

    async def test_a_dead_dependency_brought_back_can_still_set_the_job_free(self, backend: Backend) -> None:
        parent = await job_in(backend, S.DEAD)
        await enqueue(backend, "child", depends_on=[parent.id])
        await backend.retry_job(parent.id)
        await claim(backend)
        await backend.complete_job(parent.id)
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    async def test_stopping_runs_down_a_chain(self, backend: Backend) -> None:
        await enqueue(backend, "a")
        for child, parent in (("b", "a"), ("c", "b"), ("d", "c")):
            await enqueue(backend, child, depends_on=[parent], on_dependency_failure="stop")
        await backend.cancel_jobs(job_ids=["a"])
        assert [await status_of(backend, name) for name in "abcd"] == [S.UNSCHEDULED] * 4

    async def test_a_job_that_crashed_too_often_stops_who_waits_for_it(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await enqueue(backend, "parent", max_crashes=0)
        await enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="stop")
        await claim(backend)
        clock.advance(30)
        await backend.reclaim_expired_leases()
        assert await status_of(backend, "child") is S.UNSCHEDULED

    async def test_a_cancelled_dependent_stays_cancelled_when_its_dependency_completes(self, backend: Backend) -> None:
        await enqueue(backend, "parent")
        await enqueue(backend, "child", depends_on=["parent"])
        await backend.cancel_jobs(job_ids=["child"])
        await claim(backend)
        await backend.complete_job("parent")
        assert await status_of(backend, "child") is S.UNSCHEDULED

    async def test_parent_and_child_can_be_cancelled_in_one_call(self, backend: Backend) -> None:
        await enqueue(backend, "parent", tags=["flow"])
        await enqueue(backend, "child", tags=["flow"], depends_on=["parent"], on_dependency_failure="stop")
        cancelled, unknown = await backend.cancel_jobs(["flow"])
        assert (sorted(cancelled), unknown) == (["child", "parent"], [])
        assert await status_of(backend, "child") is S.UNSCHEDULED

    # -- missing and removed

    @pytest.mark.parametrize("policy", ["wait", "stop", "ignore"])
    async def test_an_unknown_dependency_is_waited_for_and_may_come_later(self, backend: Backend, policy: str) -> None:
        #
        await enqueue(backend, "child", depends_on=["to come"], on_dependency_failure=policy)
        assert await status_of(backend, "child") is S.WAITING_CHILDREN
        await enqueue(backend, "to come")
        await claim(backend)
        await backend.complete_job("to come")
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_completed_dependency_that_was_removed_counts_for_a_day(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        #
        done = await job_in(backend, S.COMPLETED, "done")
        await backend.delete_jobs(job_ids=[done.id])
        clock.advance(timedelta(days=1) - seconds(1))
        assert (await enqueue(backend, "in time", depends_on=["done"])).status is S.INITIAL_PENDING
        clock.advance(1)
        assert (await enqueue(backend, "too late", depends_on=["done"])).status is S.WAITING_CHILDREN

    async def test_a_dependency_removed_after_it_completed_leaves_its_dependents_satisfied(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        #
        await job_in(backend, S.COMPLETED, "done")
        await enqueue(backend, "pending")
        await enqueue(backend, "child", depends_on=["done", "pending"])
        await backend.delete_jobs(job_ids=["done"])
        clock.advance(timedelta(days=3))
        await backend.apply_retention()
        await claim(backend)
        await backend.complete_job("pending")
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_stopped_dependency_that_was_removed_counts_as_its_end_did(self, backend: Backend) -> None:
        await job_in(backend, S.STOPPED, "stopped")
        await backend.delete_jobs(job_ids=["stopped"])
        for policy, status in (("wait", S.WAITING_CHILDREN), ("stop", S.UNSCHEDULED), ("ignore", S.INITIAL_PENDING)):
            job = await enqueue(backend, depends_on=["stopped"], on_dependency_failure=policy)
            assert job.status is status

    async def test_a_dependency_in_the_same_batch_is_meant_not_a_removed_job_that_had_its_id(
        self, backend: Backend
    ) -> None:
        await job_in(backend, S.COMPLETED, "parent")
        await backend.delete_jobs(job_ids=["parent"])
        await backend.enqueue_jobs([new_job("child", depends_on=("parent",)), new_job("parent")])
        assert await status_of(backend, "child") is S.WAITING_CHILDREN
        await claim(backend)
        await backend.complete_job("parent")
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    # -- circles

    async def test_a_job_that_depends_on_itself_is_refused(self, backend: Backend) -> None:
        #
        async with refused(backend, InvalidArgument, field="depends_on") as caught:
            await backend.enqueue_job(new_job("ouroboros", depends_on=("ouroboros",)))
        assert "ouroboros -> ouroboros" in str(caught.value)

    async def test_a_path_that_nobody_waits_along_any_more_is_no_circle(self, backend: Backend) -> None:
        #
        await enqueue(backend, "middle", depends_on=["start"])
        await backend.cancel_jobs(job_ids=["middle"])
        await enqueue(backend, "end", depends_on=["middle"], on_dependency_failure="ignore")
        assert (await enqueue(backend, "start", depends_on=["end"])).status is S.WAITING_CHILDREN

    async def test_a_circle_in_one_batch_is_refused_with_its_path(self, backend: Backend) -> None:
        #
        batch = [new_job("a", depends_on=("b",)), new_job("b", depends_on=("c",)), new_job("c", depends_on=("a",))]
        async with refused(backend, InvalidArgument) as caught:
            await backend.enqueue_jobs([new_job("bystander"), *batch])
        assert "a -> b -> c -> a" in str(caught.value)

    async def test_a_circle_closed_through_stored_jobs_is_refused(self, backend: Backend) -> None:
        #
        await enqueue(backend, "a", depends_on=["b"])
        await enqueue(backend, "b", depends_on=["c"])
        async with refused(backend, InvalidArgument, field="depends_on") as caught:
            await backend.enqueue_job(new_job("c", depends_on=("a",)))
        assert "c -> a -> b -> c" in str(caught.value)

    async def test_a_diamond_is_no_circle(self, backend: Backend) -> None:
        await enqueue(backend, "bottom", depends_on=["left", "right"])
        await backend.enqueue_jobs([new_job("left", depends_on=("top",)), new_job("right", depends_on=("top",))])
        await enqueue(backend, "top")
        await claim(backend)
        await backend.complete_job("top")
        assert sorted(await claimable(backend)) == ["left", "right"]

    # -- together with the two-phase submit

    async def test_a_created_job_waits_for_its_dependencies_only_once_it_is_accepted(self, backend: Backend) -> None:
        await enqueue(backend, "parent")
        job = await enqueue(backend, "child", status=S.CREATED, depends_on=["parent"])
        assert job.status is S.CREATED
        await claim(backend)
        await backend.complete_job("parent")
        assert await status_of(backend, "child") is S.CREATED
        await backend.accept_jobs(["child"])
        assert await status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_created_job_whose_dependency_failed_meanwhile_is_stopped_when_accepted(
        self, backend: Backend
    ) -> None:
        await enqueue(backend, "parent")
        await enqueue(backend, "child", status=S.CREATED, depends_on=["parent"], on_dependency_failure="stop")
        await backend.cancel_jobs(job_ids=["parent"])
        assert await status_of(backend, "child") is S.CREATED
        await backend.accept_jobs(["child"])
        assert await status_of(backend, "child") is S.UNSCHEDULED
