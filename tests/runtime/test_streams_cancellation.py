"""Cancellations reach the one stream that holds the job, once, even if a notification is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from longshore import JobStatus, Queue
from longshore.backends.base import Backend
from longshore.testing.conformance.scenarios import status_of, story
from tests.runtime.streaming import add, are, eventually, never_poll, others_get, receive, receive_ids, until_held

S = JobStatus
BEFORE_A_HEARTBEAT = 8
"""Seconds: the next renewal is after ten, so that an earlier change was noticed without it."""


async def test_only_the_stream_that_holds_a_cancelled_job_is_notified_and_only_once(queue: Queue) -> None:
    # Q-CAN-03 X-18
    told: dict[str, list[str]] = {"one": [], "other": []}
    async with queue.stream_jobs("worker", ["one"]) as one, queue.stream_jobs("worker", ["other"]) as other:
        one.on_cancel(told["one"].append)
        other.on_cancel(told["other"].append)
        await add(queue, "a", "b", tags=["one"])
        await add(queue, "c", tags=["other"])
        await receive(one, 2)
        await receive(other)
        await queue.cancel_jobs(job_ids=["b"])
        await queue.cancel_jobs(job_ids=["b"])
        await eventually(lambda: told["one"])
        await others_get(queue)  # meanwhile readers of the store see it, too
        assert told == {"one": ["b"], "other": []}
        assert await status_of(queue.backend, "b") is S.CANCELLING
        await queue.acknowledge_cancellation("b", True)


async def test_cancelling_by_tags_reaches_all_that_are_held(queue: Queue) -> None:
    # Q-CAN-03 X-18
    told: list[str] = []
    async with queue.stream_jobs("worker-1") as stream:
        stream.on_cancel(told.append)
        await add(queue, "a", "b", tags=["eu"])
        await add(queue, "c")
        await receive(stream, 3)
        await queue.cancel_jobs(["eu"])
        await eventually(lambda: sorted(told) == ["a", "b"])


async def test_a_cancellation_from_another_thread_reaches_the_listener_in_the_streams_loop(
    backend: Backend, queue: Queue
) -> None:
    # Q-CON-01 X-18
    loops: list[asyncio.AbstractEventLoop] = []
    async with queue.stream_jobs("worker-1") as stream:
        stream.on_cancel(lambda _: loops.append(asyncio.get_running_loop()))
        await add(queue, "a")
        await receive(stream)

        async def elsewhere() -> None:
            await Queue(backend).cancel_jobs(job_ids=["a"])

        await asyncio.to_thread(asyncio.run, elsewhere())
        await eventually(lambda: loops)
        assert loops == [asyncio.get_running_loop()]


async def test_a_cancellation_by_another_process_is_noticed_before_the_next_heartbeat(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    #
    never_poll(monkeypatch)
    told: list[str] = []
    async with queue.stream_jobs("worker-1") as stream:
        stream.on_cancel(told.append)
        await add(queue, "a")
        await receive(stream)
        await backend.cancel_jobs(job_ids=["a"])  # not through the queue, as from another process
        await eventually(lambda: told == ["a"], within=BEFORE_A_HEARTBEAT)


async def test_a_cancellation_without_any_notification_comes_with_the_heartbeat(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    #
    async def hear_nothing(timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    monkeypatch.setattr(backend, "wait_for_change", hear_nothing)
    told: list[str] = []
    async with queue.stream_jobs("worker-1", lease=2) as stream:
        stream.on_cancel(told.append)
        await add(queue, "a")
        await receive(stream)
        await backend.cancel_jobs(job_ids=["a"])
        await eventually(lambda: told == ["a"])


async def test_a_job_cancelled_before_its_delivery_is_ended_by_the_stream(queue: Queue) -> None:
    # Q-CAN-03 Q-STREAM-11
    told: list[str] = []
    await add(queue, "a", "b")
    async with queue.stream_jobs("slow", max_assigned_jobs=1) as stream:
        stream.on_cancel(told.append)
        await until_held(queue, stream, "a")
        await queue.cancel_jobs(job_ids=["a"])
        assert await receive_ids(stream) == ["b"]
        assert await status_of(queue.backend, "a") is S.STOPPED
    assert told == []
    assert await story(queue.backend, "a") == ["job.added", "job.active", "job.cancelling", "job.stopped"]


async def test_a_stream_that_ends_while_a_job_it_did_not_hand_over_is_being_cancelled_leaves_it_stopped(
    backend: Backend, queue: Queue
) -> None:
    # Q-STREAM-22 X-20
    await add(queue, "a")
    async with queue.stream_jobs("slow", max_assigned_jobs=1):
        await eventually(lambda: are(queue, S.RUNNING, ["a"]))
        await backend.cancel_jobs(job_ids=["a"])
    assert await status_of(backend, "a") is S.STOPPED


async def test_a_listener_that_raises_does_not_affect_others_and_a_removed_one_gets_nothing(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    #
    def raises(_job_id: str) -> None:
        raise RuntimeError("a listener with a fault")

    told: list[str] = []
    left: list[str] = []
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1") as stream:
        stream.on_cancel(raises)
        leave = stream.on_cancel(left.append)
        stream.on_cancel(told.append)
        await receive(stream, 2)
        with caplog.at_level(logging.CRITICAL, "longshore.stream"):
            await queue.cancel_jobs(job_ids=["a"])
            await eventually(lambda: told == ["a"])
            leave()
            leave()
            await queue.cancel_jobs(job_ids=["b"])
            await eventually(lambda: told == ["a", "b"])
    assert left == ["a"]


async def test_a_late_listener_gets_earlier_cancellations(queue: Queue) -> None:
    #
    early: list[str] = []
    late: list[str] = []
    await add(queue, "a", "b", "c")
    async with queue.stream_jobs("worker-1") as stream:
        stream.on_cancel(early.append)
        await receive(stream, 3)
        await queue.cancel_jobs(job_ids=["a", "b"])
        await eventually(lambda: sorted(early) == ["a", "b"])
        await queue.acknowledge_cancellation("b", True)
        stream.on_cancel(late.append)
        assert late == ["a"]


ANSWERS: dict[str, tuple[Callable[[Queue], Awaitable[None]], JobStatus]] = {
    "it was executing": (lambda queue: queue.acknowledge_cancellation("a", True), S.STOPPED),
    "it was done after all": (lambda queue: queue.complete_job("a"), S.COMPLETED),
    "it failed meanwhile": (lambda queue: queue.stop_job_with_retry("a", "broke"), S.STOPPED),
    "unknown": (lambda queue: queue.mark_job_unknown_stopped("a"), S.UNKNOWN_STOPPED),
}


@pytest.mark.parametrize(("answer", "status"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_any_answer_to_a_cancellation_frees_the_slot(
    queue: Queue, answer: Callable[[Queue], Awaitable[None]], status: JobStatus
) -> None:
    # Q-ACK-02 Q-SWR-02 Q-MUS-02 Q-COMP-03 Q-CAN-03
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await queue.cancel_jobs(job_ids=["a"])
        await answer(queue)
        assert await receive_ids(stream) == ["b"]
    assert await status_of(queue.backend, "a") is status
