"""Dependencies: satisfied, failed, missing, removed, circular; a policy for each edge."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter
from longshore.core.status import FINAL
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

ENDED_OTHERWISE = sorted(FINAL - {S.COMPLETED})
POLICIES = [
    ({}, S.WAITING_CHILDREN),
    ({"on_dependency_failure": "stop"}, S.UNSCHEDULED),
    ({"on_dependency_failure": "ignore"}, S.INITIAL_PENDING),
]


async def end(backend: Backend, job_id: str, status: S) -> None:
    """Bring a pending job to this final status."""
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

    # -- satisfied

    async def test_a_job_waits_until_the_one_it_depends_on_has_completed(self, backend: Backend) -> None:
        #
        await kit.enqueue(backend, "first")
        second = await kit.enqueue(backend, "second", depends_on=["first"])
        assert (second.status, second.depends_on) == (S.WAITING_CHILDREN, ("first",))
        assert await kit.story(backend, "second") == ["job.added", "job.waiting_children"]
        assert (await kit.claim(backend)).id == "first"
        assert await backend.dequeue_jobs("worker-1") == []
        await backend.complete_job("first")
        assert await kit.status_of(backend, "second") is S.INITIAL_PENDING
        assert (await kit.story(backend, "second"))[2:] == ["job.dependencies_completed", "job.promoted"]
        assert (await kit.claim(backend)).id == "second"

    async def test_a_job_whose_dependencies_are_all_completed_waits_for_nothing(self, backend: Backend) -> None:
        done = await kit.job_in(backend, S.COMPLETED)
        job = await kit.enqueue(backend, depends_on=[done.id])
        assert (job.status, job.depends_on) == (S.INITIAL_PENDING, (done.id,))

    async def test_a_job_waits_for_the_last_of_many(self, backend: Backend) -> None:
        parents = [f"p{number}" for number in range(20)]
        await backend.enqueue_jobs([kit.new_job(name) for name in parents])
        await kit.enqueue(backend, "fan-in", depends_on=parents)
        for name in parents:
            assert await kit.status_of(backend, "fan-in") is S.WAITING_CHILDREN
            await kit.run_next(backend, name)
        assert await kit.status_of(backend, "fan-in") is S.INITIAL_PENDING

    async def test_many_wait_for_one_and_all_are_set_free_in_one_go(self, backend: Backend) -> None:
        await kit.enqueue(backend, "parent")
        await backend.enqueue_jobs([kit.new_job(f"c{number}", depends_on=("parent",)) for number in range(20)])
        await kit.run_next(backend, "parent")
        assert (await backend.count_jobs())[S.INITIAL_PENDING] == 20

    async def test_a_batch_of_endings_sets_a_dependent_free_once(self, backend: Backend) -> None:
        await backend.enqueue_jobs([kit.new_job(f"p{number}") for number in range(3)])
        await kit.enqueue(backend, "child", depends_on=["p0", "p1", "p2"])
        held = await backend.dequeue_jobs("worker-1", limit=3)
        await backend.settle_jobs([Outcome(job.id, job.lease, "complete") for job in held])
        assert (await kit.story(backend, "child")).count("job.dependencies_completed") == 1
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_whole_flow_may_come_in_one_batch_in_any_order(self, backend: Backend) -> None:
        await backend.enqueue_jobs(
            [
                kit.new_job("report", depends_on=("left", "right")),
                kit.new_job("left", depends_on=("load",)),
                kit.new_job("load"),
                kit.new_job("right", depends_on=("load",)),
            ]
        )
        ran = []
        while jobs := await backend.dequeue_jobs("worker-1", limit=10):
            ran.append(sorted(job.id for job in jobs))
            for job in jobs:
                await backend.complete_job(job.id)
        assert ran == [["load"], ["left", "right"], ["report"]]

    async def test_a_dependent_set_free_still_waits_for_its_time(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "parent")
        await kit.enqueue(backend, "child", depends_on=["parent"], run_at=60)
        await kit.run_next(backend, "parent")
        assert (await kit.story(backend, "child"))[-2:] == ["job.dependencies_completed", "job.delayed"]
        assert await backend.dequeue_jobs("worker-1") == []
        clock.advance(60)
        assert (await kit.claim(backend)).id == "child"

    async def test_a_dependent_set_free_stands_where_its_age_puts_it(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "parent")
        await kit.enqueue(backend, "old child", depends_on=["parent"])
        clock.advance(1)
        await kit.claim(backend)
        await kit.enqueue(backend, "newcomer")
        clock.advance(1)
        await backend.complete_job("parent")
        assert await kit.claimable(backend) == ["old child", "newcomer"]

    async def test_a_dependency_named_twice_counts_once(self, backend: Backend) -> None:
        await kit.enqueue(backend, "parent")
        child = await kit.enqueue(backend, "child", depends_on=("parent", "parent"))
        assert child.depends_on == ("parent",)
        await kit.run_next(backend, "parent")
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_late_result_counts_as_completed(self, backend: Backend) -> None:
        parent = await kit.job_in(backend, S.UNKNOWN_STOPPED)
        await kit.enqueue(backend, "child", depends_on=[parent.id])
        assert await kit.status_of(backend, "child") is S.WAITING_CHILDREN
        await backend.complete_job(parent.id)
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    # -- a dependency that does not complete

    @pytest.mark.parametrize("ended", ENDED_OTHERWISE)
    @pytest.mark.parametrize("before", [True, False], ids=["before the dependent came", "while it waits"])
    @pytest.mark.parametrize(("options", "expected"), POLICIES, ids=["by default", "stop", "ignore"])
    async def test_the_policy_decides_when_a_dependency_fails(
        self, backend: Backend, ended: S, before: bool, options: dict[str, str], expected: S
    ) -> None:
        #
        await kit.enqueue(backend, "parent")
        if before:
            await end(backend, "parent", ended)
        await kit.enqueue(backend, "child", depends_on=["parent"], **options)
        if not before:
            await end(backend, "parent", ended)
        child = await backend.get_job("child")
        assert child.status is expected
        if expected is S.UNSCHEDULED:
            assert "parent" in child.error_message
            last = (await kit.history(backend, "child"))[-1]
            assert (last.event, last.detail["dependency"]) == ("job.stopped", "parent")
            assert (last.from_status, last.to_status) == (S.WAITING_CHILDREN, S.UNSCHEDULED)

    @pytest.mark.parametrize("policy", ["wait", "stop", "ignore"])
    async def test_a_failure_that_will_be_retried_is_not_final(self, backend: Backend, policy: str) -> None:
        await kit.enqueue(backend, "parent")
        await kit.enqueue(backend, "child", depends_on=["parent"], on_dependency_failure=policy)
        await kit.claim(backend)
        await backend.fail_job("parent", "again")
        await kit.claim(backend)
        await backend.reset_running_jobs()
        assert await kit.status_of(backend, "child") is S.WAITING_CHILDREN

    async def test_a_dead_dependency_brought_back_can_still_set_the_job_free(self, backend: Backend) -> None:
        parent = await kit.job_in(backend, S.DEAD)
        await kit.enqueue(backend, "child", depends_on=[parent.id])
        await backend.retry_job(parent.id)
        await kit.run_next(backend, parent.id)
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    async def test_stopping_runs_down_a_chain(self, backend: Backend) -> None:
        await kit.enqueue(backend, "a")
        for child, parent in (("b", "a"), ("c", "b"), ("d", "c")):
            await kit.enqueue(backend, child, depends_on=[parent], on_dependency_failure="stop")
        await backend.cancel_jobs(job_ids=["a"])
        assert [await kit.status_of(backend, name) for name in "abcd"] == [S.UNSCHEDULED] * 4

    async def test_a_job_dead_of_crashes_stops_its_dependents(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "parent", max_crashes=0)
        await kit.enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="stop")
        await kit.claim(backend)
        clock.advance(30)
        await backend.reclaim_expired_leases()
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED

    async def test_a_cancelled_dependent_stays_cancelled_when_its_dependency_completes(self, backend: Backend) -> None:
        await kit.enqueue(backend, "parent")
        await kit.enqueue(backend, "child", depends_on=["parent"])
        await backend.cancel_jobs(job_ids=["child"])
        await kit.run_next(backend, "parent")
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED

    async def test_parent_and_child_can_be_cancelled_in_one_call(self, backend: Backend) -> None:
        await kit.enqueue(backend, "parent", tags=["flow"])
        await kit.enqueue(backend, "child", tags=["flow"], depends_on=["parent"], on_dependency_failure="stop")
        cancelled, unknown = await backend.cancel_jobs(["flow"])
        assert (sorted(cancelled), unknown) == (["child", "parent"], [])
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED

    # -- missing and removed

    @pytest.mark.parametrize("policy", ["wait", "stop", "ignore"])
    async def test_an_unknown_dependency_is_waited_for_and_may_come_later(self, backend: Backend, policy: str) -> None:
        #
        await kit.enqueue(backend, "child", depends_on=["to come"], on_dependency_failure=policy)
        assert await kit.status_of(backend, "child") is S.WAITING_CHILDREN
        await kit.enqueue(backend, "to come")
        await kit.run_next(backend, "to come")
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_removed_completed_dependency_counts_for_a_day(self, backend: Backend, clock: HeldClock) -> None:
        #
        done = await kit.job_in(backend, S.COMPLETED, "done")
        await backend.delete_jobs(job_ids=[done.id])
        clock.advance(timedelta(days=1) - kit.seconds(1))
        assert (await kit.enqueue(backend, "in time", depends_on=["done"])).status is S.INITIAL_PENDING
        clock.advance(1)
        assert (await kit.enqueue(backend, "too late", depends_on=["done"])).status is S.WAITING_CHILDREN

    async def test_a_completed_dependency_may_be_removed(self, backend: Backend, clock: HeldClock) -> None:
        #
        await kit.job_in(backend, S.COMPLETED, "done")
        await kit.enqueue(backend, "pending")
        await kit.enqueue(backend, "child", depends_on=["done", "pending"])
        await backend.delete_jobs(job_ids=["done"])
        clock.advance(timedelta(days=3))
        await backend.apply_retention()
        await kit.run_next(backend, "pending")
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_stopped_dependency_that_was_removed_counts_as_its_end_did(self, backend: Backend) -> None:
        await kit.job_in(backend, S.STOPPED, "stopped")
        await backend.delete_jobs(job_ids=["stopped"])
        for policy, status in (("wait", S.WAITING_CHILDREN), ("stop", S.UNSCHEDULED), ("ignore", S.INITIAL_PENDING)):
            job = await kit.enqueue(backend, depends_on=["stopped"], on_dependency_failure=policy)
            assert job.status is status

    async def test_a_dependency_in_the_batch_wins_over_a_removed_job(self, backend: Backend) -> None:
        await kit.job_in(backend, S.COMPLETED, "parent")
        await backend.delete_jobs(job_ids=["parent"])
        await backend.enqueue_jobs([kit.new_job("child", depends_on=("parent",)), kit.new_job("parent")])
        assert await kit.status_of(backend, "child") is S.WAITING_CHILDREN
        await kit.run_next(backend, "parent")
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    # -- circles

    async def test_a_job_that_depends_on_itself_is_refused(self, backend: Backend) -> None:
        #
        caught = await kit.refused(
            backend, backend.enqueue_job(kit.new_job("ouroboros", depends_on=("ouroboros",))), field="depends_on"
        )
        assert "ouroboros -> ouroboros" in str(caught)

    async def test_a_path_through_ended_jobs_is_not_a_circle(self, backend: Backend) -> None:
        #
        await kit.enqueue(backend, "middle", depends_on=["start"])
        await backend.cancel_jobs(job_ids=["middle"])
        await kit.enqueue(backend, "end", depends_on=["middle"], on_dependency_failure="ignore")
        assert (await kit.enqueue(backend, "start", depends_on=["end"])).status is S.WAITING_CHILDREN

    async def test_a_circle_in_one_batch_is_refused_with_its_path(self, backend: Backend) -> None:
        #
        batch = [
            kit.new_job("a", depends_on=("b",)),
            kit.new_job("b", depends_on=("c",)),
            kit.new_job("c", depends_on=("a",)),
        ]
        caught = await kit.refused(backend, backend.enqueue_jobs([kit.new_job("bystander"), *batch]))
        assert "a -> b -> c -> a" in str(caught)

    async def test_a_circle_closed_through_stored_jobs_is_refused(self, backend: Backend) -> None:
        #
        await kit.enqueue(backend, "a", depends_on=["b"])
        await kit.enqueue(backend, "b", depends_on=["c"])
        error = await kit.refused(backend, backend.enqueue_job(kit.new_job("c", depends_on=("a",))), field="depends_on")
        assert "c -> a -> b -> c" in str(error)

    async def test_a_diamond_is_not_a_circle(self, backend: Backend) -> None:
        await kit.enqueue(backend, "bottom", depends_on=["left", "right"])
        await backend.enqueue_jobs(
            [kit.new_job("left", depends_on=("top",)), kit.new_job("right", depends_on=("top",))]
        )
        await kit.enqueue(backend, "top")
        await kit.run_next(backend, "top")
        assert sorted(await kit.claimable(backend)) == ["left", "right"]

    # -- with the two-phase submit

    async def test_a_created_job_waits_for_its_dependencies_only_once_it_is_accepted(self, backend: Backend) -> None:
        await kit.enqueue(backend, "parent")
        job = await kit.enqueue(backend, "child", status=S.CREATED, depends_on=["parent"])
        assert job.status is S.CREATED
        await kit.run_next(backend, "parent")
        assert await kit.status_of(backend, "child") is S.CREATED
        await backend.accept_jobs(["child"])
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING

    async def test_a_created_job_with_a_failed_dependency_is_stopped_when_accepted(self, backend: Backend) -> None:
        await kit.enqueue(backend, "parent")
        await kit.enqueue(backend, "child", status=S.CREATED, depends_on=["parent"], on_dependency_failure="stop")
        await backend.cancel_jobs(job_ids=["parent"])
        assert await kit.status_of(backend, "child") is S.CREATED
        await backend.accept_jobs(["child"])
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED


MANY = 300


def policies(**by_id: str) -> dict[str, Any]:
    """Return options that give single edges their policies."""
    return {"options": {"dependency_policies": by_id}}


class TestEdges:
    """The effect of one edge among many."""

    # -- the edges of a job

    async def test_a_job_names_its_dependencies_and_its_parent(self, backend: Backend) -> None:
        # M-JOB-19 M-OPT-16 M-OPT-17 M-SCH-08
        await kit.enqueue(backend, "extract", parent_id="import")
        await kit.enqueue(backend, "unrelated", parent_id="export")
        load = await kit.enqueue(backend, "load", depends_on=["extract", "to come"], parent_id="import")
        assert (load.depends_on, load.parent_id, load.status) == (("extract", "to come"), "import", S.WAITING_CHILDREN)
        found = await kit.all_jobs(backend, JobFilter(parent_id="import"))
        assert sorted(job.id for job in found) == ["extract", "load"]

    async def test_dependencies_are_returned_in_order_by_every_read(self, backend: Backend) -> None:
        # M-JOB-19
        await backend.enqueue_jobs([kit.new_job("a"), kit.new_job("b"), kit.new_job("c", depends_on=("b", "a"))])
        await backend.enqueue_jobs([kit.new_job("d", depends_on=("c", "a", "b")), kit.new_job("e")])
        expected = {"a": (), "b": (), "c": ("b", "a"), "d": ("c", "a", "b"), "e": ()}
        assert {job.id: job.depends_on for job in await kit.all_jobs(backend)} == expected
        claimed = {}
        while jobs := await backend.dequeue_jobs("worker-1", limit=10):
            claimed.update({job.id: job.depends_on for job in jobs})
            await backend.settle_jobs([Outcome(job.id, job.lease) for job in jobs])
        assert claimed == expected

    @pytest.mark.parametrize(
        ("run_at", "last"), [(None, "job.promoted"), (60, "job.delayed")], ids=["at once", "at its time"]
    )
    async def test_the_last_one_frees(self, backend: Backend, clock: HeldClock, run_at: int | None, last: str) -> None:
        # M-TR-03 M-TR-06 M-EV-15 M-SCHED-11 X-91
        await backend.enqueue_jobs([kit.new_job("a"), kit.new_job("b")])
        child = await kit.enqueue(backend, "child", depends_on=["a", "b"], run_at=run_at)
        assert child.status is S.WAITING_CHILDREN
        waiting = (await kit.history(backend, "child"))[-1]
        assert (waiting.event, waiting.detail) == ("job.waiting_children", {"waiting_for": 2})
        clock.advance(1)
        held = await backend.dequeue_jobs("worker-1", limit=2)
        await backend.settle_jobs([Outcome(held[0].id, held[0].lease)])
        assert await kit.status_of(backend, "child") is S.WAITING_CHILDREN
        clock.advance(1)
        await backend.settle_jobs([Outcome(held[1].id, held[1].lease)])
        assert await kit.status_of(backend, "child") is S.INITIAL_PENDING
        assert await kit.story(backend, "child") == [
            "job.added",
            "job.waiting_children",
            "job.dependencies_completed",
            last,
        ]
        [done] = [event for event in await kit.history(backend, "child") if event.event == "job.dependencies_completed"]
        (ended,) = [event for event in await kit.history(backend, held[1].id) if event.event == "job.completed"]
        assert done.occurred_at == ended.occurred_at
        assert (done.from_status, done.to_status) == (S.WAITING_CHILDREN, S.INITIAL_PENDING)

    @pytest.mark.parametrize("run_at", [None, 60], ids=["at once", "at its time"])
    async def test_met_dependencies_leave_a_job_pending(self, backend: Backend, run_at: int | None) -> None:
        # M-TR-03
        done = await kit.job_in(backend, S.COMPLETED)
        job = await kit.enqueue(backend, "child", depends_on=[done.id], run_at=run_at)
        assert job.status is S.INITIAL_PENDING
        assert "job.waiting_children" not in await kit.story(backend, "child")

    # -- a policy per edge

    @pytest.mark.parametrize(
        ("ended", "policy", "expected"),
        [
            (S.DEAD, "ignore", S.INITIAL_PENDING),
            (S.DEAD, "stop", S.UNSCHEDULED),
            (S.DEAD, "wait", S.WAITING_CHILDREN),
            (S.STOPPED, "ignore", S.INITIAL_PENDING),
            (S.STOPPED, "stop", S.UNSCHEDULED),
            (S.STOPPED, "wait", S.WAITING_CHILDREN),
        ],
    )
    @pytest.mark.parametrize("usual", ["wait", "stop", "ignore"])
    @pytest.mark.parametrize("before", [True, False], ids=["before the dependent came", "while it waits"])
    async def test_the_policy_of_an_edge_overrides_that_of_its_job(
        self, backend: Backend, ended: S, policy: str, expected: S, usual: str, before: bool
    ) -> None:
        #
        await kit.job_in(backend, S.COMPLETED, "good")
        bad = await kit.job_in(backend, ended if before else S.RUNNING, "bad")
        child = kit.new_job("child", depends_on=("good", "bad"), on_dependency_failure=usual, **policies(bad=policy))
        await backend.enqueue_job(child)
        if not before and ended is S.DEAD:
            await backend.bury_job(bad.id, "hopeless")
        elif not before:
            await backend.stop_job(bad.id)
        assert await kit.status_of(backend, "child") is expected

    async def test_each_edge_is_judged_by_its_own_policy(self, backend: Backend) -> None:
        #
        await backend.enqueue_jobs([kit.new_job("optional"), kit.new_job("needed"), kit.new_job("vital")])
        child = kit.new_job(
            "child", depends_on=("optional", "needed", "vital"), **policies(optional="ignore", vital="stop")
        )
        await backend.enqueue_job(child)
        await backend.cancel_jobs(job_ids=["optional"])
        assert await kit.status_of(backend, "child") is S.WAITING_CHILDREN
        await backend.update_job_status("needed", S.RUNNING)
        await backend.bury_job("needed", "for now")
        assert await kit.status_of(backend, "child") is S.WAITING_CHILDREN
        await backend.cancel_jobs(job_ids=["vital"])
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED
        assert (await kit.history(backend, "child"))[-1].detail["dependency"] == "vital"

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"a": "explode"}, "options.dependency_policies.a"),
            ({"a": None}, "options.dependency_policies.a"),
            ({"b": "wait"}, "options.dependency_policies"),
            (["a"], "options.dependency_policies"),
        ],
    )
    async def test_bad_edge_policies_are_refused(self, backend: Backend, given: object, field: str) -> None:
        await kit.refused(
            backend,
            backend.enqueue_job(kit.new_job(depends_on=("a",), options={"dependency_policies": given})),
            field=field,
        )

    # -- a job that ends in the middle of a chain

    async def test_a_chain_behind_a_cancelled_step_waits_and_can_be_cancelled(self, backend: Backend) -> None:
        #
        await backend.enqueue_jobs(
            [
                kit.new_job("a"),
                kit.new_job("b", depends_on=("a",)),
                kit.new_job("c", depends_on=("b",), tags=("chain",)),
            ]
        )
        await backend.cancel_jobs(job_ids=["b"])
        await kit.run_next(backend, "a")
        assert [await kit.status_of(backend, name) for name in "abc"] == [
            S.COMPLETED,
            S.UNSCHEDULED,
            S.WAITING_CHILDREN,
        ]
        assert await backend.cancel_jobs(["chain"]) == (["c"], [])
        assert await kit.status_of(backend, "c") is S.UNSCHEDULED

    async def test_a_step_cancelled_under_ignore_releases_only_the_next_one(self, backend: Backend) -> None:
        await backend.enqueue_jobs([kit.new_job("a"), kit.new_job("b", depends_on=("a",))])
        await kit.enqueue(backend, "c", depends_on=["b"], on_dependency_failure="ignore")
        await kit.enqueue(backend, "d", depends_on=["c"])
        await backend.cancel_jobs(job_ids=["b"])
        assert await kit.status_of(backend, "c") is S.INITIAL_PENDING
        assert await kit.status_of(backend, "d") is S.WAITING_CHILDREN

    @pytest.mark.parametrize("policy", ["wait", "stop", "ignore"])
    async def test_a_chain_cancelled_at_once_releases_no_job(self, backend: Backend, policy: str) -> None:
        chain = [kit.new_job("j0")]
        chain += [kit.new_job(f"j{n}", depends_on=(f"j{n - 1}",), on_dependency_failure=policy) for n in range(1, 20)]
        await backend.enqueue_jobs(chain)
        cancelled, unknown = await backend.cancel_jobs(job_ids=[job.id for job in chain])
        assert (len(cancelled), unknown) == (20, [])
        assert (await backend.count_jobs())[S.UNSCHEDULED] == 20
        assert await backend.dequeue_jobs("worker-1") == []

    @pytest.mark.parametrize(
        ("policy", "expected"), [("wait", S.WAITING_CHILDREN), ("stop", S.UNSCHEDULED), ("ignore", S.INITIAL_PENDING)]
    )
    async def test_expiry_counts_as_failure(self, backend: Backend, clock: HeldClock, policy: str, expected: S) -> None:
        await kit.enqueue(backend, "late", expires_at=10)
        await kit.enqueue(backend, "child", depends_on=["late"], on_dependency_failure=policy)
        clock.advance(11)
        await backend.reclaim_expired_leases()
        assert (await backend.get_job("late")).status is S.UNSCHEDULED
        assert await kit.status_of(backend, "child") is expected

    async def test_a_job_may_expire_while_it_waits_for_another(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "slow")
        await kit.enqueue(backend, "child", depends_on=["slow"], expires_at=10)
        clock.advance(kit.seconds(11))
        await backend.reclaim_expired_leases()
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED
        await kit.run_next(backend, "slow")
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED

    async def test_a_job_stopped_by_its_dependency_stays_stopped_when_that_is_retried(self, backend: Backend) -> None:
        parent = await kit.job_in(backend, S.RUNNING, "parent")
        await kit.enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="stop")
        await backend.bury_job(parent.id, "hopeless")
        await backend.retry_job(parent.id)
        await kit.run_next(backend, parent.id)
        assert await kit.status_of(backend, "child") is S.UNSCHEDULED

    async def test_a_dependent_that_ignored_a_failure_runs_once(self, backend: Backend) -> None:
        parent = await kit.job_in(backend, S.RUNNING, "parent")
        await kit.enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="ignore")
        await backend.bury_job(parent.id, "hopeless")
        await kit.run_next(backend, "child")
        await backend.retry_job(parent.id)
        await kit.run_next(backend, "parent")
        assert await backend.dequeue_jobs("worker-1") == []

    # -- many dependencies

    async def test_a_wide_fan_in_is_set_free_by_the_last_of_very_many(self, backend: Backend) -> None:
        names = [f"p{number}" for number in range(MANY)]
        await backend.enqueue_jobs(
            [*(kit.new_job(name) for name in names), kit.new_job("fan-in", depends_on=tuple(names))]
        )
        ended = 0
        while held := [job for job in await backend.dequeue_jobs("worker-1", limit=37) if job.id != "fan-in"]:
            assert await kit.status_of(backend, "fan-in") is S.WAITING_CHILDREN
            await backend.settle_jobs([Outcome(job.id, job.lease) for job in held])
            ended += len(held)
            if ended == MANY:
                break
        assert await kit.story(backend, "fan-in") == [
            "job.added",
            "job.waiting_children",
            "job.dependencies_completed",
            "job.promoted",
        ]

    async def test_a_long_chain_in_one_batch_runs_in_order(self, backend: Backend) -> None:
        chain = [kit.new_job(f"j{n}", depends_on=(f"j{n + 1}",)) for n in range(MANY - 1)] + [
            kit.new_job(f"j{MANY - 1}")
        ]
        await backend.enqueue_jobs(chain)
        for number in reversed(range(MANY)):
            job = await kit.claim(backend)
            assert job.id == f"j{number}"
            await backend.settle_jobs([Outcome(job.id, job.lease)])
        assert (await backend.count_jobs())[S.COMPLETED] == MANY

    async def test_a_long_circle_is_refused_with_its_path(self, backend: Backend) -> None:
        #
        circle = [kit.new_job(f"j{n}", depends_on=(f"j{(n + 1) % MANY}",)) for n in range(MANY)]
        caught = await kit.refused(backend, backend.enqueue_jobs(circle), field="depends_on")
        assert "j0 -> j1 -> j2" in str(caught)

    async def test_stopping_runs_down_a_long_chain(self, backend: Backend) -> None:
        chain = [kit.new_job("j0")]
        chain += [kit.new_job(f"j{n}", depends_on=(f"j{n - 1}",), on_dependency_failure="stop") for n in range(1, MANY)]
        await backend.enqueue_jobs(chain)
        await backend.cancel_jobs(job_ids=["j0"])
        assert (await backend.count_jobs())[S.UNSCHEDULED] == MANY

    async def test_stopping_goes_as_far_as_the_policies_along_the_way_say(self, backend: Backend) -> None:
        """The chain ends at jobs that are not accepted, and jobs that ignore it become eligible at once."""
        await backend.enqueue_jobs(
            [
                kit.new_job("top"),
                kit.new_job("left", depends_on=["top"], on_dependency_failure="stop"),
                kit.new_job("right", depends_on=["top"], on_dependency_failure="stop"),
                kit.new_job("bottom", depends_on=["left", "right"], on_dependency_failure="stop"),
                kit.new_job("patient", depends_on=["bottom"], on_dependency_failure="wait"),
                kit.new_job("easy", depends_on=["bottom", "right"], on_dependency_failure="ignore"),
                kit.new_job("drawn up", status=S.CREATED, depends_on=["left"], on_dependency_failure="stop"),
                kit.new_job("after it", depends_on=["drawn up"], on_dependency_failure="stop"),
            ]
        )
        await backend.cancel_jobs(job_ids=["top"])
        jobs = {job.id: job for job in await kit.all_jobs(backend)}
        assert {job_id: job.status for job_id, job in jobs.items()} == {
            "top": S.UNSCHEDULED,
            "left": S.UNSCHEDULED,
            "right": S.UNSCHEDULED,
            "bottom": S.UNSCHEDULED,
            "patient": S.WAITING_CHILDREN,
            "easy": S.INITIAL_PENDING,
            "drawn up": S.CREATED,
            "after it": S.WAITING_CHILDREN,
        }
        assert jobs["left"].error_message.endswith(": top")
        assert jobs["bottom"].error_message.endswith(": left")
        await backend.accept_jobs(["drawn up"])
        assert (await backend.get_job("drawn up")).status is S.UNSCHEDULED
        assert (await backend.get_job("after it")).status is S.UNSCHEDULED
