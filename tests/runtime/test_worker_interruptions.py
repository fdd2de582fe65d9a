"""A job that should end, and the outcome of each way to return: on the loop, in a thread, in a process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from longshore.app.harbor import Harbor
from longshore.app.middleware import Middleware
from longshore.backends.base import Backend
from longshore.errors import JobInterrupted
from longshore.runtime.executors.process import ProcessExecutor
from longshore.runtime.queue import Queue
from longshore.runtime.running_job import RunningJob, current_job
from longshore.runtime.worker import Processor, Worker
from tests.runtime.working import S, comes_to, until, worker_loop_of, working

NAP = threading.Event()
GRACE = 20.0


def pages(job: RunningJob) -> Any:
    """Work page by page until the job should end; its data says how it ends."""
    Path(job.data["begun"]).touch()
    how = job.data["how"]
    while how != "blind":
        if how == "raises":
            try:
                job.raise_if_cancelled()
            except Exception:  # like code around a single page
                return "swallowed"
        elif job.cancelled:
            break
        NAP.wait(0.005)
    while how == "blind" and not Path(job.data["begun"] + ".over").exists():
        NAP.wait(0.005)
    if how == "completes":
        job.complete("all of it")
    return "some of it"


async def pages_on_loop(job: RunningJob) -> Any:
    """Do the same as an `async def`, which also gets a CancelledError."""
    how = job.data["how"]
    with suppress(asyncio.CancelledError):
        await asyncio.to_thread(Path(job.data["begun"]).touch)  # the cancellation may arrive before this returns
        await asyncio.Event().wait()
    if how == "raises":
        try:
            job.raise_if_cancelled()
        except Exception:
            return "swallowed"
    if how != "blind":
        assert job.cancelled
    if how == "completes":
        return job.complete("all of it")
    return "some of it"


@pytest.fixture(params=["loop", "thread", pytest.param("process", marks=pytest.mark.slow)])
async def process(request: pytest.FixtureRequest) -> AsyncIterator[Processor]:
    """Each executor."""
    if request.param == "process":
        executor = ProcessExecutor(pages, cancel_grace=GRACE)
        yield executor
        await executor.close()
    else:
        yield pages_on_loop if request.param == "loop" else pages


async def begun(queue: Queue, tmp_path: Path, how: str, **options: Any) -> Path:
    """Return the file that shows that job `a` has started, once it exists."""
    there = tmp_path / "begun"
    await queue.add("x", {"how": how, "begun": str(there)}, job_id="a", **options)
    await until(there.exists)
    return there


@pytest.mark.parametrize(
    ("how", "status", "result"),
    [
        ("returns", S.STOPPED, None),
        ("raises", S.STOPPED, None),
        ("completes", S.COMPLETED, b'"all of it"'),
        ("blind", S.COMPLETED, b'"some of it"'),
    ],
)
async def test_a_job_that_read_cancelled_as_true_and_returns_is_stopped_unless_it_calls_complete(
    backend: Backend, queue: Queue, process: Processor, tmp_path: Path, how: str, status: S, result: bytes | None
) -> None:
    # S1, B-COMP-03
    async with working(queue, process, cancel_grace=GRACE) as worker:
        there = await begun(queue, tmp_path, how, attempts=3)
        await queue.cancel_jobs(job_ids=["a"])
        await until(lambda: _called_off(worker))
        there.with_name("begun.over").touch()
        job = await comes_to(backend, "a")
    assert (job.status, job.result, job.retry_count, job.crashes) == (status, result, 0, 0)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("returns", S.UNKNOWN_RETRY),
        ("raises", S.UNKNOWN_RETRY),
        ("completes", S.COMPLETED),
        ("blind", S.COMPLETED),
    ],
)
async def test_at_shutdown_a_job_that_read_cancelled_and_returns_is_released_uncounted(
    backend: Backend, queue: Queue, process: Processor, tmp_path: Path, how: str, status: S
) -> None:
    # S1, M-WRK-18
    async with working(queue, process, cancel_grace=GRACE) as worker:
        there = await begun(queue, tmp_path, how, attempts=1)
        closing = asyncio.create_task(worker.close(grace=0))
        await until(lambda: _called_off(worker))
        there.with_name("begun.over").touch()
        await closing
    job = await backend.get_job("a")
    assert (job.status, job.retry_count, job.crashes) == (status, 0, 0)


@pytest.mark.parametrize("how", ["returns", "raises", "completes"])
async def test_a_job_that_sees_its_timeout_and_returns_fails_as_a_timeout(
    backend: Backend, queue: Queue, process: Processor, tmp_path: Path, how: str
) -> None:
    # S1, M-OPT-18
    async with working(queue, process, cancel_grace=GRACE):
        await begun(queue, tmp_path, how, timeout=0.3)
        job = await comes_to(backend, "a")
    assert (job.status, job.result, job.retry_count) == (S.DEAD, None, 1)
    assert "TimeoutError: the job took longer than its timeout" in job.error_message


@pytest.mark.parametrize("how", ["returns", "raises", "completes"])
async def test_a_job_that_lost_its_lease_writes_no_outcome(
    backend: Backend, queue: Queue, process: Processor, tmp_path: Path, how: str
) -> None:
    # S1, X-61
    async with working(queue, process, lock_duration=0.6, sweep=False, cancel_grace=GRACE) as worker:
        await begun(queue, tmp_path, how)
        await queue.pause()
        await backend.mark_worker_unresponsive(worker.id)
        after = await backend.get_job("a")
        await until(lambda: worker.running == 0)
    job = await backend.get_job("a")
    assert (job.status, job.result, job.crashes, job.finalized_at) == (after.status, None, 1, None)


def _called_off(worker: Worker) -> bool:
    return not worker.running or any(
        attempt.stop_reason for attempt in worker_loop_of(worker).job_tasks.attempts_of(["a"])
    )


async def test_a_job_that_read_cancelled_as_false_or_only_after_it_had_returned_is_completed(
    backend: Backend, queue: Queue
) -> None:
    # S1
    harbor = Harbor(backend)
    begun, over = threading.Event(), threading.Event()

    class Looks(Middleware):
        def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:
            assert job.cancelled
            assert (result, error) == ("done", None)

    harbor.add_middleware(Looks())

    @harbor.task
    def work() -> str:
        assert not current_job().cancelled
        begun.set()
        over.wait(20)
        return "done"

    handle = await work.enqueue()
    worker = harbor.worker(cancel_grace=GRACE, poll_interval=0.05)
    assert await asyncio.to_thread(begun.wait, 10)
    await handle.cancel()
    await until(
        lambda: any(attempt.stop_reason for attempt in worker_loop_of(worker).job_tasks.attempts_of([handle.id]))
    )
    over.set()
    assert await handle.result(timeout=20) == "done"
    await worker.close()


async def test_middleware_gets_an_interruption_as_a_cancellation(backend: Backend, queue: Queue) -> None:
    # S1
    harbor = Harbor(backend)
    seen: list[BaseException | None] = []
    begun = threading.Event()

    class Looks(Middleware):
        def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:
            seen.append(error)

    harbor.add_middleware(Looks())

    @harbor.task
    def work() -> None:
        begun.set()
        while True:
            with suppress(Exception):  # it does not hide the interruption
                current_job().raise_if_cancelled()
                NAP.wait(0.005)

    handle = await work.enqueue()
    worker = harbor.worker(cancel_grace=GRACE, poll_interval=0.05)
    assert await asyncio.to_thread(begun.wait, 10)
    await handle.cancel()
    await comes_to(backend, handle.id, S.STOPPED)
    await worker.close()
    [error] = seen
    assert isinstance(error, JobInterrupted)
    assert isinstance(error, asyncio.CancelledError)


async def test_the_result_of_complete_has_the_tasks_type_and_is_checked_at_the_call() -> None:
    # S1
    async with Harbor("memory://") as harbor:

        @harbor.task
        def by_return() -> set[int]:
            return current_job().complete({1})

        @harbor.task
        async def without_return() -> set[int]:
            current_job().complete({2})
            return {3}

        @harbor.task
        def unfit() -> Any:
            return current_job().complete(object())

        assert await _result(harbor, by_return) == {1}
        assert await _result(harbor, without_return) == {2}
        with harbor.eager():
            assert await (await without_return.enqueue()).result() == {2}
        job = await (await unfit.enqueue()).job()
        await harbor.run_until_empty()
        assert "current_job().complete(object())" in (await harbor.queue().get_job(job.id)).error_message


async def _result(harbor: Harbor, task: Any) -> Any:
    handle = await task.enqueue()
    await harbor.run_until_empty()
    return await handle.result(timeout=20)


async def test_a_job_that_called_complete_is_completed_even_if_it_is_cancelled_afterwards(
    backend: Backend, queue: Queue
) -> None:
    # S1
    said = asyncio.Event()

    async def tidies(job: RunningJob) -> str:
        job.complete("all of it")
        said.set()
        await asyncio.Event().wait()
        return "never"

    async with working(queue, tidies):
        await queue.add("x", job_id="a")
        await said.wait()
        await queue.cancel_jobs(job_ids=["a"])
        job = await comes_to(backend, "a")
    assert (job.status, job.result) == (S.COMPLETED, b'"all of it"')


async def test_a_job_that_raises_after_complete_fails(backend: Backend, queue: Queue) -> None:
    # S1
    async def fails(job: RunningJob) -> None:
        job.complete("all of it")
        raise ValueError("after all")

    async with working(queue, fails):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
    assert (job.status, job.result) == (S.DEAD, None)
    assert "after all" in job.error_message
