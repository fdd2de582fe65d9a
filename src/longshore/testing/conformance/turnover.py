"""A worker's turn, `settle_and_dequeue`: what ended is settled and the next jobs are claimed, in one call."""

from __future__ import annotations

from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, JobNotFound, LeaseLost
from longshore.testing.conformance.staging import (
    STALE,
    S,
    claim,
    enqueue,
    job_in,
    lease_of,
    new_job,
    nothing_changes,
    refused,
    seconds,
    status_of,
)


class TestTurnover:
    """What a turn settles, what it claims, and that neither hinders the other."""

    async def test_a_turn_settles_what_ended_and_claims_what_is_next(self, backend: Backend, clock: HeldClock) -> None:
        # B-DEQ-05 B-FREE-04
        await backend.enqueue_jobs([new_job(job_id) for job_id in ("a", "b", "c", "d", "e")])
        held = {job.id: lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=2)}
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
        assert all(lease_of(job).expires_at == clock.now() + seconds(60) for job in jobs)
        assert jobs == [await backend.get_job("c"), await backend.get_job("d")]
        assert (await backend.get_job("a")).result == b"42"
        assert await status_of(backend, "e") is S.INITIAL_PENDING

    async def test_under_limits_a_turn_settles_every_kind_of_outcome_and_claims_in_the_room_that_they_leave(
        self, backend: Backend
    ) -> None:
        #
        await backend.set_limits("default", per_key=1)
        kinds = ("completes", "vanishes", "fails", "stale", "stops")
        for kind in kinds:
            options = {"remove_on_complete": True} if kind == "vanishes" else {}
            await enqueue(backend, kind, concurrency_key=kind, options=options)
            await enqueue(backend, f"after {kind}", concurrency_key=kind)
        held = {job.id: lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=10)}
        assert sorted(held) == sorted(kinds)
        outcomes = [
            Outcome("stale", STALE),
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
        await enqueue(backend, "plain", queue="north")
        await enqueue(backend, "tagged", queue="north", tags=["eu"])
        await enqueue(backend, "elsewhere", queue="south", tags=["eu"])
        _, jobs = await backend.settle_and_dequeue([], "worker-1", ["eu"], 5, queues=["north"], lease=None)
        assert [(job.id, lease_of(job).expires_at) for job in jobs] == [("tagged", None)]

    async def test_without_outcomes_it_is_a_claim(self, backend: Backend) -> None:
        await enqueue(backend, "a")
        report, [job] = await backend.settle_and_dequeue([], "worker-1")
        assert (report.settled, report.refused, report.freed) == ({}, {}, {})
        assert (job.id, job.assignee_id) == ("a", "worker-1")

    async def test_with_a_limit_of_nothing_it_only_settles(self, backend: Backend) -> None:
        job = await job_in(backend, S.RUNNING)
        await enqueue(backend, "waits")
        report, jobs = await backend.settle_and_dequeue([Outcome(job.id, lease_of(job))], "worker-1", limit=0)
        assert (report.settled, jobs) == ({job.id: S.COMPLETED}, [])
        assert await status_of(backend, "waits") is S.INITIAL_PENDING

    async def test_with_neither_nothing_happens(self, backend: Backend) -> None:
        await enqueue(backend, "waits")
        async with nothing_changes(backend):
            report, jobs = await backend.settle_and_dequeue([], "worker-1", limit=0)
        assert (report.settled, report.refused, report.freed, jobs) == ({}, {}, {}, [])

    async def test_a_refused_outcome_does_not_hinder_the_claim(self, backend: Backend) -> None:
        #
        job = await job_in(backend, S.RUNNING, "held")
        await enqueue(backend, "next")
        wrong: Any = "explode"
        report, jobs = await backend.settle_and_dequeue(
            [Outcome("held", STALE), Outcome("nobody", None), Outcome("held", lease_of(job), wrong)],
            "worker-1",
            limit=5,
        )
        assert report.settled == {}
        assert {name: type(error) for name, error in report.refused.items()} == {
            "held": LeaseLost,
            "nobody": JobNotFound,
        }
        assert [job.id for job in jobs] == ["next"]
        assert await status_of(backend, "held") is S.RUNNING

    # -- the claim sees what was settled

    async def test_the_room_a_job_gives_back_is_there_for_the_next(self, backend: Backend) -> None:
        # B-FREE-01
        await backend.set_limits("default", running=1, per_key=1)
        await backend.enqueue_jobs([new_job(job_id, concurrency_key="k") for job_id in ("a", "b", "c")])
        job = await claim(backend)
        assert await backend.dequeue_jobs("worker-1", limit=5) == []
        for following in ("b", "c"):
            report, jobs = await backend.settle_and_dequeue([Outcome(job.id, lease_of(job))], "worker-1", limit=5)
            assert report.settled == {job.id: S.COMPLETED}
            [job] = jobs
            assert job.id == following

    async def test_a_job_that_waited_for_the_one_that_ended_can_be_claimed_at_once(self, backend: Backend) -> None:
        # M-SCHED-11 X-88
        await enqueue(backend, "first")
        await enqueue(backend, "second", depends_on=["first"])
        job = await claim(backend)
        _, jobs = await backend.settle_and_dequeue([Outcome("first", lease_of(job))], "worker-1", limit=5)
        assert [job.id for job in jobs] == ["second"]

    async def test_a_job_that_goes_back_can_come_again_in_the_same_turn(self, backend: Backend) -> None:
        job = await job_in(backend, S.RUNNING, "again")
        report, [again] = await backend.settle_and_dequeue(
            [Outcome("again", lease_of(job), "fail", error="busy")], "worker-2"
        )
        assert report.settled == {"again": S.FAILED_RETRY}
        assert report.freed == {"worker-1": 1}
        assert (again.id, again.status, again.assignee_id) == ("again", S.RUNNING, "worker-2")
        assert (again.epoch, again.executions, again.retry_count) == (2, 2, 1)
        assert await backend.get_job("again") == again

    async def test_jobs_met_too_late_are_ended_on_the_way(self, backend: Backend, clock: HeldClock) -> None:
        job = await job_in(backend, S.RUNNING, "held")
        await enqueue(backend, "late", expires_at=1)
        await enqueue(backend, "good")
        clock.advance(2)
        report, jobs = await backend.settle_and_dequeue([Outcome("held", lease_of(job))], "worker-1", limit=5)
        assert report.settled == {"held": S.COMPLETED}
        assert [job.id for job in jobs] == ["good"]
        assert await status_of(backend, "late") is S.UNSCHEDULED

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
    async def test_a_refused_turn_settles_nothing_and_claims_nothing(
        self, backend: Backend, field: str, value: Any
    ) -> None:
        # B-ERR-05
        job = await job_in(backend, S.RUNNING)
        await enqueue(backend, "waits")
        call: dict[str, Any] = {"outcomes": [Outcome(job.id, lease_of(job))], "assignee_id": "worker-1", field: value}
        async with refused(backend, InvalidArgument, field=field):
            await backend.settle_and_dequeue(**call)
