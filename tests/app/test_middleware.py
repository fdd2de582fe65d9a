"""Middleware: hooks around every enqueue and every run, in layers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from longshore import Harbor, Job, JobStatus, current_job
from longshore.app.middleware import Middleware, run_within
from longshore.core.errors import Fatal, InvalidArgument, JobFailed, Snooze
from longshore.runtime.running_job import NO_REPORTER, RunningJob


class Diary(Middleware):
    """Records its calls."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def before_enqueue(self, job: Job) -> None:
        self.seen.append(f"{self.name} before enqueue {job.type}")

    def after_enqueue(self, job: Job, error: BaseException | None) -> None:
        self.seen.append(f"{self.name} after enqueue {job.type} {error!r}")

    def before_run(self, job: RunningJob) -> None:
        self.seen.append(f"{self.name} before run {job.type}")

    def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:
        self.seen.append(f"{self.name} after run {job.type} {result!r} {error!r}")


class AsyncDiary(Middleware):
    """The same with async hooks."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.diary = Diary(name, seen)

    async def before_enqueue(self, job: Job) -> None:
        await asyncio.sleep(0)
        self.diary.before_enqueue(job)

    async def after_enqueue(self, job: Job, error: BaseException | None) -> None:
        await asyncio.sleep(0)
        self.diary.after_enqueue(job, error)

    async def before_run(self, job: RunningJob) -> None:
        await asyncio.sleep(0)
        self.diary.before_run(job)

    async def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:
        await asyncio.sleep(0)
        self.diary.after_run(job, result, error)


async def test_the_first_layer_is_the_outermost(harbor: Harbor) -> None:
    seen: list[str] = []
    harbor.add_middleware(Diary("a", seen), AsyncDiary("b", seen))

    @harbor.task
    def work() -> int:
        seen.append("work")
        return 5

    await work.enqueue()
    await harbor.run_until_empty()
    assert seen == [
        "a before enqueue work",
        "b before enqueue work",
        "b after enqueue work None",
        "a after enqueue work None",
        "a before run work",
        "b before run work",
        "work",
        "b after run work 5 None",
        "a after run work 5 None",
    ]


async def test_after_hooks_are_called_after_a_failure_with_its_error(harbor: Harbor) -> None:
    seen: list[str] = []
    harbor.add_middleware(Diary("a", seen))

    @harbor.task
    async def work() -> None:
        raise Fatal("no")

    await work.enqueue()
    await harbor.run_until_empty()
    assert seen[-1] == "a after run work None Fatal('no')"


async def test_only_layers_that_were_entered_are_left_and_a_refusal_reaches_the_caller(harbor: Harbor) -> None:
    seen: list[str] = []

    class Guard(Middleware):
        def before_enqueue(self, job: Job) -> None:
            raise PermissionError("not today")

    harbor.add_middleware(Diary("a", seen), Guard(), Diary("c", seen))

    @harbor.task
    def work() -> None: ...

    with pytest.raises(PermissionError):
        await work.enqueue()
    assert seen == ["a before enqueue work", "a after enqueue work PermissionError('not today')"]
    assert (await harbor.backend.count_jobs())[JobStatus.INITIAL_PENDING] == 0


async def test_a_hook_may_put_another_job_in_the_place_of_the_one_to_be_stored(harbor: Harbor) -> None:
    class Tenant(Middleware):
        def before_enqueue(self, job: Job) -> Job:
            return job.replace(tags=(*job.tags, "tenant-1"))

    harbor.add_middleware(Tenant())

    @harbor.task(tags=["mail"])
    def work() -> None: ...

    assert (await (await work.enqueue()).job()).tags == ("mail", "tenant-1")


async def test_a_hook_must_return_a_job(harbor: Harbor) -> None:
    class Confused(Middleware):
        def before_enqueue(self, job: Job) -> str:
            return job.id

    harbor.add_middleware(Confused())

    @harbor.task
    def work() -> None: ...

    with pytest.raises(InvalidArgument, match=r"Confused\.before_enqueue: must return a Job or None"):
        await work.enqueue()


async def test_a_hook_may_put_off_a_run_or_fail_it(harbor: Harbor) -> None:
    class Gate(Middleware):
        def before_run(self, job: RunningJob) -> None:
            if job.type == "later":
                raise Snooze(3600, "maintenance")
            raise ValueError("not this one")

    harbor.add_middleware(Gate())

    @harbor.task
    def later() -> None: ...

    @harbor.task
    def never() -> None: ...

    put_off, failed = await later.enqueue(), await never.enqueue()
    await harbor.run_until_empty()
    assert await put_off.status() is JobStatus.UNKNOWN_RETRY
    with pytest.raises(JobFailed, match="not this one"):
        await failed.result()


async def test_an_error_in_an_after_hook_does_not_affect_the_job(
    harbor: Harbor, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Middleware):
        def after_enqueue(self, job: Job, error: BaseException | None) -> None:
            raise RuntimeError("after enqueue")

        async def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:
            raise RuntimeError("after run")

    harbor.add_middleware(Clumsy())

    @harbor.task
    def work() -> int:
        return 1

    handle = await work.enqueue()
    await harbor.run_until_empty()
    assert await handle.result() == 1
    assert [record.getMessage() for record in caplog.records if record.name == "longshore.app"] == [
        "Clumsy.after_enqueue raised an error; the job is not affected",
        "Clumsy.after_run raised an error; the job is not affected",
    ]


def test_hooks_of_both_kinds_are_called_around_a_blocking_enqueue() -> None:
    seen: list[str] = []
    with Harbor("memory://") as harbor:
        harbor.add_middleware(Diary("a", seen), AsyncDiary("b", seen))

        @harbor.task
        def work() -> None: ...

        work.enqueue_sync()
        with harbor.eager():
            work.enqueue_sync()
    around = [
        "a before enqueue work",
        "b before enqueue work",
        "b after enqueue work None",
        "a after enqueue work None",
    ]
    run = ["a before run work", "b before run work", "b after run work None None", "a after run work None None"]
    assert seen == [*around, *around, *run]


def test_awaited_hooks_around_a_blocking_enqueue_run_in_the_callers_own_thread() -> None:
    threads: set[str] = set()

    class Slow(Middleware):
        async def before_enqueue(self, job: Job) -> None:
            await asyncio.sleep(0)
            threads.add(threading.current_thread().name)

    with Harbor("memory://") as harbor:
        harbor.add_middleware(Slow())

        @harbor.task
        def work() -> None: ...

        work.enqueue_sync()
    assert threads == {threading.current_thread().name}


async def test_a_cancellation_inside_an_after_hook_skips_none_of_the_others() -> None:
    seen: list[str] = []
    waits = asyncio.Event()

    class Hangs(Middleware):
        async def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> None:
            waits.set()
            await asyncio.Event().wait()

    async def run() -> str:
        return "done"

    job = RunningJob(Job(type="work"), NO_REPORTER)
    running = asyncio.create_task(run_within([Diary("a", seen), Diary("b", seen), Hangs()], job, run))
    await waits.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen[2:] == ["b after run work 'done' None", "a after run work 'done' None"]


async def test_only_middleware_can_be_added(harbor: Harbor) -> None:
    wrong: Any = Middleware
    with pytest.raises(InvalidArgument, match="pass an instance, not the class"):
        harbor.add_middleware(wrong)


async def test_a_hook_finds_the_job_that_a_task_calls_its_current_one(harbor: Harbor) -> None:
    met: list[RunningJob] = []

    class Meeting(Middleware):
        def before_run(self, job: RunningJob) -> None:
            met.append(job)

    harbor.add_middleware(Meeting())

    @harbor.task
    def in_a_thread() -> None:
        met.append(current_job())

    await in_a_thread.enqueue()
    await harbor.run_until_empty()
    assert met[0] is met[1]
