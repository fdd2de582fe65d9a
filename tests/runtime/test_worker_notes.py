"""Notes of a running job: its progress, log lines and checkpoint."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from longshore import JobStatus, Queue
from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, LeaseLost, LongshoreError
from longshore.core.job import Job, JobEvent
from longshore.runtime.running_job import NO_REPORTER, RunningJob
from longshore.testing.conformance.scenarios import history
from tests.runtime.working import comes_to, until, working

S = JobStatus


def only(events: list[JobEvent], name: str) -> list[JobEvent]:
    return [event for event in events if event.event == name]


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_progress_logs_and_checkpoints_are_kept_and_announced(
    backend: Backend, queue: Queue, in_thread: bool
) -> None:
    # M-JM-01 M-JM-02 M-EV-06 M-EV-11 M-JOB-07 M-JOB-16 X-77
    async def on_loop(job: RunningJob) -> None:
        await job.update_progress(50)
        await job.update_progress({"step": "paint", "done": 0.75})
        await job.log("half way")
        await job.log("careful", "warn")
        await job.save_checkpoint({"row": 7})
        assert job.checkpoint == {"row": 7}

    def thread(job: RunningJob) -> None:
        job.update_progress(50)
        job.update_progress({"step": "paint", "done": 0.75})
        job.log("half way")
        job.log("careful", "warn")
        job.save_checkpoint({"row": 7})
        assert job.checkpoint == {"row": 7}

    heard: list[tuple[str, Any]] = []
    queue.on("job.progress", lambda event: heard.append((event.event, event.job_id)))
    queue.on("job.log_added", lambda event: heard.append((event.event, event.job_id)))
    async with working(queue, thread if in_thread else on_loop):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
        await until(lambda: len(heard) == 4)
    assert job.status is S.COMPLETED
    assert job.progress == {"step": "paint", "done": 0.75}
    assert job.checkpoint == {"row": 7}
    assert [(line.number, line.level, line.message) for line in await backend.read_logs("a")] == [
        (1, "info", "half way"),
        (2, "warn", "careful"),
    ]
    events = await history(backend, "a")
    assert [event.queue for event in events] == ["default"] * len(events)
    assert [event.detail["progress"] for event in only(events, "job.progress")] == [50, job.progress]
    added = [(event.detail["level"], event.detail["message"]) for event in only(events, "job.log_added")]
    assert added == [("info", "half way"), ("warn", "careful")]
    assert sorted(heard) == [("job.log_added", "a")] * 2 + [("job.progress", "a")] * 2


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_the_next_execution_continues_from_the_checkpoint(
    backend: Backend, queue: Queue, in_thread: bool
) -> None:
    # M-GOAL-01
    seen: list[Any] = []

    async def on_loop(job: RunningJob) -> str:
        seen.append(job.checkpoint)
        await job.save_checkpoint({"executions": job.executions})
        if job.executions < 3:
            raise ValueError("interrupted")
        return "done"

    def thread(job: RunningJob) -> str:
        seen.append(job.checkpoint)
        job.save_checkpoint({"executions": job.executions})
        if job.executions < 3:
            raise ValueError("interrupted")
        return "done"

    async with working(queue, thread if in_thread else on_loop):
        await queue.add("x", job_id="a", attempts=3)
        await comes_to(backend, "a", S.COMPLETED)
    assert seen == [None, {"executions": 1}, {"executions": 2}]


async def test_plain_calls_may_be_awaited_and_threads_need_not(backend: Backend, queue: Queue) -> None:
    # M-JM-01
    def process(job: RunningJob) -> str:
        async def inner() -> None:
            await written
            await results

        written, results = job.log("once"), job.dependency_results()
        asyncio.run(inner())
        return "fine"

    async with working(queue, process):
        await queue.add("x", job_id="a")
        assert (await comes_to(backend, "a")).status is S.COMPLETED
    assert len(await backend.read_logs("a")) == 1


async def test_a_blocking_note_inside_an_event_loop_is_refused_with_the_reason(backend: Backend, queue: Queue) -> None:
    # M-JM-02
    def process(job: RunningJob) -> None:
        async def inner() -> None:
            job.log("would stop the loop")

        asyncio.run(inner())

    async with working(queue, process):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
    assert job.status is S.DEAD
    assert "await the async method instead" in job.error_message


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_results_of_the_jobs_it_depended_on(backend: Backend, queue: Queue, in_thread: bool) -> None:
    # M-OPT-16
    async def on_loop(job: RunningJob) -> Any:
        return await job.dependency_results() if job.type == "sum" else job.data

    def thread(job: RunningJob) -> Any:
        return dict(job.dependency_results()) if job.type == "sum" else job.data

    async with working(queue, thread if in_thread else on_loop):
        await queue.add("part", 1, job_id="one")
        await queue.add("part", None, job_id="nothing")
        await queue.add("sum", job_id="sum", depends_on=["one", "nothing"])
        job = await comes_to(backend, "sum")
    assert job.result in (b'{"one":1,"nothing":null}', b'{"nothing":null,"one":1}')


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_a_job_that_was_taken_away_may_not_say_anything_more(
    backend: Backend, queue: Queue, in_thread: bool
) -> None:
    # M-WRK-15
    refused: list[type[BaseException]] = []
    taken = threading.Event()

    async def on_loop(job: RunningJob) -> None:
        if job.executions == 1:
            await backend.mark_worker_unresponsive(worker.id)
            with pytest.raises(LongshoreError) as refusal:
                await job.update_progress(99)
            refused.append(refusal.type)

    def thread(job: RunningJob) -> None:
        if job.executions == 1:
            asyncio.run_coroutine_threadsafe(backend.mark_worker_unresponsive(worker.id), loop).result(10)
            with pytest.raises(LongshoreError) as refusal:
                job.update_progress(99)
            refused.append(refusal.type)
        taken.set()

    loop = asyncio.get_running_loop()
    async with working(queue, thread if in_thread else on_loop) as worker:
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
    assert job.status is S.COMPLETED
    assert job.progress is None
    assert len(refused) == 1
    assert issubclass(refused[0], LongshoreError)


async def test_the_result_of_a_dependency_that_was_removed_is_missed_by_its_name(
    backend: Backend, queue: Queue
) -> None:
    async def process(job: RunningJob) -> Any:
        return await job.dependency_results() if job.type == "sum" else job.data

    await queue.add("part", 1, job_id="gone", remove_on_complete=True)
    await queue.add("sum", job_id="sum", depends_on=["gone"])
    async with working(queue, process):
        job = await comes_to(backend, "sum")
    assert job.status is S.DEAD
    assert job.error_message.startswith("JobNotFound: the dependency 'gone' was removed")
    assert "remove_on_complete" in job.error_message


def test_a_running_job_is_neither_copied_nor_pickled() -> None:
    job = RunningJob(Job(type="x"), NO_REPORTER)
    for take_away in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"use its record: job\.record"):
            take_away(job)
    assert pickle.loads(pickle.dumps(job.record)) == job.record
    with pytest.raises(AttributeError):
        _ = RunningJob.__new__(RunningJob).record


async def test_a_note_that_cannot_be_kept_is_refused_where_it_is_made(backend: Backend, queue: Queue) -> None:
    # M-JM-01 M-JM-02
    fields: list[str] = []

    async def process(job: RunningJob) -> None:
        notes: list[Callable[[], Any]] = [
            lambda: job.update_progress({1, 2}),
            lambda: job.log("x", "loud"),
            lambda: job.save_checkpoint(object()),
        ]
        for note in notes:
            try:
                await note()
            except InvalidArgument as error:
                fields.append(error.field)

    async with working(queue, process):
        await queue.add("x", job_id="a")
        assert (await comes_to(backend, "a")).status is S.COMPLETED
    assert fields == ["progress", "level", "checkpoint"]


async def test_the_record_s_fields_are_those_of_the_job_and_cannot_be_set(backend: Backend, queue: Queue) -> None:
    # M-WRK-02
    async def process(job: RunningJob) -> list[Any]:
        with pytest.raises(AttributeError, match="cannot set"):
            job.priority = 9  # type: ignore[misc]  # wrong on purpose
        with pytest.raises(AttributeError):
            job.no_such_field  # type: ignore[attr-defined]  # noqa: B018 - wrong on purpose
        return [job.id, job.queue, job.type, job.data, list(job.tags), job.priority, job.executions, job.epoch]

    async with working(queue, process):
        await queue.add("greet", {"name": "Ada"}, job_id="a", tags=["eu"], priority=3)
        job = await comes_to(backend, "a")
    assert job.result == b'["a","default","greet",{"name":"Ada"},["eu"],3,1,1]'


async def test_an_abandoned_attempt_cannot_write(backend: Backend, queue: Queue) -> None:
    # M-WRK-15 M-WRK-18
    refusals: list[BaseException] = []
    begun, over = asyncio.Event(), asyncio.Event()

    async def process(job: RunningJob) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await job.log("farewell")
            except LeaseLost as error:
                refusals.append(error)
            over.set()
            raise

    async with working(queue, process) as worker:
        await queue.add("x", job_id="a")
        await begun.wait()
        await worker.close(force=True)
        await asyncio.wait_for(over.wait(), 10)
    assert len(refusals) == 1
    assert await backend.read_logs("a") == []
