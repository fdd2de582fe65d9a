"""A job that exceeds its timeout has failed, whatever it still does or returns."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic

import pytest

from longshore import JobStatus, Queue, fixed
from longshore.backends.base import Backend
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import history, story
from tests.runtime.working import Gate, comes_to, until, working

S = JobStatus


async def test_a_job_that_takes_too_long_has_failed(backend: Backend, queue: Queue) -> None:
    # M-OPT-18 M-RTY-08 X-102
    gate = Gate()
    async with working(queue, gate) as worker:
        begun = monotonic()
        await queue.add("x", job_id="a", timeout=0.2)
        job = await comes_to(backend, "a")
        assert monotonic() - begun >= 0.2
        await until(lambda: worker.running == 0)
    assert (job.status, job.retry_count, job.executions) == (S.DEAD, 1, 1)
    assert job.error_message == "TimeoutError: the job took longer than its timeout of 0.2 seconds"
    assert gate.cancelled == ["a"]


async def test_a_timeout_is_retried_like_any_failure(backend: Backend, queue: Queue) -> None:
    # M-OPT-18 M-RTY-08 M-TR-08
    told: list[BaseException] = []

    def strategy(_: int, error: BaseException) -> float:
        told.append(error)
        return 0

    async def process(job: RunningJob) -> str:
        if job.executions < 3:
            await asyncio.Event().wait()
        return "in time"

    async with working(queue, process, strategies={"noted": strategy}):
        await queue.add("x", job_id="a", timeout=0.1, attempts=3, backoff=fixed(0.01))
        await queue.add("x", job_id="b", timeout=0.1, attempts=3, retry_strategy="noted")
        for name in "ab":
            job = await comes_to(backend, name)
            assert (job.status, job.retry_count, job.result) == (S.COMPLETED, 2, b'"in time"')
    assert [type(error) for error in told] == [TimeoutError, TimeoutError]
    failed = [event for event in await history(backend, "a") if event.event == "job.failed"]
    assert ["timeout of 0.1 seconds" in event.detail["error"] for event in failed] == [True, True]


@pytest.mark.parametrize("answer", ["value", "error"])
async def test_a_value_after_the_timeout_is_discarded(backend: Backend, queue: Queue, answer: str) -> None:
    # M-RTY-08 X-102
    async def process(job: RunningJob) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if answer == "error":
                raise KeyError("nobody asked") from None
        return "too late"

    async with working(queue, process):
        await queue.add("x", job_id="a", timeout=0.1)
        job = await comes_to(backend, "a")
    assert (job.status, job.result) == (S.DEAD, None)
    assert job.error_message.startswith("TimeoutError: the job took longer")
    assert await story(backend, "a") == ["job.added", "job.active", "job.failed", "job.dead"]


async def test_a_processor_that_blocks_the_loop_past_its_timeout_is_late_all_the_same(
    backend: Backend, queue: Queue
) -> None:
    # M-RTY-08 X-102
    async def process(job: RunningJob) -> str:
        threading.Event().wait(0.3)  # it blocks, which it should not
        return "too late"

    async with working(queue, process):
        await queue.add("x", job_id="a", timeout=0.1)
        job = await comes_to(backend, "a")
    assert (job.status, job.result) == (S.DEAD, None)
    assert "longer than its timeout" in job.error_message


async def test_a_job_that_ends_in_time_is_not_troubled(backend: Backend, queue: Queue) -> None:
    # M-OPT-18
    async def process(job: RunningJob) -> bool:
        return job.cancelled

    async with working(queue, process, concurrency=5):
        for n in range(10):
            await queue.add("x", job_id=f"job {n}", timeout=60)
        for n in range(10):
            job = await comes_to(backend, f"job {n}")
            assert (job.status, job.result) == (S.COMPLETED, b"false")


async def test_a_thread_that_exceeds_its_timeout_has_failed_and_its_value_is_discarded(
    backend: Backend, queue: Queue
) -> None:
    # M-OPT-18 M-RTY-08 X-102
    ended: list[bool] = []

    def process(job: RunningJob) -> str:
        wait = threading.Event()
        while not job.cancelled:
            wait.wait(0.01)
        ended.append(job.cancelled)
        return "too late"

    async with working(queue, process):
        await queue.add("x", job_id="a", timeout=0.1, attempts=2)
        job = await comes_to(backend, "a")
    assert (job.status, job.executions, job.result) == (S.DEAD, 2, None)
    assert "longer than its timeout" in job.error_message
    assert ended == [True, True]


async def test_a_job_that_ignores_its_timeout_is_left_behind(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-RTY-08 M-OPT-18
    monkeypatch.setattr("longshore.runtime.job_tasks._FORCE_SLACK", 0.1)
    over = asyncio.Event()

    async def process(job: RunningJob) -> str:
        if job.executions == 1:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue
            return "first"
        return "second"

    async with working(queue, process, cancel_grace=0.05):
        await queue.add("x", job_id="a", timeout=0.1, attempts=2)
        job = await comes_to(backend, "a")
        over.set()
    assert (job.status, job.result, job.retry_count) == (S.COMPLETED, b'"second"', 1)


async def test_the_timeout_is_for_each_attempt(backend: Backend, queue: Queue) -> None:
    # M-OPT-18
    async def process(job: RunningJob) -> None:
        await asyncio.sleep(0.15)
        if job.executions < 3:
            raise ValueError("again")

    async with working(queue, process):
        await queue.add("x", job_id="a", timeout=0.4, attempts=3)
        job = await comes_to(backend, "a")
    assert (job.status, job.executions) == (S.COMPLETED, 3)
