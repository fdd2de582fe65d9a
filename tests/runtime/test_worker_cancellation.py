"""Cancellation of a running job: it ends by itself or is abandoned, and its slot becomes free."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from longshore import JobStatus, Queue
from longshore.backends.base import Backend
from longshore.core.errors import Snooze
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import history, status_of, story
from tests.runtime.working import Gate, comes_to, until, worker_loop_of, working

S = JobStatus


async def test_a_cancelled_job_gets_cancelled_error_and_is_stopped(backend: Backend, queue: Queue) -> None:
    # M-WRK-17
    seen: list[bool] = []
    gate = Gate()

    async def process(job: RunningJob) -> None:
        seen.append(job.cancelled)
        try:
            await gate(job)
        finally:
            seen.append(job.cancelled)

    async with working(queue, process) as worker:
        await queue.add("x", job_id="a", attempts=5)
        await gate.has_begun()
        assert await queue.cancel_jobs(job_ids=["a"]) == (["a"], [])
        job = await comes_to(backend, "a")
        await until(lambda: worker.running == 0)
    assert (job.status, job.error_message, job.retry_count) == (S.STOPPED, "cancelled", 0)
    assert seen == [False, True]
    assert await story(backend, "a") == ["job.added", "job.active", "job.cancelling", "job.stopped"]


async def test_a_cancellation_by_another_process_arrives(
    backend: Backend, other_backend: Backend, queue: Queue
) -> None:
    gate = Gate()
    async with working(queue, gate):
        await queue.add("x", job_id="a", tags=["tour"])
        await gate.has_begun()
        await other_backend.cancel_jobs(tags=["tour"])
        # long before the next renewal
        assert (await comes_to(other_backend, "a", within=8)).status is S.STOPPED
        assert gate.cancelled == ["a"]


async def test_a_cancellation_without_a_notification_is_found_by_the_next_renewal(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(timeout: float, after: str | None = None) -> bool:
        await asyncio.get_running_loop().create_future()
        return False

    gate = Gate()
    async with working(queue, gate, lock_duration=0.6):
        await queue.add("x", job_id="a")
        await gate.has_begun()
        monkeypatch.setattr(backend, "wait_for_change", deaf)
        await backend.cancel_jobs(job_ids=["a"])  # not through the queue: only the store knows
        await until(lambda: gate.cancelled == ["a"])
        monkeypatch.undo()
        assert (await comes_to(backend, "a")).status is S.STOPPED


async def test_a_result_given_in_spite_of_the_cancellation_counts(backend: Backend, queue: Queue) -> None:
    # S1
    begun = asyncio.Event()

    async def process(job: RunningJob) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert job.cancelled
        return job.complete("almost done anyway")

    async with working(queue, process):
        await queue.add("x", job_id="a")
        await begun.wait()
        await queue.cancel_jobs(job_ids=["a"])
        job = await comes_to(backend, "a")
    assert (job.status, job.result) == (S.COMPLETED, b'"almost done anyway"')


@pytest.mark.parametrize(("error", "retries"), [(ValueError("while stopping"), 1), (Snooze(5), 0)])
async def test_a_job_that_fails_while_it_is_cancelled_is_stopped_and_not_retried(
    backend: Backend, queue: Queue, error: Exception, retries: int
) -> None:
    begun = asyncio.Event()

    async def process(job: RunningJob) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise error

    async with working(queue, process):
        await queue.add("x", job_id="a", attempts=5)
        await begun.wait()
        await queue.cancel_jobs(job_ids=["a"])
        job = await comes_to(backend, "a")
    assert (job.status, job.retry_count, job.executions) == (S.STOPPED, retries, 1)


async def test_a_job_that_ignores_its_cancellation_is_left_behind_and_its_slot_is_free(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("longshore.runtime.job_tasks._FORCE_SLACK", 0.1)
    begun, over = asyncio.Event(), asyncio.Event()

    async def process(job: RunningJob) -> str:
        if job.type == "deaf":
            begun.set()
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue
        return "done"

    with caplog.at_level(logging.WARNING, "longshore.worker"):
        async with working(queue, process, cancel_grace=0.1):
            await queue.add("deaf", job_id="deaf")
            await begun.wait()
            await queue.add("x", job_id="next")
            await queue.cancel_jobs(job_ids=["deaf"])
            assert (await comes_to(backend, "deaf")).status is S.STOPPED
            assert (await comes_to(backend, "next")).status is S.COMPLETED
            over.set()  # its return value is ignored
            await queue.add("x", job_id="last")
            await comes_to(backend, "last", S.COMPLETED)
    assert await story(backend, "deaf") == ["job.added", "job.active", "job.cancelling", "job.stopped"]
    assert "ignored its cancellation" in caplog.text


async def test_a_job_cancelled_in_the_moment_of_its_claim_never_begins(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    original = backend.settle_and_dequeue

    async def cancelled_at_once(*args: object, **options: object) -> object:
        answer = await original(*args, **options)  # type: ignore[arg-type]  # passed on unchanged
        if answer[1] and gate.begun:
            # cancelled after its task was created and before the task has run
            ids = [job.id for job in answer[1]]
            tasks = worker_loop_of(worker).job_tasks
            asyncio.get_running_loop().call_soon(lambda: tasks.stop(tasks.attempts_of(ids), "cancelled"))
        return answer

    monkeypatch.setattr(backend, "settle_and_dequeue", cancelled_at_once)
    async with working(queue, gate, cancel_grace=60) as worker:
        await queue.add("x", job_id="warm up")
        await gate.has_begun()
        gate.open.set()
        await comes_to(backend, "warm up", S.COMPLETED)
        for n in range(5):
            await queue.add("x", job_id=f"job {n}")
            assert (await comes_to(backend, f"job {n}", within=5)).status is S.STOPPED
        await until(lambda: worker.running == 0, within=2)
    assert gate.begun == ["warm up"]


def cooperative(job: RunningJob, begun: threading.Event) -> str:
    begun.set()
    wait = threading.Event()
    while not job.cancelled:
        wait.wait(0.01)
    return "tidied up"


def deaf(job: RunningJob, begun: threading.Event) -> str:
    begun.set()
    wait = threading.Event()
    while True:
        wait.wait(0.01)  # Python code, which an exception from outside interrupts


@pytest.mark.parametrize(("work", "status"), [(cooperative, S.STOPPED), (deaf, S.STOPPED)], ids=["cooperative", "deaf"])
async def test_a_thread_sees_that_it_is_cancelled_and_is_interrupted_after_the_grace(
    backend: Backend, queue: Queue, work: Callable[[RunningJob, threading.Event], str], status: JobStatus
) -> None:
    begun = threading.Event()
    async with working(queue, lambda job: work(job, begun), cancel_grace=0.2) as worker:
        await queue.add("x", job_id="a")
        assert await asyncio.to_thread(begun.wait, 10)
        await queue.cancel_jobs(job_ids=["a"])
        job = await comes_to(backend, "a")
        await until(lambda: worker.running == 0)
    assert job.status is status


@pytest.mark.slow
async def test_a_thread_that_cannot_be_reached_is_left_to_itself(
    backend: Backend, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    begun, over = threading.Event(), threading.Event()

    def process(job: RunningJob) -> str:
        if job.type == "deaf":
            begun.set()
            over.wait(60)
        return "done"

    try:
        with caplog.at_level(logging.WARNING, "longshore.worker"):
            async with working(queue, process, cancel_grace=0.1):
                await queue.add("deaf", job_id="deaf")
                assert await asyncio.to_thread(begun.wait, 10)
                await queue.add("x", job_id="next")
                await queue.cancel_jobs(job_ids=["deaf"])
                assert (await comes_to(backend, "deaf")).status is S.STOPPED
                assert (await comes_to(backend, "next")).status is S.COMPLETED
                over.set()
    finally:
        over.set()
    assert "its thread cannot be stopped" in caplog.text
    assert await status_of(backend, "deaf") is S.STOPPED


@pytest.mark.slow
async def test_an_interruption_never_reaches_the_next_job(backend: Backend, queue: Queue) -> None:
    begun = threading.Event()

    def process(job: RunningJob) -> str:
        if job.type == "cancelled":
            begun.set()
            wait = threading.Event()
            while not job.cancelled:
                wait.wait(0.001)
            wait.wait(0.05)  # it ends at the same time as its grace
        return threading.current_thread().name

    async with working(queue, process, cancel_grace=0.05, concurrency=1):
        for n in range(6):
            begun.clear()
            await queue.add("cancelled", job_id=f"cancelled {n}")
            assert await asyncio.to_thread(begun.wait, 10)
            await queue.cancel_jobs(job_ids=[f"cancelled {n}"])
            await comes_to(backend, f"cancelled {n}")
            await queue.add("plain", job_id=f"plain {n}", attempts=1)
            assert (await comes_to(backend, f"plain {n}")).status is S.COMPLETED


async def test_cancelling_a_job_that_waits_is_none_of_the_worker_s(backend: Backend, queue: Queue) -> None:
    gate = Gate()
    async with working(queue, gate):
        await queue.add("x", job_id="running")
        await gate.has_begun()
        await queue.add("x", job_id="waiting")
        await queue.cancel_jobs(job_ids=["waiting"])
        assert await status_of(backend, "waiting") is S.UNSCHEDULED
        gate.open.set()
        await comes_to(backend, "running", S.COMPLETED)
    assert gate.begun == ["running"]
    assert [event.event for event in await history(backend, "waiting")] == ["job.added", "job.stopped"]
