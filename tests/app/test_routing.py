"""One worker for all tasks: each runs on its executor, and a job of an unknown type is released with a reason."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest

from longshore import Harbor, JobFilter, JobStatus, Worker, current_job
from longshore.app.routing import Router
from longshore.core.errors import InvalidArgument, JobFailed
from longshore.runtime.retry_strategy import by_error
from tests.app import sample_harbor


@pytest.fixture
async def yard() -> AsyncIterator[Harbor]:
    """The harbor of `sample_harbor`, with an empty store."""
    yield sample_harbor.harbor
    assert await sample_harbor.harbor.run_until_empty() == 0


async def test_async_runs_on_the_loop_and_def_in_a_thread(yard: Harbor) -> None:
    threaded, looped = await sample_harbor.in_a_thread.enqueue(), await sample_harbor.on_the_loop.enqueue()
    await yard.run_until_empty()
    assert await looped.result() == threading.current_thread().name
    assert await threaded.result() == "longshore-processor"


@pytest.mark.slow
async def test_a_task_runs_in_a_process_of_its_own_with_its_types_notes_and_middleware(yard: Harbor) -> None:
    added, doubled = await sample_harbor.add_elsewhere.enqueue(2, b=3), await sample_harbor.double_elsewhere.enqueue(4)
    await yard.run_until_empty()
    result = await added.result()
    assert result["sum"] == 5
    assert result["pid"] != os.getpid()
    assert await doubled.result() == 8
    assert ((await added.job()).progress, (await doubled.job()).progress) == ("adding", "doubling")


@pytest.mark.slow
async def test_a_tasks_memory_limit_holds(yard: Harbor) -> None:
    handle = await sample_harbor.greedy.enqueue()
    await yard.run_until_empty()
    with pytest.raises(JobFailed, match="MemoryError"):
        await handle.result()


async def test_a_harbor_worker_does_not_claim_unknown_types(stored_harbor: Harbor) -> None:
    # S5
    ran = []

    @stored_harbor.task
    def known(number: int) -> None:
        ran.append(number)
        if number == 1:
            stored_harbor.task(name="late")(lambda: ran.append(2))

    queue = stored_harbor.queue()
    await queue.add("send_emial")
    await queue.add("late")
    await known.enqueue(1)
    await stored_harbor.run_until_empty()
    assert ran == [1, 2]  # tasks declared later count, too
    [left] = (await stored_harbor.backend.list_jobs(JobFilter(types=("send_emial",)))).items
    assert (left.status, left.executions) == (JobStatus.INITIAL_PENDING, 0)


async def test_a_harbor_without_tasks_claims_nothing(stored_harbor: Harbor) -> None:
    # S5
    added = await stored_harbor.queue().add("send_email")
    await stored_harbor.run_until_empty()
    assert (await stored_harbor.queue().get_job(added.id)).status is JobStatus.INITIAL_PENDING


async def test_a_worker_reports_the_types_it_claims(stored_harbor: Harbor) -> None:
    # S5
    @stored_harbor.task
    def resize() -> None: ...

    async def plain(_: object) -> None: ...

    async with stored_harbor.worker(id="of the harbor"), Worker(stored_harbor.queue(), plain, id="plain"):
        async with asyncio.timeout(20):
            while len(workers := await stored_harbor.backend.list_workers()) < 2:
                await stored_harbor.backend.wait_for_change(0.05)
    told = {worker.id: worker.types for worker in workers}
    assert told["plain"] is None
    assert "resize" in (told["of the harbor"] or ())


@pytest.mark.slow
async def test_a_worker_does_not_poll_in_a_loop_while_only_other_types_wait(stored_harbor: Harbor) -> None:
    # S5
    @stored_harbor.task
    def known() -> None: ...

    queue = stored_harbor.queue()
    await queue.add_bulk([("other",) for _ in range(50)])
    await queue.add("other", delay=0.05)
    looks = 0
    claim = stored_harbor.backend.settle_and_dequeue

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal looks
        looks += 1
        return await claim(*args, **kwargs)

    stored_harbor.backend.settle_and_dequeue = counted  # type: ignore[method-assign]  # counts, and calls the real one
    began = monotonic()
    async with stored_harbor.worker(poll_interval=0.1):
        while monotonic() - began < 1:
            await stored_harbor.backend.wait_for_change(0.1)
        assert 2 <= looks <= 60
        handle = await known.enqueue()
        await handle.result(timeout=20)


async def test_a_job_of_a_type_no_worker_knows_goes_back_for_a_while_with_near_names(
    stored_harbor: Harbor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "types", None)  # a worker that claims all types, as older versions do

    @stored_harbor.task
    def send_email() -> None: ...

    @stored_harbor.task
    def resize() -> None: ...

    queue = stored_harbor.queue()
    near = await queue.add("send_emial")
    far = await queue.add("zzz")
    await stored_harbor.run_until_empty()
    job = await queue.get_job(near.id)
    assert (job.status, job.retry_count, job.crashes) == (JobStatus.UNKNOWN_RETRY, 0, 0)
    run_at: Any = job.run_at  # a time, in a job that was stored
    assert round((run_at - job.updated_at).total_seconds()) == 60
    reasons = {
        event.job_id: event.detail["reason"]
        for event in await stored_harbor.backend.read_events()
        if event.event == "job.released"
    }
    assert reasons == {
        near.id: "no task of this worker is named 'send_emial', but send_email; the tasks it knows: resize, send_email",
        far.id: "no task of this worker is named 'zzz'; the tasks it knows: resize, send_email",
    }


async def test_a_type_no_worker_knows_is_warned_of_once(
    harbor: Harbor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "types", None)

    @harbor.task
    def send_email() -> None: ...

    await harbor.queue().add_bulk([("send_emial",), ("send_emial",), ("zzz",)])
    await harbor.run_until_empty()
    warned = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert len(warned) == 2
    assert any(
        "'send_emial', but send_email" in line and "releasing such jobs for 60 seconds" in line for line in warned
    )


async def test_a_harbor_worker_claims_from_the_given_queues(harbor: Harbor) -> None:
    @harbor.task(queue="mail")
    def mail() -> None: ...

    @harbor.task(queue="parcels")
    def parcel() -> None: ...

    mails, parcels = await mail.enqueue(), await parcel.enqueue()
    assert await harbor.run_until_empty(["mail"]) == 1
    assert await mails.status() is JobStatus.COMPLETED
    assert await parcels.status() is JobStatus.INITIAL_PENDING


async def test_a_retry_strategy_may_be_a_function_of_the_task(harbor: Harbor) -> None:
    runs: list[int] = []

    @harbor.task(attempts=0, retry_strategy=by_error({ConnectionError: 0.0, ValueError: False}))
    def work() -> None:
        runs.append(current_job().executions)
        raise ConnectionError if len(runs) < 3 else ValueError("enough")

    handle = await work.enqueue()
    await harbor.run_until_empty()
    assert runs == [1, 2, 3]
    with pytest.raises(JobFailed, match="ValueError: enough"):
        await handle.result()


async def test_a_payload_that_does_not_fit_the_function_any_more_is_a_failure_in_words(harbor: Harbor) -> None:
    @harbor.task
    def work(number: int) -> None: ...

    job = await harbor.queue().add("work", {"number": "many"})
    await harbor.run_until_empty()
    with pytest.raises(JobFailed, match=r"work\.number: should be a valid integer"):
        await work.handle(job.id).result()


async def test_a_task_that_a_process_would_not_find_is_refused_when_the_worker_is_made(harbor: Harbor) -> None:
    harbor.task(executor="process", name="plain")(sample_harbor.plain)
    with pytest.raises(InvalidArgument, match=r"processes, which look for tests\.app\.sample_harbor\.plain and find"):
        harbor.worker(autorun=False)


async def test_the_timeout_of_a_task_holds(harbor: Harbor) -> None:
    @harbor.task(timeout=0.01)
    async def work() -> None:
        await asyncio.Event().wait()

    handle = await work.enqueue()
    await harbor.run_until_empty()
    with pytest.raises(JobFailed, match=r"longer than its timeout of 0\.01 seconds"):
        await handle.result()


async def test_many_jobs_run_at_a_time_and_never_more_than_allowed(harbor: Harbor) -> None:
    at_once = 0
    most = 0

    @harbor.task
    async def work() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1

    await work.enqueue_many([work.call() for _ in range(40)])
    assert await harbor.run_until_empty(concurrency=4) == 40
    assert most == 4
