"""Processors that are plain functions: each runs in a thread, up to the concurrency, and threads are reused."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from longshore import JobStatus, Queue
from longshore.backends.base import Backend
from longshore.runtime.executors.thread import ThreadExecutor
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import log_of
from tests.runtime.working import all_come_to, comes_to, most_at_once, until, working

S = JobStatus


def threads_of_processors() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "longshore-processor"}


async def test_as_many_threads_run_at_once_as_may(backend: Backend, queue: Queue) -> None:
    # M-WRK-09 M-WRK-02 M-WRK-20
    together = threading.Barrier(4)

    def process(job: RunningJob) -> str:
        together.wait(20)  # returns only when four run at once
        return threading.current_thread().name

    await queue.add_bulk([{"type": "x"} for _ in range(12)])
    async with working(queue, process, concurrency=4):
        await all_come_to(backend, S.COMPLETED, count=12)
    assert most_at_once(await log_of(backend)) == 4


@pytest.mark.slow
async def test_a_machine_without_threads_gives_jobs_back_uncharged(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "longshore-processor":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as sick:
        sick.setattr(threading.Thread, "start", refused)
        await queue.add("x", job_id="a", attempts=1)
        async with working(queue, lambda _: "done"):
            await comes_to(backend, "a", S.UNKNOWN_RETRY)
            sick.undo()
            await comes_to(backend, "a", S.COMPLETED)
    assert "can't start new thread" in str([event.detail for event in await log_of(backend)])


async def test_threads_are_used_again_and_end_with_the_worker(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    before = threads_of_processors()
    used: set[int] = set()

    def process(job: RunningJob) -> None:
        used.add(threading.get_ident())

    async with working(queue, process, concurrency=3) as worker:
        for n in range(30):
            await queue.add("x", job_id=f"job {n}")
        await all_come_to(backend, S.COMPLETED, count=30)
        assert len(used) <= 3
        await worker.close()
    await until(lambda: threads_of_processors() <= before)


@pytest.mark.slow
async def test_a_thread_that_was_left_behind_ends_when_its_call_does(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    before = threads_of_processors()
    begun, over = threading.Event(), threading.Event()

    def process(job: RunningJob) -> None:
        begun.set()
        over.wait(60)

    async with working(queue, process, cancel_grace=0.05):
        await queue.add("x", job_id="a")
        assert await asyncio.to_thread(begun.wait, 10)
        await queue.cancel_jobs(job_ids=["a"])
        await comes_to(backend, "a", S.STOPPED)
        assert threads_of_processors() - before
        over.set()
        await until(lambda: threads_of_processors() <= before)


@pytest.mark.slow
async def test_leases_are_kept_while_threads_work(backend: Backend, queue: Queue) -> None:
    # M-WRK-13
    def process(job: RunningJob) -> str:
        threading.Event().wait(1.8)
        return "done"

    async with working(queue, process, lock_duration=1.0, concurrency=2):
        await queue.add("x", job_id="a")
        await queue.add("x", job_id="b")
        for name in "ab":
            job = await comes_to(backend, name)
            assert (job.status, job.executions, job.crashes) == (S.COMPLETED, 1, 0)


setting: ContextVar[str] = ContextVar("setting", default="none")


async def test_a_thread_sees_the_context_of_its_worker_and_keeps_nothing_for_the_next_job(
    backend: Backend, queue: Queue
) -> None:
    # M-WRK-02
    seen: list[str] = []

    def process(job: RunningJob) -> None:
        seen.append(setting.get())
        setting.set(job.id)

    setting.set("from outside")
    async with working(queue, process):
        for name in "abc":
            await queue.add("x", job_id=name)
            await comes_to(backend, name, S.COMPLETED)
    assert seen == ["from outside"] * 3


async def test_an_executor_may_be_given_in_place_of_a_function(backend: Backend, queue: Queue) -> None:
    # M-WRK-01
    executor = ThreadExecutor(lambda job: f"ran {job.id}", cancel_grace=0.1)
    async with working(queue, executor):
        await queue.add("x", job_id="a")
        assert (await comes_to(backend, "a")).result == b'"ran a"'


@pytest.mark.parametrize("error", [TimeoutError("mine"), KeyError("mine"), StopIteration("mine")])
async def test_an_exception_in_a_thread_shows_where_it_was_raised(
    backend: Backend, queue: Queue, error: BaseException
) -> None:
    # M-RTY-01
    kinds: list[type[BaseException]] = []

    def strategy(_: int, raised: BaseException) -> bool:
        kinds.append(type(raised))
        return False

    def process(job: RunningJob) -> None:
        raise error

    async with working(queue, process, strategies={"noted": strategy}):
        await queue.add("x", job_id="a", retry_strategy="noted")
        job = await comes_to(backend, "a")
    assert "mine" in job.error_message
    assert "in process" in job.error_message
    assert kinds == [RuntimeError if isinstance(error, StopIteration) else type(error)]
