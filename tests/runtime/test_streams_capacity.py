"""Capacity: a claim takes a slot of one stream, and the end of the job frees it once, whichever caller ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from longshore import JobStatus, Outcome, Queue
from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.runtime.process_registry import registry_of
from longshore.testing.conformance.scenarios import lease_of
from tests.runtime.streaming import (
    add,
    are,
    eventually,
    most_held,
    never_poll,
    others_get,
    receive,
    receive_ids,
    until_lease_vanished,
)
from tests.runtime.working import comes_to

S = JobStatus
Verb = Callable[[Queue, str], Awaitable[Any]]


async def settle(queue: Queue, job_id: str) -> None:
    report = await queue.settle_jobs([Outcome(job_id, (await queue.get_job(job_id)).lease)])
    assert report.settled == {job_id: S.COMPLETED}


async def release(queue: Queue, job_id: str) -> None:
    await queue.release_lease(job_id, lease_of(await queue.get_job(job_id)))


async def stop_with_retry(queue: Queue, job_id: str) -> None:
    await queue.cancel_jobs(job_ids=[job_id])
    await queue.stop_job_with_retry(job_id, "failed while being cancelled")


async def acknowledge(queue: Queue, job_id: str) -> None:
    await queue.cancel_jobs(job_ids=[job_id])
    await queue.acknowledge_cancellation(job_id, True)


async def declare_cancelled_unresponsive(queue: Queue, job_id: str) -> None:
    await queue.cancel_jobs(job_ids=[job_id])
    await queue.mark_worker_unresponsive("worker-1")


async def reset_cancelled(queue: Queue, job_id: str) -> None:
    await queue.cancel_jobs(job_ids=[job_id])
    await queue.reset_running_jobs()


# the operation that ends the first job, and the next job: the second, or the first, which kept its sort key
FREEING: dict[str, tuple[Verb, str]] = {
    "complete": (lambda queue, job_id: queue.complete_job(job_id), "second"),
    "fail": (lambda queue, job_id: queue.fail_job(job_id, "broke"), "second"),
    "bury": (lambda queue, job_id: queue.bury_job(job_id, "hopeless"), "second"),
    "stop": (lambda queue, job_id: queue.stop_job(job_id), "second"),
    "stop with retry": (stop_with_retry, "second"),
    "mark unknown stopped": (lambda queue, job_id: queue.mark_job_unknown_stopped(job_id), "second"),
    "acknowledge": (acknowledge, "second"),
    "move by hand": (lambda queue, job_id: queue.update_job_status(job_id, S.COMPLETED), "second"),
    "settle": (settle, "second"),
    "release": (release, "first"),
    "unresponsive": (lambda queue, _: queue.mark_worker_unresponsive("worker-1"), "first"),
    "unresponsive while being cancelled": (declare_cancelled_unresponsive, "second"),
    "reset": (lambda queue, _: queue.reset_running_jobs(), "first"),
    "reset while being cancelled": (reset_cancelled, "second"),
}
every_freeing_verb = pytest.mark.parametrize(("verb", "next_one"), FREEING.values(), ids=FREEING.keys())


@every_freeing_verb
async def test_a_job_that_ends_frees_the_stream_that_held_it_and_the_next_is_pushed(
    queue: Queue, verb: Verb, next_one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-COMP-03 Q-COMP-04 Q-FAIL-04 Q-FAIL-05 Q-STOP-03 Q-STOP-04 Q-SWR-02 Q-MUS-02 Q-ACK-02 Q-MWU-02 Q-RST-03 Q-RST-04
    # Q-STREAM-11 Q-STREAM-15 Q-OBS-01 X-23 X-24 X-25 X-26
    never_poll(monkeypatch)
    await add(queue, "first")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["first"]
        await add(queue, "second")
        await verb(queue, "first")
        assert await receive_ids(stream) == [next_one]
    assert (await most_held(queue.backend))["worker-1"] == 1


@every_freeing_verb
async def test_it_does_not_matter_through_which_queue_or_from_which_thread_a_job_is_ended(
    backend: Backend, queue: Queue, verb: Verb, next_one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-FAIL-06 Q-CON-01 X-111
    never_poll(monkeypatch)
    await add(queue, "first", "second", queue="letters")

    async def elsewhere() -> None:
        await verb(Queue(backend), "first")

    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["first"]
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await receive_ids(stream) == [next_one]


async def test_the_worker_pattern_runs_everything_with_never_more_than_it_may(queue: Queue) -> None:
    # Q-PAT-01 Q-STREAM-08 Q-STREAM-12 Q-INV-01
    await add(queue, *(f"job{number}" for number in range(30)))
    done = 0
    async with queue.stream_jobs("worker-1", max_assigned_jobs=4) as stream:
        async for batch in stream:
            assert 1 <= len(batch) <= 4
            for job in batch:
                if job.id.endswith("7") and not job.retry_count:
                    await queue.fail_job(job.id, "the first time")
                else:
                    await queue.complete_job(job.id, b"done")
                    done += 1
            if done == 30:
                break
    assert (await queue.count_jobs())[S.COMPLETED] == 30
    assert await most_held(queue.backend) == {"worker-1": 4}


async def test_two_streams_never_share_capacity_even_under_one_name(queue: Queue) -> None:
    # Q-CON-03 Q-STREAM-08 Q-STREAM-23 X-22
    await add(queue, "a1", "a2")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as one:
        assert await receive_ids(one, 2) == ["a1", "a2"]
        async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as other:
            await add(queue, "b1", "b2", "left over")
            assert await receive_ids(other, 2) == ["b1", "b2"]
            await queue.complete_job("a1")
            assert await receive_ids(one) == ["left over"]
            await add(queue, "for the other")
            await queue.complete_job("b2")
            assert await receive_ids(other) == ["for the other"]
            await add(queue, "for nobody")
            await others_get(queue, "for nobody")


async def test_a_slot_is_taken_by_the_claim_whether_anybody_consumes_or_not(queue: Queue) -> None:
    # Q-STREAM-10 Q-STREAM-17 Q-INV-03 X-21
    await add(queue, "one", "two", "three")
    async with queue.stream_jobs("slow", max_assigned_jobs=2) as stream:
        await eventually(lambda: are(queue, S.RUNNING, ["one", "two"]))
        await others_get(queue, "three")
        assert {(await queue.get_job(job_id)).assignee_id for job_id in ("one", "two")} == {"slow"}
        assert await receive_ids(stream, 2) == ["one", "two"]


async def test_a_new_stream_begins_with_all_of_its_capacity_and_owes_nothing_to_an_earlier_one(queue: Queue) -> None:
    # Q-STREAM-09 Q-CON-03 X-22 X-37
    await add(queue, "a")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as earlier:
        assert await receive_ids(earlier) == ["a"]
    await add(queue, "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as later:
        assert await receive_ids(later) == ["b"]
        await add(queue, "c")
        await queue.complete_job("a")
        await others_get(queue, "c")
        await add(queue, "d")
        await queue.complete_job("b")
        assert await receive_ids(later) == ["d"]


async def test_no_slot_is_freed_twice(queue: Queue) -> None:
    # Q-STREAM-11 Q-STREAM-23 X-03 X-22
    await add(queue, "a", "b", "c", "d")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as stream:
        assert await receive_ids(stream, 2) == ["a", "b"]
        await queue.mark_job_unknown_stopped("a", "nobody knows")
        assert await receive_ids(stream) == ["c"]
        await queue.complete_job("a", b"late")
        await others_get(queue, "d")


async def test_a_job_without_a_holder_frees_no_slot(queue: Queue) -> None:
    # Q-STREAM-11 X-22
    await add(queue, "a")
    [stranger] = await queue.dequeue_jobs("worker-1")
    await add(queue, "b", "c")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["b"]
        await queue.complete_job(stranger.id)
        await others_get(queue, "c")


async def test_a_cancellation_frees_nothing_until_it_is_acknowledged(queue: Queue) -> None:
    # Q-CAN-03 Q-ACK-02 X-18
    await add(queue, "a", "b")
    told: list[str] = []
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        stream.on_cancel(told.append)
        assert await receive_ids(stream) == ["a"]
        assert await queue.cancel_jobs(job_ids=["a"]) == (["a"], [])
        await eventually(lambda: told)
        await others_get(queue, "b")
        await add(queue, "c")
        await queue.acknowledge_cancellation("a", True)
        assert await receive_ids(stream) == ["c"]
    assert told == ["a"]


DECLARED_OVER: dict[str, Callable[[Queue], Awaitable[None]]] = {
    "unresponsive": lambda queue: queue.mark_worker_unresponsive("worker-1"),
    "reset": lambda queue: queue.reset_running_jobs(),
}


@pytest.mark.parametrize("declare", DECLARED_OVER.values(), ids=DECLARED_OVER.keys())
async def test_the_slot_of_a_disowned_job_is_freed_when_its_worker_is_declared_unresponsive(
    queue: Queue, declare: Callable[[Queue], Awaitable[None]]
) -> None:
    # Q-ACK-03 Q-MWU-02 Q-RST-03 X-03
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await queue.cancel_jobs(job_ids=["a"])
        await queue.acknowledge_cancellation("a", False)
        assert (await queue.get_job("a")).status is S.UNKNOWN_STOPPED
        await others_get(queue, "b")
        await add(queue, "c")
        await declare(queue)
        assert await receive_ids(stream) == ["c"]


async def test_the_slot_stays_taken_even_if_the_lost_lease_is_noticed_before_the_acknowledgement_returns(
    queue: Queue, backend: Backend
) -> None:
    # M1 Q-ACK-03 X-03: the store has committed, and the Queue has not notified its streams yet
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await queue.cancel_jobs(job_ids=["a"])
        await backend.acknowledge_cancellation("a", False)
        await until_lease_vanished(stream, "a")
        registry_of(backend).disowned(["a"])
        await others_get(queue, "b")
        await add(queue, "c")
        await queue.mark_worker_unresponsive("worker-1")
        assert await receive_ids(stream) == ["c"]


async def test_the_slot_of_a_job_that_ended_otherwise_in_the_same_status_is_freed(
    queue: Queue, backend: Backend
) -> None:
    # M1 Q-ACK-03 X-03: the event decides, not the status UNKNOWN_STOPPED alone
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await queue.cancel_jobs(job_ids=["a"])
        await backend.mark_job_unknown_stopped("a")
        assert await receive_ids(stream) == ["b"]


async def test_the_slot_of_a_disowned_job_stays_taken_after_the_job_was_removed(queue: Queue, backend: Backend) -> None:
    # M1 Q-ACK-03
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await queue.cancel_jobs(job_ids=["a"])
        await backend.acknowledge_cancellation("a", False)
        await backend.delete_jobs(job_ids=["a"])
        await until_lease_vanished(stream, "a")
        await others_get(queue, "b")


async def test_a_stream_with_free_disowned_frees_the_slots_of_disowned_jobs_at_once(
    backend: Backend, queue: Queue
) -> None:
    # M8 X-03
    await add(queue, "a", "b", "c")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1, free_disowned=True) as stream:
        assert await receive_ids(stream) == ["a"]
        await queue.cancel_jobs(job_ids=["a"])
        await queue.acknowledge_cancellation("a", False)
        assert await receive_ids(stream) == ["b"]
        await queue.cancel_jobs(job_ids=["b"])
        await backend.acknowledge_cancellation("b", False)  # as another process would do
        assert await receive_ids(stream) == ["c"]
    with pytest.raises(InvalidArgument, match="free_disowned: must be True or False"):
        queue.stream_jobs("worker-1", free_disowned=1)  # type: ignore[arg-type]  # a wrong type on purpose


async def test_the_slot_of_a_disowned_job_is_not_missed_by_the_next_stream(queue: Queue) -> None:
    # Q-ACK-03 X-03
    await add(queue, "a")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await queue.cancel_jobs(job_ids=["a"])
        await queue.acknowledge_cancellation("a", False)
        await add(queue, "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["b"]


async def test_a_reset_of_one_queue_frees_only_its_slots(queue: Queue) -> None:
    # Q-RST-03 X-24
    await add(queue, "a", queue="letters")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as letters:
        assert await receive_ids(letters) == ["a"]
        await add(queue, "b", queue="parcels")
        async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as parcels:
            assert await receive_ids(parcels) == ["b"]
            await queue.reset_running_jobs(queue="parcels")
            assert await receive_ids(parcels) == ["b"]
            await add(queue, "c")
            await others_get(queue, "c")


async def test_a_job_claimed_again_before_its_end_was_reported_is_still_held(backend: Backend, queue: Queue) -> None:
    # Q-STREAM-08 Q-INV-01 X-22
    await add(queue, "a")
    registry = registry_of(backend)
    async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as stream:
        assert await receive_ids(stream) == ["a"]
        before = registry.now()
        await backend.fail_job("a", "broke")
        assert await receive_ids(stream) == ["a"]
        registry.freed(["a"], before)  # the operation that failed it reports only now
        await add(queue, "b", "c")
        assert await receive_ids(stream) == ["b"]
        await others_get(queue, "c")


async def test_a_job_that_another_stream_got_meanwhile_frees_the_first_one(backend: Backend, queue: Queue) -> None:
    # Q-STREAM-23 X-22
    await add(queue, "a")
    registry = registry_of(backend)
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as first:
        assert await receive_ids(first) == ["a"]
        async with queue.stream_jobs("worker-2", max_assigned_jobs=1) as second:
            while True:
                before = registry.now()
                await backend.release_lease("a", lease_of(await backend.get_job("a")))
                if (await comes_to(backend, "a", JobStatus.RUNNING)).assignee_id == "worker-2":
                    break
                assert await receive_ids(first) == ["a"]  # it noticed first: once more
            assert await receive_ids(second) == ["a"]
            registry.freed(["a"], before)
            await add(queue, "b", "c")
            assert await receive_ids(first) == ["b"]
            await others_get(queue, "c")


async def test_a_job_claimed_again_while_its_end_reaches_the_stream_is_still_held(
    backend: Backend, queue: Queue
) -> None:
    # Q-STREAM-08 Q-INV-01 X-22
    await add(queue, "a")
    registry = registry_of(backend)
    async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as stream:
        [job] = await receive(stream)
        telling = threading.Thread(target=registry.freed, args=([job.id],))
        telling.start()
        telling.join()  # the loop is blocked: the stream has not been notified yet
        registry.hold(stream, [job])
        await add(queue, "b", "c")
        assert await receive_ids(stream) == ["b"]
        await others_get(queue, "c")


async def test_many_streams_in_many_threads_do_everything_once_and_hold_no_more_than_they_may(
    backend: Backend, queue: Queue
) -> None:
    # Q-CON-01 Q-CON-03 Q-STREAM-08 Q-INV-01 Q-INV-02 Q-PAT-01
    jobs, threads = 120, 3
    done: list[str] = []
    over: Future[None] = Future()

    async def work(thread: int, capacity: int) -> None:
        mine = Queue(backend)
        async with mine.stream_jobs(f"thread {thread}, {capacity}", max_assigned_jobs=capacity) as stream:
            async for batch in stream:
                async with asyncio.TaskGroup() as group:
                    for job in batch:
                        group.create_task(end(mine, job.id, job.retry_count))

    async def end(mine: Queue, job_id: str, failures: int) -> None:
        if job_id.endswith("3") and not failures:
            await mine.fail_job(job_id, "the first time")
        else:
            await mine.complete_job(job_id)
            done.append(job_id)

    async def all_of(thread: int) -> None:
        working = [asyncio.create_task(work(thread, capacity)) for capacity in (1, 2, 5)]
        await asyncio.wait([asyncio.wrap_future(over)])
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    running = [asyncio.create_task(asyncio.to_thread(asyncio.run, all_of(thread))) for thread in range(threads)]
    try:
        for number in range(jobs):
            await add(queue, f"job{number}")
        await eventually(lambda: len(done) == jobs)
    finally:
        over.set_result(None)
        await asyncio.gather(*running)
    assert (await queue.count_jobs())[S.COMPLETED] == jobs
    for name, most in (await most_held(backend)).items():
        assert most <= int(name.partition(", ")[2])


async def test_a_delivered_job_can_be_read_by_its_id(queue: Queue) -> None:
    # Q-INV-03 Q-OBS-01
    await add(queue, "a")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        [job] = await receive(stream)
        assert await queue.get_job("a") == job
