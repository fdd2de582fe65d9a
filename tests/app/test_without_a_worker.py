"""Tests of applications: jobs run to the end in one call, or where they are enqueued."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from longshore import Harbor, JobStatus, current_job
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, JobFailed

# -- run until empty


async def test_jobs_enqueued_by_jobs_are_run_too(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    async def count_down(number: int) -> None:
        if number:
            await count_down.enqueue(number - 1)

    await count_down.enqueue(5)
    assert await stored_harbor.run_until_empty() == 6
    assert (await stored_harbor.backend.count_jobs())[JobStatus.COMPLETED] == 6
    assert await stored_harbor.run_until_empty() == 0


async def test_a_def_in_a_thread_may_enqueue_too(harbor: Harbor) -> None:
    @harbor.task
    def count_down(number: int) -> None:
        if number:
            count_down.enqueue_sync(number - 1)

    await count_down.enqueue(3)
    assert await harbor.run_until_empty() == 4


async def test_jobs_that_are_not_due_are_left() -> None:
    clock = HeldClock()
    async with Harbor("memory://", clock=clock) as harbor:

        @harbor.task(attempts=2, backoff=60)
        def flaky() -> str:
            if current_job().executions == 1:
                raise ConnectionError
            return "sent"

        delayed, failing = await flaky.options(delay=30).enqueue(), await flaky.enqueue()
        assert await harbor.run_until_empty() == 1
        assert await delayed.status() is JobStatus.INITIAL_PENDING
        assert await failing.status() is JobStatus.FAILED_RETRY
        clock.advance(60)
        assert await harbor.run_until_empty() == 2
        assert await failing.result() == "sent"


async def test_a_paused_queue_is_left_alone(harbor: Harbor) -> None:
    @harbor.task(queue="mail")
    def work() -> None: ...

    await work.enqueue()
    await harbor.queue("mail").pause()
    assert await harbor.run_until_empty() == 0


def test_it_runs_without_an_event_loop_including_async_tasks() -> None:
    with Harbor("memory://") as harbor:

        @harbor.task
        async def double(number: int) -> int:
            return 2 * number

        handle = double.enqueue_sync(4)
        assert harbor.run_until_empty_sync() == 1
        assert handle.result_sync() == 8


# -- eager


async def test_an_eager_task_has_its_result_at_once_and_no_store_is_touched(harbor: Harbor) -> None:
    @harbor.task
    def at(moment: datetime) -> datetime:
        return moment

    @harbor.task
    async def double(number: int) -> int:
        return 2 * number

    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with harbor.eager():
        handle = await at.options(delay=3600).enqueue(noon)
        assert await handle.result() == noon
        assert await handle.status() is JobStatus.COMPLETED
        assert (await handle.job()).data == {"moment": "2026-01-01T12:00:00Z"}
        assert await handle.cancel() is False
        handles = await double.enqueue_many([double.call(1), double.call(2)])
        assert [await one.result() for one in handles] == [2, 4]
    assert await harbor.backend.read_events() == []
    await double.enqueue(1)
    assert len(await harbor.backend.read_events()) == 1, "outside of the block it is stored"


async def test_an_eager_task_still_has_its_arguments_and_result_checked(harbor: Harbor) -> None:
    @harbor.task
    def shorten(numbers: tuple[int, ...]) -> Any:
        assert isinstance(numbers, tuple), "what went through JSON came back as annotated"
        return object()

    wrong: Any = "x"
    with harbor.eager():
        with pytest.raises(InvalidArgument, match=r"shorten\.numbers"):
            await shorten.enqueue(wrong)
        handle = await shorten.enqueue((1, 2))
        with pytest.raises(JobFailed, match=r"shorten\.return: is or contains an object of type object"):
            await handle.result()


@pytest.mark.parametrize(
    "option", [{"priority": "high"}, {"timeout": "soon"}, {"queue": "a\nb"}, {"expires_at": "never"}]
)
async def test_an_option_that_no_store_would_take_is_refused_eagerly_too(
    harbor: Harbor, option: dict[str, Any]
) -> None:
    @harbor.task
    async def work() -> None: ...

    with pytest.raises(InvalidArgument) as in_earnest:
        await work.options(**option).enqueue()
    with harbor.eager(), pytest.raises(InvalidArgument) as eagerly:
        await work.options(**option).enqueue()
    assert str(eagerly.value).partition(": ")[2] == str(in_earnest.value).partition(": ")[2]


async def test_an_eager_failure_is_kept_for_the_handle(harbor: Harbor) -> None:
    @harbor.task(attempts=5)
    async def fail() -> None:
        raise ValueError("no")

    with harbor.eager():
        handle = await fail.enqueue()
    assert await handle.status() is JobStatus.DEAD
    with pytest.raises(JobFailed, match="ValueError: no") as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, ValueError)


async def test_an_eager_job_is_a_current_job_with_notes(harbor: Harbor, caplog: pytest.LogCaptureFixture) -> None:
    @harbor.task
    async def work() -> Any:
        job = current_job()
        await job.update_progress(50)
        await job.log("half-way", "warn")
        await job.save_checkpoint({"page": 3})
        return [job.checkpoint, await job.dependency_results(), job.executions]

    @harbor.task
    def work_in_a_def() -> None:
        current_job().update_progress(70)

    with harbor.eager(), caplog.at_level(logging.INFO, "longshore.app"):
        handle, other = await work.enqueue(), await work_in_a_def.enqueue()
    assert await handle.result() == [{"page": 3}, {}, 1]
    assert ((await handle.job()).progress, (await other.job()).progress) == (50, 70)
    assert "half-way" in caplog.text


async def test_an_eager_task_may_enqueue_and_wait_as_it_could_with_a_worker(harbor: Harbor) -> None:
    @harbor.task
    async def inner(number: int) -> int:
        return 2 * number

    @harbor.task
    def in_a_thread(number: int) -> int:
        return inner.enqueue_sync(number).result_sync() + 1

    @harbor.task
    async def on_the_loop(number: int) -> int:
        return inner.enqueue_sync(number).result_sync() + 1

    with harbor.eager():
        assert await (await in_a_thread.enqueue(5)).result() == 11
        failing = await on_the_loop.enqueue(5)
    with pytest.raises(JobFailed, match="await the async method instead"):
        await failing.result()


def test_a_def_that_is_enqueued_eagerly_without_a_loop_runs_in_the_callers_own_thread() -> None:
    with Harbor("memory://") as harbor:

        @harbor.task
        def where() -> list[Any]:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return [threading.get_ident()]

        with harbor.eager():
            assert where.enqueue_sync().result_sync() == [threading.get_ident()]


def test_eager_works_without_an_event_loop() -> None:
    with Harbor("memory://") as harbor:

        @harbor.task
        async def inner(number: int) -> int:
            return 2 * number

        @harbor.task
        def outer(number: int) -> str:
            return f"doubled {inner.enqueue_sync(number).result_sync()}"

        with harbor.eager(), harbor.eager():
            assert inner.enqueue_sync(2).result_sync() == 4
            assert outer.enqueue_sync(2).result_sync() == "doubled 4"
        assert harbor.run_until_empty_sync() == 0
