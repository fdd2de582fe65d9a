"""Jobs that are removed because their own options say so, in the transaction that makes them COMPLETED or DEAD."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, JobNotFound
from longshore.core.job import Job
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.scenarios import (
    EVERY_STATUS,
    S,
    all_jobs,
    claim,
    claimable,
    enqueue,
    history,
    job_in,
    lease_of,
    new_job,
    refused,
    status_of,
    steps,
    story,
)

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
"""The option that is meant, the event that tells of the end, and what brings it."""


async def finish(backend: Backend, clock: HeldClock, job_id: str, **fields: Any) -> None:
    """One job from its beginning to its completion, a second after the last one."""
    job = await job_in(backend, S.RUNNING, job_id, **fields)
    clock.advance(1)
    await backend.settle_jobs([Outcome(job.id, lease_of(job))])


async def kept(backend: Backend) -> set[str]:
    """The ids of all jobs there are."""
    return {job.id for job in await all_jobs(backend)}


class TestRemoval:
    """`remove_on_complete` and `remove_on_fail`: True, or how many of the queue's are kept."""

    # -- it goes itself

    @pytest.mark.parametrize(("option", "last", "ends"), ENDINGS.values(), ids=ENDINGS.keys())
    @pytest.mark.parametrize("value", [True, 0])
    async def test_a_job_is_removed_with_its_end_whichever_verb_brings_it(
        self, backend: Backend, clock: HeldClock, option: str, last: str, ends: Ends, value: object
    ) -> None:
        # M-OPT-08 M-OPT-09 M-TR-13 X-100
        bystander = await job_in(backend, S.COMPLETED)
        options = {option: value, "backoff": {"type": "fixed", "delay": 5}}
        job = await job_in(backend, S.RUNNING, "leaves", max_crashes=0, tags=["eu"], options=options)
        await backend.append_log("leaves", "a line")
        await ends(backend, clock, job)
        with pytest.raises(JobNotFound):
            await backend.get_job("leaves")
        assert await kept(backend) == {bystander.id}
        assert (await story(backend, "leaves"))[-2:] == [last, "job.removed"]
        assert (await backend.get_job_stats(["eu"])).total_jobs == 0
        assert await claimable(backend) == []

    async def test_whoever_settles_is_told_as_always(self, backend: Backend) -> None:
        # M-TR-13
        gone = await job_in(backend, S.RUNNING, "gone", options={"remove_on_complete": True})
        dead = await job_in(backend, S.RUNNING, "dead", options={"remove_on_fail": True})
        stays = await job_in(backend, S.RUNNING, "stays")
        report = await backend.settle_jobs(
            [
                Outcome("gone", lease_of(gone)),
                Outcome("dead", lease_of(dead), "bury", error="hopeless"),
                Outcome("stays", lease_of(stays)),
            ]
        )
        assert report.settled == {"gone": S.COMPLETED, "dead": S.DEAD, "stays": S.COMPLETED}
        assert (report.refused, report.freed) == ({}, {"worker-1": 3})
        assert await kept(backend) == {"stays"}
        removed = (await history(backend, "gone"))[-1]
        assert (removed.event, removed.detail, removed.actor) == ("job.removed", {"status": "COMPLETED"}, "")

    async def test_what_is_not_its_end_leaves_it_where_it_is(self, backend: Backend) -> None:
        # M-OPT-09: on the final failure only
        both = {"remove_on_complete": True, "remove_on_fail": True}
        for status in EVERY_STATUS:
            if status not in (S.COMPLETED, S.DEAD):
                await job_in(backend, status, options=both)
        assert {job.status for job in await all_jobs(backend)} == set(EVERY_STATUS) - {S.COMPLETED, S.DEAD}

    @pytest.mark.parametrize(
        "options",
        [
            {"remove_on_complete": False, "remove_on_fail": False},
            {"note": "remove_on_complete", "remove_on_fails": True, "nested": {"remove_on_fail": True}},
        ],
    )
    async def test_without_the_option_it_stays(self, backend: Backend, options: dict[str, Any]) -> None:
        # X-100: False is the default
        await job_in(backend, S.COMPLETED, options=options)
        await job_in(backend, S.DEAD, options=options)
        assert len(await kept(backend)) == 2

    async def test_each_option_is_for_its_own_end(self, backend: Backend) -> None:
        await job_in(backend, S.COMPLETED, "completed", options={"remove_on_fail": True})
        await job_in(backend, S.DEAD, "dead", options={"remove_on_complete": True})
        assert await kept(backend) == {"completed", "dead"}

    async def test_a_late_result_removes_a_job_that_was_given_up(self, backend: Backend) -> None:
        job = await job_in(backend, S.UNKNOWN_STOPPED, options={"remove_on_complete": True})
        await backend.complete_job(job.id, b"after all")
        assert await kept(backend) == set()
        assert steps(await history(backend, job.id))[-1] == (S.UNKNOWN_STOPPED, S.COMPLETED)

    # -- nobody is left alone by it

    async def test_whoever_waited_for_it_goes_on_and_whoever_comes_later_need_not_wait(self, backend: Backend) -> None:
        # X-88 M-OPT-16
        gone = await job_in(backend, S.RUNNING, "gone", options={"remove_on_complete": True})
        await enqueue(backend, "waits", depends_on=["gone"])
        await backend.settle_jobs([Outcome("gone", lease_of(gone))])
        assert await status_of(backend, "waits") is S.INITIAL_PENDING
        assert (await enqueue(backend, "late", depends_on=["gone"])).status is S.INITIAL_PENDING

    async def test_a_failure_that_is_removed_fails_whoever_depends_on_it_all_the_same(self, backend: Backend) -> None:
        # X-88
        gone = await job_in(backend, S.RUNNING, "gone", options={"remove_on_fail": True})
        await enqueue(backend, "stops", depends_on=["gone"], on_dependency_failure="stop")
        await enqueue(backend, "ignores", depends_on=["gone"], on_dependency_failure="ignore")
        await backend.bury_job("gone", "hopeless", lease=lease_of(gone))
        assert await kept(backend) == {"stops", "ignores"}
        assert await status_of(backend, "stops") is S.UNSCHEDULED
        assert await status_of(backend, "ignores") is S.INITIAL_PENDING
        assert (await enqueue(backend, depends_on=["gone"], on_dependency_failure="stop")).status is S.UNSCHEDULED

    async def test_the_room_of_its_key_is_given_on(self, backend: Backend) -> None:
        await backend.set_limits("default", per_key=1, running=1)
        options = {"remove_on_complete": True}
        await backend.enqueue_jobs([new_job(name, concurrency_key="k", options=options) for name in ("a", "b")])
        job = await claim(backend)
        assert await backend.dequeue_jobs("worker-2") == []
        _, [following] = await backend.settle_and_dequeue([Outcome(job.id, lease_of(job))], "worker-1")
        assert following.id == "b"
        assert await kept(backend) == {"b"}

    async def test_its_key_and_its_id_are_remembered_as_of_any_removed_job(self, backend: Backend) -> None:
        await job_in(backend, S.RUNNING, "gone", idempotency_key="order-7", options={"remove_on_complete": True})
        await backend.complete_job("gone")
        assert await backend.enqueue_job(new_job("again", idempotency_key="order-7")) == "gone"
        assert (await enqueue(backend, "gone")).status is S.INITIAL_PENDING

    # -- so many are kept

    async def test_the_most_recently_finished_are_kept(self, backend: Backend, clock: HeldClock) -> None:
        # M-OPT-08 X-100
        for number in range(5):
            await finish(backend, clock, f"j{number}", options={"remove_on_complete": 2})
        assert await kept(backend) == {"j3", "j4"}
        assert [(await story(backend, f"j{number}"))[-1] for number in range(5)] == [
            *["job.removed"] * 3,
            *["job.completed"] * 2,
        ]

    async def test_it_is_the_end_that_counts_and_not_the_beginning(self, backend: Backend, clock: HeldClock) -> None:
        # X-100
        jobs = [await job_in(backend, S.RUNNING, f"j{n}", options={"remove_on_complete": 2}) for n in range(4)]
        for number in (2, 0, 3, 1):
            clock.advance(1)
            await backend.complete_job(jobs[number].id)
        assert await kept(backend) == {"j1", "j3"}

    async def test_only_its_own_queue_and_status_are_meant(self, backend: Backend, clock: HeldClock) -> None:
        # X-100
        await job_in(backend, S.DEAD, "dead")
        await job_in(backend, S.STOPPED, "stopped")
        await finish(backend, clock, "elsewhere", queue="bills")
        await finish(backend, clock, "plain")
        await finish(backend, clock, "last", options={"remove_on_complete": 1, "remove_on_fail": True})
        assert await kept(backend) == {
            "dead",
            "stopped",
            "elsewhere",
            "last",
        }  # a job without the option makes room, too

    async def test_the_dead_are_counted_by_themselves(self, backend: Backend, clock: HeldClock) -> None:
        # M-OPT-09 X-100
        await finish(backend, clock, "completed")
        for number in range(3):
            clock.advance(1)
            await job_in(backend, S.DEAD, f"d{number}", options={"remove_on_fail": 1})
        assert await kept(backend) == {"completed", "d2"}

    async def test_the_jobs_of_one_batch_are_counted_together(self, backend: Backend, clock: HeldClock) -> None:
        await finish(backend, clock, "before")
        fields: list[dict[str, Any]] = [{"remove_on_complete": 3}, {"remove_on_complete": True}, {}]
        jobs = [new_job(f"j{number}", options=fields[number % 3]) for number in range(9)]
        await backend.enqueue_jobs(jobs)
        held = await backend.dequeue_jobs("worker-1", limit=9)
        clock.advance(1)
        report = await backend.settle_jobs([Outcome(job.id, lease_of(job)) for job in held])
        assert set(report.settled.values()) == {S.COMPLETED}
        assert len(report.settled) == 9
        assert await kept(backend) == {"j5", "j6", "j8"}

    async def test_a_large_remainder_goes_in_several_transactions(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([new_job() for _ in range(1200)])
        held = await backend.dequeue_jobs("worker-1", limit=1200)
        await backend.settle_jobs([Outcome(job.id, lease_of(job)) for job in held])
        await finish(backend, clock, "first", options={"remove_on_complete": 2})
        some = len(await kept(backend))
        assert 2 < some < 1201
        await finish(backend, clock, "second", options={"remove_on_complete": 2})
        assert await kept(backend) == {"first", "second"}

    async def test_of_many_that_end_at_once_never_too_many_are_removed(
        self, backend: Backend, open_backend: OpenBackend, clock: HeldClock
    ) -> None:
        # X-100
        others = [open_backend() for _ in range(3)] if backend.capabilities.shared else [backend] * 3
        options = {"remove_on_complete": 5}
        await backend.enqueue_jobs([new_job(options=options) for _ in range(60)])
        held = await backend.dequeue_jobs("worker-1", limit=60)
        for part in range(0, 60, 3):
            clock.advance(1)
            ending = [Outcome(job.id, lease_of(job)) for job in held[part : part + 3]]
            await asyncio.gather(*(b.settle_jobs([end]) for b, end in zip(others, ending, strict=True)))
            assert len(await kept(backend)) >= min(part + 3, 5)
        await finish(backend, clock, "last", options=options)
        assert len(await kept(backend)) == 5

    # -- refusals

    @pytest.mark.parametrize("option", NAMES)
    @pytest.mark.parametrize("value", [-1, 1.0, 2**31, "yes", None, [], {"count": 5}])
    async def test_a_malformed_wish_is_refused_at_the_door(self, backend: Backend, option: str, value: object) -> None:
        # M-OPT-08 M-OPT-09
        async with refused(backend, InvalidArgument, field=f"options.{option}"):
            await backend.enqueue_job(new_job(options={option: value}))
