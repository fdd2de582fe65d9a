"""Notifications: a stream with free slots claims at once, once for many events, and never without a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from longshore import JobStatus, Queue
from longshore.backends.base import Backend
from longshore.runtime import background, streams
from longshore.testing.conformance.scenarios import new_job
from tests.runtime.streaming import Claim, add, count_claims, eventually, never_poll, others_get, receive_ids

S = JobStatus


@pytest.fixture(autouse=True)
def whatever_arrives_was_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling."""
    never_poll(monkeypatch)


async def be_idle(claims: list[Claim], streams: int = 1) -> None:
    """Wait until every stream had an empty claim and waits."""
    await eventually(lambda: len({claim.assignee_id for claim in claims if not claim.found}) == streams)
    claims.clear()


async def test_an_idle_stream_receives_what_is_enqueued(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CON-02 Q-CON-04 Q-ENQ-03 Q-STREAM-16 Q-STREAM-25
    claims = count_claims(backend, monkeypatch)
    async with queue.stream_jobs("worker-1") as stream:
        for number in range(5):
            await be_idle(claims)
            await queue.enqueue_job(new_job(f"job{number}"))
            assert await receive_ids(stream) == [f"job{number}"]
            await queue.complete_job(f"job{number}")


async def test_every_matching_stream_with_free_slots_gets_part_of_a_batch(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CON-05 Q-ENQS-02 Q-INV-02 Q-STREAM-06
    claims = count_claims(backend, monkeypatch)
    async with (
        queue.stream_jobs("eu", ["eu"]) as eu,
        queue.stream_jobs("fast us", ["fast", "us"]) as us,
        queue.stream_jobs("nobody", ["nowhere"]),
    ):
        await be_idle(claims, 3)
        tags = {"a": ["eu"], "b": ["us", "fast"], "c": ["fast", "us"], "d": ["eu", "fast"], "e": ["asia"]}
        await queue.enqueue_jobs([new_job(job_id, tags=of) for job_id, of in tags.items()])
        assert await receive_ids(eu, 2) == ["a", "d"]
        assert await receive_ids(us, 2) == ["b", "c"]
        await others_get(queue, "e")


async def test_one_batch_with_many_combinations_of_tags_is_one_reason_to_look(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CON-06 Q-ENQS-02 X-27
    claims = count_claims(backend, monkeypatch)
    async with queue.stream_jobs("worker-1") as stream:
        await be_idle(claims)
        tags = [["a", "b"], ["b", "a"], ["a"], ["b"], [], ["c"]]
        await queue.enqueue_jobs([new_job(str(number), tags=of) for number, of in enumerate(tags)])
        assert await receive_ids(stream, 6) == ["0", "1", "2", "3", "4", "5"]
    assert [claim.found for claim in claims if claim.found] == [6]
    assert len(claims) <= 4  # its own claim and a late notification are changes, too


async def test_many_events_before_it_can_look_are_one_reason_to_look(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CON-06 Q-CON-07 X-27
    claims = count_claims(backend, monkeypatch)
    async with queue.stream_jobs("worker-1", max_assigned_jobs=50) as stream:
        await be_idle(claims)
        for number in range(20):  # the loop is blocked, so that all arrive before it reads
            background.submit(backend.enqueue_job(new_job(f"{number:02}"))).result()
        assert await receive_ids(stream, 20) == [f"{number:02}" for number in range(20)]
    assert [claim.found for claim in claims if claim.found] == [20]
    assert len(claims) <= 5


async def test_slots_freed_together_are_filled_together(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-STREAM-12 Q-STREAM-15 X-27
    jobs = [f"{number}" for number in range(8)]
    await add(queue, *jobs)
    async with queue.stream_jobs("worker-1", max_assigned_jobs=4) as stream:
        assert await receive_ids(stream, 4) == jobs[:4]
        claims = count_claims(backend, monkeypatch)
        await queue.mark_worker_unresponsive("worker-1")
        assert await receive_ids(stream, 4) == jobs[:4]
    assert claims[0] == Claim("worker-1", 4, 4)


MADE_ELIGIBLE: dict[str, Callable[[Queue], Awaitable[object]]] = {
    "failed": lambda queue: queue.fail_job("a", "broke"),
    "its worker is unresponsive": lambda queue: queue.mark_worker_unresponsive("gone"),
    "reset": lambda queue: queue.reset_running_jobs(),
    "moved by hand": lambda queue: queue.update_job_status("a", S.UNKNOWN_RETRY),
}


@pytest.mark.parametrize("verb", MADE_ELIGIBLE.values(), ids=MADE_ELIGIBLE.keys())
async def test_a_job_that_becomes_eligible_again_is_pushed_to_a_stream_with_a_free_slot(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Queue], Awaitable[object]]
) -> None:
    # Q-FAIL-05 Q-MWU-03 Q-RST-04 Q-STREAM-16 Q-CON-05
    await add(queue, "a", tags=["eu"])
    await queue.dequeue_jobs("gone")
    claims = count_claims(backend, monkeypatch)
    async with queue.stream_jobs("other tags", ["us"]), queue.stream_jobs("worker-1", ["eu"]) as stream:
        await be_idle(claims, 2)
        await verb(queue)
        assert await receive_ids(stream) == ["a"]
        await eventually(lambda: "other tags" in [claim.assignee_id for claim in claims])  # all were woken


async def test_a_job_that_ends_in_one_stream_wakes_another_that_a_limit_blocked(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-COMP-04 X-26
    await queue.set_limits("default", running=1)
    await add(queue, "a", tags=["first"])
    await add(queue, "b", tags=["second"])
    async with queue.stream_jobs("first", ["first"], 1) as first:
        assert await receive_ids(first) == ["a"]
        claims = count_claims(backend, monkeypatch)
        async with queue.stream_jobs("second", ["second"], 1) as second:
            await be_idle(claims)
            await queue.complete_job("a")
            assert await receive_ids(second) == ["b"]


async def test_an_enqueue_waits_for_no_consumer(queue: Queue) -> None:
    # Q-CON-07 Q-STREAM-17
    async with queue.stream_jobs("never consumes", max_assigned_jobs=1):
        await add(queue, *(f"job{number}" for number in range(5)))
        await eventually(lambda: holds_one(queue))
        await add(queue, "one more")
        assert (await queue.count_jobs())[S.INITIAL_PENDING] == 5


async def holds_one(queue: Queue) -> bool:
    return (await queue.count_jobs())[S.RUNNING] == 1


async def test_an_idle_stream_does_not_look(backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    # Q-STREAM-25
    claims = count_claims(backend, monkeypatch)
    async with queue.stream_jobs("worker-1"):
        await be_idle(claims)
        while await backend.wait_for_change(0.2):
            continue  # the first transaction on a new file is a change like any other
        claims.clear()
        for _ in range(100):
            await queue.count_jobs()
        assert claims == []


async def test_a_poll_is_one_look(backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    # Q-STREAM-25
    monkeypatch.setattr(streams, "POLL_SECONDS", 0.05)
    claims = count_claims(backend, monkeypatch)
    polls = 0
    wait_for_change = backend.wait_for_change

    async def counted(timeout: float, after: str | None = None) -> bool:
        nonlocal polls
        polls += 1
        return await wait_for_change(timeout, after)

    monkeypatch.setattr(backend, "wait_for_change", counted)
    async with queue.stream_jobs("worker-1"):
        await eventually(lambda: polls > 10)
    assert len(claims) <= polls + 1


async def test_a_busy_store_does_not_keep_a_stream_busy(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-STREAM-25
    claims = count_claims(backend, monkeypatch)
    async with queue.stream_jobs("idle", ["unused"]) as stream:
        await be_idle(claims)
        for number in range(200):
            await queue.enqueue_job(new_job(f"job{number}"))
        assert len(claims) < 150  # more than a few on a busy machine, but never one for each
        await add(queue, "at last", tags=["unused"])
        assert await receive_ids(stream) == ["at last"]
