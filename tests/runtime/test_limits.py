"""Limits: set and read by every interface, and applied by workers of other processes at once."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from longshore import Harbor, Queue, Rate
from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, JobNotFound
from longshore.core.limits import Limits
from longshore.runtime.queue_operations import explain
from longshore.testing.conformance.scenarios import S, log_of
from tests.backends.limits_audit import InForce, faults_of_limits
from tests.runtime.working import Gate, all_come_to, comes_to, until, working

AT_ONCE = 1.0
"""Seconds within which other processes apply a change of limits."""
NEVER_POLLED = 60
"""Seconds between two polls of a worker that must be woken by events, not by time."""


async def test_limits_are_set_and_read_back_on_a_named_queue(mail: Queue, queue: Queue) -> None:
    # M-FUT-07 M-FUT-08
    assert await mail.get_limits() == Limits()
    await mail.set_limits(running=5, per_key=2, rate=Rate(100, 60), rate_per_key=Rate(10, 1))
    assert await mail.get_limits() == Limits(5, 2, Rate(100, 60), Rate(10, 1))
    await mail.set_limits(per_key=3)
    await mail.set_limits(rate=None)
    assert await queue.get_limits("mail") == Limits(5, 3, None, Rate(10, 1))
    [info] = await mail.list_queues()
    assert (info.running, info.per_key, info.rate, info.rate_per_key) == (5, 3, None, Rate(10, 1))


async def test_a_queue_without_a_name_needs_the_queue_of_an_operation(queue: Queue, mail: Queue) -> None:
    await queue.set_limits("images", running=1)
    assert await queue.get_limits("images") == Limits(running=1)
    for call in (queue.set_limits(running=1), queue.get_limits(), mail.get_limits("images")):
        with pytest.raises(InvalidArgument, match="queue"):
            await call


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"running": 0}, "running"),
        ({"per_key": "2"}, "per_key"),
        ({"rate": 10}, "rate"),
        ({"rate_per_key": (1, 2)}, "rate_per_key"),
    ],
)
async def test_a_bad_limit_is_named_and_changes_nothing(mail: Queue, limits: dict[str, object], named: str) -> None:
    await mail.set_limits(running=7)
    with pytest.raises(InvalidArgument, match=named):
        await mail.set_limits(**limits)  # type: ignore[arg-type]  # wrong on purpose
    assert await mail.get_limits() == Limits(running=7)


async def test_the_blocking_queue_and_the_harbor_have_the_same_verbs(backend: Backend, mail: Queue) -> None:
    await asyncio.to_thread(mail.sync.set_limits, running=2)
    assert await asyncio.to_thread(mail.sync.get_limits) == Limits(running=2)
    keeper = Queue(backend)
    harbor = Harbor(backend)
    await harbor.set_limits("mail", rate=Rate(100, 60))
    assert await harbor.get_limits("mail") == Limits(running=2, rate=Rate(100, 60))
    await asyncio.to_thread(harbor.set_limits_sync, "mail", running=None)
    assert await asyncio.to_thread(harbor.get_limits_sync, "mail") == Limits(rate=Rate(100, 60))
    await harbor.close()
    assert not keeper.closed


async def test_a_worker_blocked_by_a_full_queue_continues_when_another_process_ends_a_job(
    backend: Backend, other_backend: Backend, queue: Queue
) -> None:
    await queue.set_limits("default", running=1)
    await queue.add("t", job_id="elsewhere")
    [held] = await other_backend.dequeue_jobs("another process")
    await queue.add("t", job_id="here")
    gate = Gate()
    async with working(queue, gate, poll_interval=NEVER_POLLED, sweep=False):
        await until(lambda: _explained(backend, "here", "queue_full"))
        await other_backend.complete_job(held.id, lease=held.lease)
        await gate.has_begun()
        gate.open.set()
        await comes_to(backend, "here", S.COMPLETED)


async def test_a_worker_blocked_by_a_full_key_continues_when_another_process_ends_a_job_of_it(
    backend: Backend, other_backend: Backend, queue: Queue
) -> None:
    await queue.set_limits("default", per_key=1)
    await queue.add("t", job_id="elsewhere", concurrency_key="acme")
    [held] = await other_backend.dequeue_jobs("another process")
    await queue.add("t", job_id="here", concurrency_key="acme")
    gate = Gate()
    async with working(queue, gate, poll_interval=NEVER_POLLED, sweep=False):
        await until(lambda: _explained(backend, "here", "key_full"))
        await other_backend.complete_job(held.id, lease=held.lease)
        await gate.has_begun()
        gate.open.set()
        await comes_to(backend, "here", S.COMPLETED)


@pytest.mark.parametrize("raised", [3, None], ids=["raised", "taken away"])
async def test_a_limit_that_is_raised_elsewhere_is_felt_within_a_second(
    backend: Backend, other_backend: Backend, queue: Queue, raised: int | None
) -> None:
    await queue.set_limits("default", running=1)
    for number in range(3):
        await queue.add("t", job_id=f"j{number}")
    gate = Gate()
    async with working(queue, gate, concurrency=3, sweep=False, poll_interval=NEVER_POLLED):
        await gate.has_begun(1)
        began = monotonic()
        await other_backend.set_limits("default", running=raised)
        await gate.has_begun(3)
        assert monotonic() - began < AT_ONCE + 2  # with the delays of a busy machine
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=3)


@pytest.mark.slow
async def test_a_worker_continues_when_a_rate_window_opens_without_waiting_for_its_poll(
    backend: Backend, queue: Queue
) -> None:
    # M-FUT-08
    rate = Rate(2, 0.2)
    await queue.set_limits("default", rate=rate)
    began_at = await backend.now()
    for number in range(12):
        await queue.add("t", job_id=f"j{number}")
    gate = Gate()
    gate.open.set()
    began = monotonic()
    async with working(queue, gate, concurrency=4, poll_interval=20):
        await all_come_to(backend, S.COMPLETED, count=12)
    assert monotonic() - began < 15, "it was woken by its poll, and not by the window"
    span = InForce(began_at, await backend.now(), Limits(rate=rate))
    assert faults_of_limits(await log_of(backend), [span], lambda _: None) == []


async def test_a_lowered_limit_stops_no_running_job_and_starts_none(backend: Backend, queue: Queue) -> None:
    await queue.set_limits("default", running=3)
    for number in range(4):
        await queue.add("t", job_id=f"j{number}")
    gate = Gate()
    async with working(queue, gate, concurrency=4):
        await gate.has_begun(3)
        await queue.set_limits("default", running=1)
        assert await _explained(backend, "j3", "queue_full")
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=4)


async def test_explain_is_available_everywhere_and_limited_to_its_queue(
    backend: Backend, queue: Queue, mail: Queue
) -> None:
    await mail.add("t", job_id="j", delay=60)
    await queue.add("t", job_id="elsewhere")
    explanation = await mail.explain("j")
    assert explanation.kinds[0] == "not_due"
    assert "promote_job" in str(explanation)
    assert (await queue.explain("j")).kinds == explanation.kinds == (await explain(backend, "j")).kinds
    assert (await asyncio.to_thread(queue.sync.explain, "j")).kinds == explanation.kinds
    with pytest.raises(InvalidArgument):
        await mail.explain("elsewhere")
    with pytest.raises(JobNotFound):
        await queue.explain("nobody")


async def test_a_handle_explains_its_job(backend: Backend, queue: Queue) -> None:
    harbor = Harbor(backend)

    @harbor.task
    def greet(name: str) -> str:
        return f"Hello, {name}"

    handle = await greet.options(delay=60).enqueue("Ada")
    assert (await handle.explain()).kinds[0] == "not_due"
    assert (await asyncio.to_thread(handle.explain_sync)).job_id == handle.id
    assert (await harbor.explain(handle.id)).kinds[0] == "not_due"
    with harbor.eager():
        done = await greet.enqueue("Ada")
    assert (await done.explain()).kinds == ("completed",)
    await harbor.close()
    assert not queue.closed


async def test_a_job_that_a_live_worker_runs_is_explained_by_it(backend: Backend, queue: Queue) -> None:
    await queue.add("t", job_id="j")
    await queue.add("t", job_id="next")
    gate = Gate()
    async with working(queue, gate, id="the worker"):
        await gate.has_begun()
        assert (await queue.explain("j")).reasons[0].details["worker"] == "the worker"
        await until(lambda: _explained(backend, "next", "behind_others", "about_to_start", "workers_busy"))
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=2)


async def _explained(backend: Backend, job_id: str, *kinds: str) -> bool:
    return not set(kinds).isdisjoint((await explain(backend, job_id)).kinds)
