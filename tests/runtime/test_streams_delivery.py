"""Delivery: which jobs a stream gets, in which order and batches, and with renewed leases."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from longshore import Job, JobStatus, Queue
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.runtime import background
from longshore.testing.conformance.scenarios import lease_of, moment, seconds
from tests.runtime.streaming import (
    TIMEOUT,
    add,
    are,
    count_claims,
    eventually,
    never_poll,
    others_get,
    receive,
    receive_ids,
    until_held,
)

S = JobStatus


async def test_a_delivered_job_is_running_and_leased_to_the_caller_from_now(queue: Queue, clock: HeldClock) -> None:
    # Q-STREAM-05 Q-INV-03
    await add(queue, "a")
    clock.advance(100)
    async with queue.stream_jobs("worker-1", lease=20) as stream:
        [job] = await receive(stream)
        assert (job.status, job.assignee_id, job.assigned_at) == (S.RUNNING, "worker-1", clock.now())
        assert lease_of(job).expires_at == clock.now() + seconds(20)
        assert await queue.get_job("a") == job


async def test_only_jobs_with_all_tags_of_the_stream_come_and_without_a_filter_all_of_them(queue: Queue) -> None:
    # Q-STREAM-06
    await add(queue, "both", tags=["eu", "fast", "more"])
    await add(queue, "one of them", tags=["eu"])
    await add(queue, "none")
    async with queue.stream_jobs("picky", ["fast", "eu"]) as picky:
        assert await receive_ids(picky) == ["both"]
        await others_get(queue, "one of them", "none")
    await add(queue, "any", tags=["of these"])
    async with queue.stream_jobs("all", []) as stream:
        assert await receive_ids(stream) == ["any"]


async def test_a_stream_of_a_named_queue_sees_that_queue_only(queue: Queue, mail: Queue) -> None:
    # Q-STREAM-06
    await add(queue, "a parcel", queue="parcels")
    await add(mail, "a letter")
    async with mail.stream_jobs("postman") as stream:
        assert await receive_ids(stream) == ["a letter"]
        await others_get(queue, "a parcel")


async def test_the_longest_eligible_come_first(queue: Queue, clock: HeldClock) -> None:
    # Q-STREAM-07 X-13 X-14
    for job_id in ("a", "b", "c"):
        clock.advance(1)
        await add(queue, job_id)
    clock.advance(1)
    [job] = await queue.dequeue_jobs("worker-1")
    await queue.fail_job(job.id, "broke")
    clock.advance(1)
    await add(queue, "d")
    async with queue.stream_jobs("worker-1") as stream:
        assert await receive_ids(stream, 4) == ["b", "c", "a", "d"]


async def test_as_many_as_fit_come_in_one_batch(queue: Queue) -> None:
    # Q-STREAM-12 Q-STREAM-13
    await add(queue, "a", "b", "c", "d", "e")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=3) as stream:
        assert [job.id for job in await anext(stream)] == ["a", "b", "c"]
        await queue.fail_job("b", "broke")
        assert [job.id for job in await anext(stream)] == ["d"]


async def test_a_stream_claims_at_once_and_once_more_before_it_waits(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-STREAM-13 Q-STREAM-14 Q-RST-04
    never_poll(monkeypatch)
    await add(queue, "waiting", "failed", "reset")
    await queue.dequeue_jobs("a worker that is gone", limit=3)
    await queue.fail_job("failed", "before any worker was there")
    await queue.reset_running_jobs()
    claims = count_claims(backend, monkeypatch)
    async with queue.stream_jobs("worker-1", max_assigned_jobs=10) as stream:
        assert sorted(await receive_ids(stream, 3)) == ["failed", "reset", "waiting"]
        await eventually(lambda: len(claims) >= 2)
    assert [(claim.capacity, claim.found) for claim in claims[:2]] == [(10, 3), (7, 0)]


async def test_undelivered_jobs_wait_for_a_slow_consumer_in_order(queue: Queue) -> None:
    # Q-STREAM-17 Q-STREAM-24 Q-STREAM-10 Q-INV-03 Q-CON-07 X-21
    async with queue.stream_jobs("slow", max_assigned_jobs=3) as stream:
        for job_id in ("a", "b", "c"):
            await add(queue, job_id)
            await eventually(partial(are, queue, S.RUNNING, [job_id]))
        await add(queue, "d")
        await others_get(queue, "d")
        assert [job.id for job in await anext(stream)] == ["a", "b", "c"]
        assert [(await queue.get_job(job_id)).executions for job_id in ("a", "b", "c")] == [1, 1, 1]


async def test_a_job_ended_before_its_delivery_is_not_delivered(queue: Queue) -> None:
    # Q-INV-03 Q-STREAM-17
    await add(queue, "a", "b")
    async with queue.stream_jobs("slow", max_assigned_jobs=2) as stream:
        await until_held(queue, stream, "a", "b")
        await queue.complete_job("a")
        assert await receive_ids(stream) == ["b"]


async def test_several_consumers_of_one_stream_share_its_jobs(queue: Queue) -> None:
    # Q-CON-01 Q-STREAM-08
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        waiting = [asyncio.create_task(anext(stream)) for _ in range(3)]
        got: list[str] = []
        for job_id in ("a", "b", "c"):
            await add(queue, job_id)
        async with asyncio.timeout(TIMEOUT):
            for taken in asyncio.as_completed(waiting):
                [job] = await taken
                got.append(job.id)
                await queue.complete_job(job.id)
    assert sorted(got) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("assignee_id", {"assignee_id": ""}),
        ("assignee_id", {"assignee_id": None}),
        ("max_assigned_jobs", {"max_assigned_jobs": 0}),
        ("max_assigned_jobs", {"max_assigned_jobs": -1}),
        ("max_assigned_jobs", {"max_assigned_jobs": True}),
        ("tags", {"tags": [""]}),
        ("lease", {"lease": 0}),
    ],
)
async def test_a_stream_that_cannot_be_is_refused_before_it_begins(
    queue: Queue, field: str, arguments: dict[str, object]
) -> None:
    # Q-STREAM-01 Q-STREAM-02 Q-ERR-02
    with pytest.raises(InvalidArgument) as refused:
        queue.stream_jobs(**{"assignee_id": "worker-1", **arguments})  # type: ignore[arg-type]  # wrong on purpose
    assert refused.value.field == field


# -- leases


@pytest.mark.slow
async def test_leases_are_renewed_while_the_consumer_blocks_the_event_loop(backend: Backend, queue: Queue) -> None:
    # Q-STREAM-05
    await add(queue, "a")
    async with queue.stream_jobs("worker-1", lease=1.5) as stream:
        [job] = await receive(stream)
        ends = moment(lease_of(job).expires_at)
        while moment(lease_of(background.submit(backend.get_job("a")).result(TIMEOUT)).expires_at) < ends + seconds(2):
            pass  # as a computation does: nothing else runs in this loop
        await queue.complete_job("a", lease=lease_of(job))
    assert (await queue.get_job("a")).crashes == 0


@pytest.mark.slow
async def test_a_job_with_an_expired_lease_frees_its_slot_and_is_delivered_again(
    queue: Queue, clock: HeldClock
) -> None:
    # Q-STREAM-11 Q-STREAM-16 X-36
    await add(queue, "a")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1, lease=30) as stream:
        [first] = await receive(stream)
        clock.advance(31)  # expired for the store, whatever the stream assumes
        [again] = await receive(stream)
        assert (first.id, again.id, again.epoch, again.crashes) == ("a", "a", 2, 1)
        await queue.complete_job("a", lease=lease_of(again))


async def test_any_open_stream_reclaims_the_jobs_of_a_vanished_worker(queue: Queue, clock: HeldClock) -> None:
    # Q-STREAM-16
    await add(queue, "a", tags=["elsewhere"])
    await queue.dequeue_jobs("gone", lease=10)
    async with queue.stream_jobs("bystander", ["unused"]):
        clock.advance(11)
        await eventually(lambda: are(queue, S.UNKNOWN_RETRY, ["a"]))


async def test_a_lease_without_an_end_is_never_swept_and_its_slot_is_freed_like_any_other(
    backend: Backend, queue: Queue, clock: HeldClock
) -> None:
    # Q-STREAM-11
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1, lease=None) as stream:
        [job] = await receive(stream)
        assert lease_of(job).expires_at is None
        clock.advance(seconds(10 * 86_400))
        assert await queue.reclaim_expired_leases() == []
        await backend.complete_job("a")  # as from another process, without a notification
        assert await receive_ids(stream) == ["b"]


async def test_a_lease_that_cannot_be_renewed_is_given_up_at_its_end_by_our_own_clock(
    backend: Backend, queue: Queue, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-STREAM-11
    async def hang(*_: object) -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(backend, "extend_leases", hang)  # a store that never answers a renewal
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1, lease=0.5) as stream:
        assert await receive_ids(stream) == ["a"]
        assert await receive_ids(stream) == ["b"]
        assert await are(queue, S.RUNNING, ["a"])  # for the store, whose clock is held, the lease is still valid


async def test_a_delayed_job_comes_at_its_time(queue: Queue) -> None:
    # Q-STREAM-16 Q-STREAM-25
    async with queue.stream_jobs("worker-1") as stream:
        await queue.enqueue_job(Job(id="later", type="t", run_at=0.3))
        [job] = await receive(stream)
        assert moment(job.assigned_at) >= moment(job.run_at)
