"""Delayed and retried jobs start when they are due, not at the next poll."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import pytest

from longshore import Queue
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import lease_of, moment, seconds
from tests.runtime.conftest import OpenBackend
from tests.runtime.streaming import never_poll, receive
from tests.runtime.working import comes_to, until, working

SELDOM = 60
"""A poll interval longer than any test."""
AT_ONCE = seconds(5)
"""Seconds on a busy machine; the next poll would be much later."""


async def do(_: RunningJob) -> None:
    pass


def elsewhere(backend: Backend, open_backend: OpenBackend) -> Backend:
    """The store as another process has it, where it can be shared."""
    return open_backend() if backend.capabilities.shared else backend


async def test_a_delayed_job_starts_when_it_is_due(queue: Queue, backend: Backend, open_backend: OpenBackend) -> None:
    # M-OPT-02
    other = Queue(elsewhere(backend, open_backend))
    async with working(queue, do, poll_interval=SELDOM):
        for _ in range(3):
            job = await comes_to(backend, (await other.add("a", delay=0.15)).id)
            assert seconds(0) <= moment(job.started_at) - moment(job.run_at) < AT_ONCE
    await other.close()


async def test_a_job_released_for_later_starts_when_it_is_due(
    queue: Queue, backend: Backend, open_backend: OpenBackend
) -> None:
    other = elsewhere(backend, open_backend)
    added = await queue.add("a", attempts=3)
    [claimed] = await other.dequeue_jobs("somebody")
    async with working(queue, do, poll_interval=SELDOM):
        await other.fail_job(added.id, "not now", retry_at=0.15, lease=lease_of(claimed))
        job = await comes_to(backend, added.id)
        assert moment(job.finalized_at) - moment(job.run_at) < AT_ONCE


async def test_a_job_delayed_before_the_first_claim_starts_when_it_is_due(queue: Queue, backend: Backend) -> None:
    added = await queue.add("a", delay=0.3)
    async with working(queue, do, poll_interval=SELDOM, queues=["default"]):
        job = await comes_to(backend, added.id)
        assert moment(job.started_at) - moment(job.run_at) < AT_ONCE


async def test_a_stream_hands_over_a_delayed_job_when_its_time_comes(
    queue: Queue, backend: Backend, open_backend: OpenBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_poll(monkeypatch)
    other = Queue(elsewhere(backend, open_backend))
    async with queue.stream_jobs("worker-1") as stream:
        added = await other.add("a", delay=0.15)
        [job] = await receive(stream)
        assert job.id == added.id
        assert moment(job.started_at) - moment(job.run_at) < AT_ONCE
    await other.close()


async def test_a_clock_that_stops_just_before_a_planned_time_causes_no_busy_loop(
    queue: Queue, backend: Backend, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = looks = 0
    next_due, turn = backend.next_due, backend.settle_and_dequeue

    async def asking(queues: Sequence[str] | None = None, *, after: datetime | None = None) -> datetime | None:
        nonlocal asked
        asked += 1
        return await next_due(queues, after=after)

    async def looking(*args: object, **kwargs: object) -> object:
        nonlocal looks
        looks += 1
        return await turn(*args, **kwargs)  # type: ignore[arg-type]  # passed on unchanged

    monkeypatch.setattr(backend, "next_due", asking)
    monkeypatch.setattr(backend, "settle_and_dequeue", looking)
    added = await queue.add("a", delay=0.001)
    async with working(queue, do, poll_interval=SELDOM):
        began = asyncio.get_running_loop().time()
        await until(lambda: asked >= 5)
        assert asyncio.get_running_loop().time() - began > 0.3
        assert looks <= 2 * asked + 5
        clock.advance(1)
        await comes_to(backend, added.id)


async def test_a_store_that_cannot_tell_is_polled_as_ever(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object, **__: object) -> None:
        raise BackendUnavailable("not now")

    monkeypatch.setattr(backend, "next_due", failing)
    added = await queue.add("a", delay=0.15)
    async with working(queue, do, poll_interval=0.1):
        await comes_to(backend, added.id)
