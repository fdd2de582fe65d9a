"""Each dependency for itself: a policy per edge, jobs that end in the middle of a chain, and very many of them."""

from __future__ import annotations

from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus
from longshore.testing.conformance.staging import (
    S,
    all_jobs,
    claim,
    enqueue,
    history,
    job_in,
    new_job,
    refused,
    seconds,
    status_of,
    story,
)

MANY = 300


def policies(**by_id: str) -> dict[str, Any]:
    """Options that give single edges a policy of their own."""
    return {"options": {"dependency_policies": by_id}}


class TestEdges:
    """What one edge among many decides."""

    # -- what a job says of its dependencies

    async def test_a_job_tells_what_it_waits_for_and_whose_part_it_is(self, backend: Backend) -> None:
        # M-JOB-19 M-OPT-16 M-OPT-17 M-SCH-08
        await enqueue(backend, "extract", parent_id="import")
        await enqueue(backend, "unrelated", parent_id="export")
        load = await enqueue(backend, "load", depends_on=["extract", "to come"], parent_id="import")
        assert (load.depends_on, load.parent_id, load.status) == (("extract", "to come"), "import", S.WAITING_CHILDREN)
        found = await all_jobs(backend, JobFilter(parent_id="import"))
        assert sorted(job.id for job in found) == ["extract", "load"]

    async def test_what_jobs_depend_on_is_told_in_order_wherever_they_are_read(self, backend: Backend) -> None:
        # M-JOB-19
        await backend.enqueue_jobs([new_job("a"), new_job("b"), new_job("c", depends_on=("b", "a"))])
        await backend.enqueue_jobs([new_job("d", depends_on=("c", "a", "b")), new_job("e")])
        expected = {"a": (), "b": (), "c": ("b", "a"), "d": ("c", "a", "b"), "e": ()}
        assert {job.id: job.depends_on for job in await all_jobs(backend)} == expected
        claimed = {}
        while jobs := await backend.dequeue_jobs("worker-1", limit=10):
            claimed.update({job.id: job.depends_on for job in jobs})
            await backend.settle_jobs([Outcome(job.id, job.lease) for job in jobs])
        assert claimed == expected

    @pytest.mark.parametrize(
        ("run_at", "last"), [(None, "job.promoted"), (60, "job.delayed")], ids=["at once", "at its time"]
    )
    async def test_the_last_dependency_sets_the_job_free_in_its_own_transaction(
        self, backend: Backend, clock: HeldClock, run_at: int | None, last: str
    ) -> None:
        # M-TR-03 M-TR-06 M-EV-15 M-SCHED-11 X-91
        await backend.enqueue_jobs([new_job("a"), new_job("b")])
        child = await enqueue(backend, "child", depends_on=["a", "b"], run_at=run_at)
        assert child.status is S.WAITING_CHILDREN
        waiting = (await history(backend, "child"))[-1]
        assert (waiting.event, waiting.detail) == ("job.waiting_children", {"waiting_for": 2})
        clock.advance(1)
        held = await backend.dequeue_jobs("worker-1", limit=2)
        await backend.settle_jobs([Outcome(held[0].id, held[0].lease)])
        assert await status_of(backend, "child") is S.WAITING_CHILDREN
        clock.advance(1)
        await backend.settle_jobs([Outcome(held[1].id, held[1].lease)])
        assert await status_of(backend, "child") is S.INITIAL_PENDING
        assert await story(backend, "child") == [
            "job.added",
            "job.waiting_children",
            "job.dependencies_completed",
            last,
        ]
        (done,) = [event for event in await history(backend, "child") if event.event == "job.dependencies_completed"]
        (ended,) = [event for event in await history(backend, held[1].id) if event.event == "job.completed"]
        assert done.occurred_at == ended.occurred_at
        assert (done.from_status, done.to_status) == (S.WAITING_CHILDREN, S.INITIAL_PENDING)

    @pytest.mark.parametrize("run_at", [None, 60], ids=["at once", "at its time"])
    async def test_met_dependencies_leave_a_new_job_pending_or_delayed(
        self, backend: Backend, run_at: int | None
    ) -> None:
        # M-TR-03
        done = await job_in(backend, S.COMPLETED)
        job = await enqueue(backend, "child", depends_on=[done.id], run_at=run_at)
        assert job.status is S.INITIAL_PENDING
        assert "job.waiting_children" not in await story(backend, "child")

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
    async def test_the_policy_of_an_edge_goes_before_that_of_its_job(
        self, backend: Backend, ended: S, policy: str, expected: S, usual: str, before: bool
    ) -> None:
        #
        await job_in(backend, S.COMPLETED, "good")
        bad = await job_in(backend, ended if before else S.RUNNING, "bad")
        child = new_job("child", depends_on=("good", "bad"), on_dependency_failure=usual, **policies(bad=policy))
        await backend.enqueue_job(child)
        if not before and ended is S.DEAD:
            await backend.bury_job(bad.id, "hopeless")
        elif not before:
            await backend.stop_job(bad.id)
        assert await status_of(backend, "child") is expected

    async def test_each_edge_is_judged_by_its_own_policy(self, backend: Backend) -> None:
        #
        await backend.enqueue_jobs([new_job("optional"), new_job("needed"), new_job("vital")])
        child = new_job(
            "child", depends_on=("optional", "needed", "vital"), **policies(optional="ignore", vital="stop")
        )
        await backend.enqueue_job(child)
        await backend.cancel_jobs(job_ids=["optional"])
        assert await status_of(backend, "child") is S.WAITING_CHILDREN
        await backend.update_job_status("needed", S.RUNNING)
        await backend.bury_job("needed", "for now")
        assert await status_of(backend, "child") is S.WAITING_CHILDREN
        await backend.cancel_jobs(job_ids=["vital"])
        assert await status_of(backend, "child") is S.UNSCHEDULED
        assert (await history(backend, "child"))[-1].detail["dependency"] == "vital"

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"a": "explode"}, "options.dependency_policies.a"),
            ({"a": None}, "options.dependency_policies.a"),
            ({"b": "wait"}, "options.dependency_policies"),
            (["a"], "options.dependency_policies"),
        ],
    )
    async def test_policies_of_no_edge_and_no_policies_are_refused(
        self, backend: Backend, given: object, field: str
    ) -> None:
        async with refused(backend, InvalidArgument, field=field):
            await backend.enqueue_job(new_job(depends_on=("a",), options={"dependency_policies": given}))

    # -- what ends in the middle of a chain

    async def test_a_chain_waits_behind_a_step_that_was_called_off_and_can_be_called_off_as_a_whole(
        self, backend: Backend
    ) -> None:
        #
        await backend.enqueue_jobs(
            [new_job("a"), new_job("b", depends_on=("a",)), new_job("c", depends_on=("b",), tags=("chain",))]
        )
        await backend.cancel_jobs(job_ids=["b"])
        await claim(backend)
        await backend.complete_job("a")
        assert [await status_of(backend, name) for name in "abc"] == [S.COMPLETED, S.UNSCHEDULED, S.WAITING_CHILDREN]
        assert await backend.cancel_jobs(["chain"]) == (["c"], [])
        assert await status_of(backend, "c") is S.UNSCHEDULED

    async def test_a_step_called_off_under_ignore_sets_only_the_next_one_free(self, backend: Backend) -> None:
        await backend.enqueue_jobs([new_job("a"), new_job("b", depends_on=("a",))])
        await enqueue(backend, "c", depends_on=["b"], on_dependency_failure="ignore")
        await enqueue(backend, "d", depends_on=["c"])
        await backend.cancel_jobs(job_ids=["b"])
        assert await status_of(backend, "c") is S.INITIAL_PENDING
        assert await status_of(backend, "d") is S.WAITING_CHILDREN

    @pytest.mark.parametrize("policy", ["wait", "stop", "ignore"])
    async def test_a_whole_chain_called_off_at_once_sets_nobody_free(self, backend: Backend, policy: str) -> None:
        chain = [new_job("j0")]
        chain += [new_job(f"j{n}", depends_on=(f"j{n - 1}",), on_dependency_failure=policy) for n in range(1, 20)]
        await backend.enqueue_jobs(chain)
        cancelled, unknown = await backend.cancel_jobs(job_ids=[job.id for job in chain])
        assert (len(cancelled), unknown) == (20, [])
        assert (await backend.count_jobs())[S.UNSCHEDULED] == 20
        assert await backend.dequeue_jobs("worker-1") == []

    @pytest.mark.parametrize(
        ("policy", "expected"), [("wait", S.WAITING_CHILDREN), ("stop", S.UNSCHEDULED), ("ignore", S.INITIAL_PENDING)]
    )
    async def test_a_dependency_that_expired_has_ended_otherwise(
        self, backend: Backend, clock: HeldClock, policy: str, expected: JobStatus
    ) -> None:
        await enqueue(backend, "late", expires_at=10)
        await enqueue(backend, "child", depends_on=["late"], on_dependency_failure=policy)
        clock.advance(11)
        await backend.reclaim_expired_leases()
        assert (await backend.get_job("late")).status is S.UNSCHEDULED
        assert await status_of(backend, "child") is expected

    async def test_a_job_may_expire_while_it_waits_for_another(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "slow")
        await enqueue(backend, "child", depends_on=["slow"], expires_at=10)
        clock.advance(seconds(11))
        await backend.reclaim_expired_leases()
        assert await status_of(backend, "child") is S.UNSCHEDULED
        await claim(backend)
        await backend.complete_job("slow")
        assert await status_of(backend, "child") is S.UNSCHEDULED

    async def test_what_was_stopped_by_its_dependency_stays_so_when_that_is_retried(self, backend: Backend) -> None:
        parent = await job_in(backend, S.RUNNING, "parent")
        await enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="stop")
        await backend.bury_job(parent.id, "hopeless")
        await backend.retry_job(parent.id)
        await claim(backend)
        await backend.complete_job(parent.id)
        assert await status_of(backend, "child") is S.UNSCHEDULED

    async def test_what_ran_in_spite_of_a_failure_does_not_run_again_when_that_is_retried(
        self, backend: Backend
    ) -> None:
        parent = await job_in(backend, S.RUNNING, "parent")
        await enqueue(backend, "child", depends_on=["parent"], on_dependency_failure="ignore")
        await backend.bury_job(parent.id, "hopeless")
        assert (await claim(backend)).id == "child"
        await backend.complete_job("child")
        await backend.retry_job(parent.id)
        assert (await claim(backend)).id == "parent"
        await backend.complete_job("parent")
        assert await backend.dequeue_jobs("worker-1") == []

    # -- very many

    async def test_a_wide_fan_in_is_set_free_by_the_last_of_very_many(self, backend: Backend) -> None:
        names = [f"p{number}" for number in range(MANY)]
        await backend.enqueue_jobs([*(new_job(name) for name in names), new_job("fan-in", depends_on=tuple(names))])
        ended = 0
        while held := [job for job in await backend.dequeue_jobs("worker-1", limit=37) if job.id != "fan-in"]:
            assert await status_of(backend, "fan-in") is S.WAITING_CHILDREN
            await backend.settle_jobs([Outcome(job.id, job.lease) for job in held])
            ended += len(held)
            if ended == MANY:
                break
        assert await story(backend, "fan-in") == [
            "job.added",
            "job.waiting_children",
            "job.dependencies_completed",
            "job.promoted",
        ]

    async def test_a_long_chain_comes_in_one_batch_and_runs_from_its_end_to_its_beginning(
        self, backend: Backend
    ) -> None:
        chain = [new_job(f"j{n}", depends_on=(f"j{n + 1}",)) for n in range(MANY - 1)] + [new_job(f"j{MANY - 1}")]
        await backend.enqueue_jobs(chain)
        for number in reversed(range(MANY)):
            job = await claim(backend)
            assert job.id == f"j{number}"
            await backend.settle_jobs([Outcome(job.id, job.lease)])
        assert (await backend.count_jobs())[S.COMPLETED] == MANY

    async def test_a_long_circle_is_refused_with_its_path(self, backend: Backend) -> None:
        #
        circle = [new_job(f"j{n}", depends_on=(f"j{(n + 1) % MANY}",)) for n in range(MANY)]
        async with refused(backend, InvalidArgument, field="depends_on") as caught:
            await backend.enqueue_jobs(circle)
        assert "j0 -> j1 -> j2" in str(caught.value)

    async def test_stopping_runs_down_a_long_chain(self, backend: Backend) -> None:
        chain = [new_job("j0")]
        chain += [new_job(f"j{n}", depends_on=(f"j{n - 1}",), on_dependency_failure="stop") for n in range(1, MANY)]
        await backend.enqueue_jobs(chain)
        await backend.cancel_jobs(job_ids=["j0"])
        assert (await backend.count_jobs())[S.UNSCHEDULED] == MANY

    async def test_stopping_goes_as_far_as_the_policies_along_the_way_say(self, backend: Backend) -> None:
        """Past whoever was not accepted yet it goes no further, and who ignores it goes on at once."""
        await backend.enqueue_jobs(
            [
                new_job("top"),
                new_job("left", depends_on=["top"], on_dependency_failure="stop"),
                new_job("right", depends_on=["top"], on_dependency_failure="stop"),
                new_job("bottom", depends_on=["left", "right"], on_dependency_failure="stop"),
                new_job("patient", depends_on=["bottom"], on_dependency_failure="wait"),
                new_job("easy", depends_on=["bottom", "right"], on_dependency_failure="ignore"),
                new_job("drawn up", status=S.CREATED, depends_on=["left"], on_dependency_failure="stop"),
                new_job("after it", depends_on=["drawn up"], on_dependency_failure="stop"),
            ]
        )
        await backend.cancel_jobs(job_ids=["top"])
        jobs = {job.id: job for job in await all_jobs(backend)}
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
