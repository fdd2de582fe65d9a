"""Flow handles: progress, cancellation, retry of failed steps, and reruns as a copy."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from longshore import Harbor, Job, JobFilter, JobStatus, connect, current_job
from longshore.app.results import FlowHandle
from longshore.core.clock import HeldClock
from longshore.core.errors import Fatal, InvalidArgument, JobCancelled, JobFailed, JobNotFound

S = JobStatus


class Weather:
    """Whether the dependent steps succeed."""

    def __init__(self) -> None:
        self.good = False
        self.runs: list[str] = []


@pytest.fixture
def weather() -> Weather:
    return Weather()


def three_steps(harbor: Harbor, weather: Weather, policy: Any = "wait") -> Any:
    """Load, then sail if the weather is good, then unload."""

    @harbor.task
    def load(tons: int) -> int:
        weather.runs.append("load")
        return tons

    @harbor.task
    def sail(tons: int) -> int:
        weather.runs.append("sail")
        if not weather.good:
            raise Fatal("a storm")
        return tons - 1

    @harbor.task
    def unload(tons: int) -> str:
        weather.runs.append("unload")
        return f"{tons} tons"

    flow = harbor.flow("voyage")
    loaded = flow.add(load.call(7))
    sailed = flow.add(sail.call(loaded.result), on_failure=policy)
    flow.add(unload.call(sailed.result), on_failure=policy)
    return flow


async def statuses(handle: FlowHandle[Any]) -> list[JobStatus]:
    return [job.status for job in await handle.steps()]


# -- progress


async def test_a_flow_is_found_by_its_id_and_reports_its_progress(stored_harbor: Harbor, weather: Weather) -> None:
    # M-JOB-19 M-OPT-17
    weather.good = True
    flow = three_steps(stored_harbor, weather)
    await flow.enqueue()
    handle = stored_harbor.get_flow(flow.id)
    before = await handle.status()
    assert (before.name, before.state, before.total, before.ended) == ("voyage", "running", 3, 0)
    assert [(step.name, step.status) for step in before.steps] == [
        ("load", S.INITIAL_PENDING),
        ("sail", S.WAITING_CHILDREN),
        ("unload", S.WAITING_CHILDREN),
    ]
    waiting = asyncio.create_task(handle.result(timeout=30))
    worker = stored_harbor.worker()
    assert await waiting == "6 tons"
    await worker.close()
    after = await handle.status()
    assert (after.state, after.counts) == ("completed", {S.COMPLETED: 3})
    assert await (await handle.step("sail")).result() == 6


async def test_an_unknown_flow_raises_job_not_found(stored_harbor: Harbor) -> None:
    handle = stored_harbor.get_flow("unheard of")
    for asked in (handle.status, handle.steps, handle.result, handle.cancel, handle.retry, handle.rerun):
        with pytest.raises(JobNotFound, match="no flow has the id 'unheard of'"):
            await asked()


async def test_a_timed_out_result_reports_the_flows_progress(harbor: Harbor, weather: Weather) -> None:
    handle = await three_steps(harbor, weather).enqueue()
    with pytest.raises(TimeoutError, match=r"flow voyage .* is still running after 0 seconds; .*2 WAITING_CHILDREN"):
        await handle.result(timeout=0)


async def test_an_unknown_step_is_refused(harbor: Harbor, weather: Weather) -> None:
    handle = await three_steps(harbor, weather).enqueue()
    with pytest.raises(InvalidArgument, match="no step of the flow is named 'sink'; use one of load, sail, unload"):
        await handle.step("sink")
    other = harbor.flow()
    foreign = other.add(harbor.tasks["load"].call(1))
    with pytest.raises(InvalidArgument, match="is a step of another flow"):
        handle[foreign]


async def test_a_flow_is_drawn_with_its_statuses(harbor: Harbor, weather: Weather) -> None:
    handle = await three_steps(harbor, weather).enqueue()
    await harbor.run_until_empty()
    assert await handle.drawing() == (
        "flowchart TD\n"
        '    s0["load<br/>COMPLETED"]\n'
        '    s1["sail<br/>DEAD"]\n'
        "    s0 --> s1\n"
        '    s2["unload<br/>WAITING_CHILDREN"]\n'
        "    s1 --> s2\n"
    )


# -- a step that failed


async def test_a_flow_waits_at_a_failed_step_and_continues_after_its_retry(
    stored_harbor: Harbor, weather: Weather
) -> None:
    handle = await three_steps(stored_harbor, weather).enqueue()
    await stored_harbor.run_until_empty()
    assert await statuses(handle) == [S.COMPLETED, S.DEAD, S.WAITING_CHILDREN]
    assert (await handle.status()).state == "waiting"
    with pytest.raises(JobFailed, match=r"step sail \(job '.*\.1'\) failed permanently: .*a storm") as failed:
        await handle.result(timeout=30)
    assert failed.value.job_id == (await handle.step("sail")).id
    weather.good = True
    assert await handle.retry(actor="the captain") == [failed.value.job_id]
    await stored_harbor.run_until_empty()
    assert await handle.result() == "6 tons"
    assert weather.runs == ["load", "sail", "sail", "unload"]
    events = await stored_harbor.backend.read_events()
    assert [event.actor for event in events if event.event == "job.retried"] == ["the captain"]


async def test_a_waiting_caller_gets_a_failed_step_at_once(stored_harbor: Harbor, weather: Weather) -> None:
    handle = await three_steps(stored_harbor, weather).enqueue()
    waiting = asyncio.create_task(handle.result(timeout=None))
    worker = stored_harbor.worker()
    with pytest.raises(JobFailed, match="a storm"):
        await waiting
    await worker.close()


async def test_a_flow_stopped_by_its_policy_is_rerun_with_the_completed_results(
    stored_harbor: Harbor, weather: Weather
) -> None:
    handle = await three_steps(stored_harbor, weather, "stop").enqueue()
    await stored_harbor.run_until_empty()
    assert await statuses(handle) == [S.COMPLETED, S.DEAD, S.UNSCHEDULED]
    assert (await handle.status()).state == "failed"
    with pytest.raises(JobFailed, match="a storm"):
        await handle.result()
    weather.good = True
    with pytest.raises(InvalidArgument, match=r"step unload is UNSCHEDULED and cannot be retried.*rerun\(\) creates"):
        await handle.retry()
    assert await statuses(handle) == [S.COMPLETED, S.DEAD, S.UNSCHEDULED]
    copy = await handle.rerun()
    assert copy.id != handle.id
    assert await statuses(copy) == [S.INITIAL_PENDING, S.WAITING_CHILDREN]
    await stored_harbor.run_until_empty()
    assert await copy.result() == "6 tons"
    assert weather.runs == ["load", "sail", "sail", "unload"], "what completed is not run again"
    assert await statuses(handle) == [S.COMPLETED, S.DEAD, S.UNSCHEDULED], "the original is left as it is"


async def test_a_flow_can_be_rerun_whole_but_not_while_it_runs(stored_harbor: Harbor, weather: Weather) -> None:
    weather.good = True
    handle = await three_steps(stored_harbor, weather).enqueue()
    with pytest.raises(InvalidArgument, match="is running, and 3 of its steps are unfinished; cancel"):
        await handle.rerun()
    await stored_harbor.run_until_empty()
    with pytest.raises(InvalidArgument, match="has completed; rerun_whole"):
        await handle.rerun()
    copy = await handle.rerun_whole()
    assert await stored_harbor.run_until_empty() == 3
    assert await copy.result() == "6 tons"
    assert weather.runs == ["load", "sail", "unload"] * 2


async def test_the_copy_of_a_group_has_the_results_that_were_there_before(
    stored_harbor: Harbor, weather: Weather
) -> None:
    @stored_harbor.task
    def measure(number: int) -> int:
        if number % 2 and not weather.good:
            raise Fatal("fog")
        return number * 10

    handle = await stored_harbor.group(measure.call(number) for number in range(4)).enqueue()
    await stored_harbor.run_until_empty()
    with pytest.raises(JobFailed, match="fog"):
        await handle.result()
    again = await handle.rerun()
    await stored_harbor.run_until_empty()
    weather.good = True
    copy = await again.rerun()
    assert await stored_harbor.run_until_empty() == 2
    assert await copy.result() == [0, 10, 20, 30]


async def test_the_result_of_a_removed_step_is_gone(stored_harbor: Harbor, weather: Weather) -> None:
    weather.good = True
    alone = await three_steps(stored_harbor, weather).enqueue()
    task = stored_harbor.tasks["load"]
    group = await stored_harbor.group(task.call(number) for number in range(3)).enqueue()
    await stored_harbor.run_until_empty()
    await stored_harbor.backend.delete_jobs(job_ids=[f"{alone.id}.2", f"{group.id}.1"])
    for handle in (alone, group):
        with pytest.raises(JobNotFound, match="has no result, because a last step was removed"):
            await handle.result()
        with pytest.raises(InvalidArgument, match="has lost steps that were removed"):
            await handle.rerun_whole()


async def test_a_flow_that_completed_despite_optional_failures_is_not_rerun(
    stored_harbor: Harbor,
) -> None:
    @stored_harbor.task
    def fail() -> int:
        raise Fatal("fog")

    @stored_harbor.task
    def take(number: int | None) -> int | None:
        return number

    flow = stored_harbor.flow()
    flow.add(take.call(flow.add(fail.call()).result_or_none))
    handle = await flow.enqueue()
    await stored_harbor.run_until_empty()
    with pytest.raises(InvalidArgument, match="has completed, except for steps that may fail; rerun_whole"):
        await handle.rerun()
    copy = await handle.rerun_whole()
    await stored_harbor.run_until_empty()
    assert await copy.result() is None


async def test_two_callers_that_retry_a_flow_at_once_retry_each_step_once(
    stored_harbor: Harbor, monkeypatch: pytest.MonkeyPatch
) -> None:
    @stored_harbor.task
    def fail() -> int:
        raise Fatal("fog")

    handle = await stored_harbor.group(fail.call() for _ in range(4)).enqueue()
    await stored_harbor.run_until_empty()
    real = type(stored_harbor.backend).list_jobs

    async def list_jobs(backend: Any, wanted: JobFilter, **options: Any) -> Any:
        page = await real(backend, wanted, **options)
        if wanted.parent_id == handle.id:  # between the read and the retries
            monkeypatch.undo()
            await stored_harbor.queue().retry_job(f"{handle.id}.1")
            await stored_harbor.queue().remove_job(f"{handle.id}.2")
        return page

    monkeypatch.setattr(type(stored_harbor.backend), "list_jobs", list_jobs)
    assert await handle.retry() == [f"{handle.id}.0", f"{handle.id}.3"]
    assert S.DEAD not in await statuses(handle)


async def test_a_copied_flow_keeps_the_options_and_relative_expiry_of_its_steps(weather: Weather) -> None:
    clock = HeldClock()
    async with Harbor("memory://", clock=clock) as harbor:

        @harbor.task
        def work() -> None: ...

        options: Any = {"priority": 3, "tags": ["a"], "timeout": 5, "attempts": 4, "queue": "slow", "expires_at": 60}
        flow = harbor.flow("kept")
        first = flow.add(work.options(**options).call())
        flow.add(work.call(), after=first, on_failure="ignore", name="second")
        handle = await flow.enqueue()
        await handle.cancel()
        clock.advance(100)
        copy = await handle.rerun()
        step, second = await copy.steps()
        told = (step.priority, step.tags, step.timeout, step.max_attempts, step.queue)
        original = (await handle.steps())[0]
        assert told == (
            original.priority,
            original.tags,
            original.timeout,
            original.max_attempts,
            original.queue,
        )
        assert _time_to_begin(step) == _time_to_begin(original) == timedelta(seconds=60)
        assert (second.depends_on, second.on_dependency_failure) == ((step.id,), "ignore")
        assert (await copy.status()).name == "kept"


def _time_to_begin(step: Job) -> timedelta:
    assert isinstance(step.expires_at, datetime)
    assert step.created_at is not None
    return step.expires_at - step.created_at


# -- cancelled


async def test_a_whole_flow_is_cancelled_at_once(stored_harbor: Harbor) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    @stored_harbor.task
    async def work(number: int) -> int:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(current_job().id)
            raise
        return number

    flow = stored_harbor.flow()
    first = flow.add(work.call(1))
    second = flow.add(work.call(2), after=first, on_failure="ignore")
    flow.add(work.call(second.result))
    handle = await flow.enqueue()
    worker = stored_harbor.worker()
    waiting = asyncio.create_task(handle.result(timeout=30))
    await begun.wait()
    assert sorted(await handle.cancel()) == sorted(f"{flow.id}.{number}" for number in range(3))
    with pytest.raises(JobCancelled):
        await waiting
    assert await handle[first].status() in (S.CANCELLING, S.STOPPED)
    await worker.close()
    assert await statuses(handle) == [S.STOPPED, S.UNSCHEDULED, S.UNSCHEDULED]
    assert ended == [first.id]
    assert await handle.cancel() == []


async def test_a_cancelled_flow_can_be_rerun(stored_harbor: Harbor, weather: Weather) -> None:
    weather.good = True
    handle = await three_steps(stored_harbor, weather).enqueue()
    await handle.cancel()
    with pytest.raises(JobCancelled):
        await handle.result()
    assert await handle.retry() == []
    copy = await handle.rerun()
    await stored_harbor.run_until_empty()
    assert await copy.result() == "6 tons"


# -- faults


async def test_a_flow_continues_after_its_worker_was_killed_between_two_steps(store_url: str, weather: Weather) -> None:
    weather.good = True
    clock = HeldClock()
    async with Harbor(store_url, clock=clock) as harbor:
        handle = await three_steps(harbor, weather).enqueue()
        (held,) = await harbor.backend.dequeue_jobs("killed", lease=30)
        assert held.type == "load"
        assert await harbor.run_until_empty() == 0
        clock.advance(31)
        await harbor.backend.reclaim_expired_leases()
        clock.advance(3600)
        assert await harbor.run_until_empty() == 3
        assert await handle.result() == "6 tons"
        assert (await handle.steps())[0].crashes == 1


async def test_a_step_that_crashed_too_often_holds_up_the_flow_until_it_is_retried(
    store_url: str, weather: Weather
) -> None:
    weather.good = True
    clock = HeldClock()
    async with Harbor(store_url, clock=clock) as harbor:
        flow = three_steps(harbor, weather)
        handle = await flow.enqueue()
        for _ in range(4):
            await harbor.backend.dequeue_jobs("killed", lease=30)
            clock.advance(3600)
            await harbor.backend.reclaim_expired_leases()
        assert await statuses(handle) == [S.DEAD, S.WAITING_CHILDREN, S.WAITING_CHILDREN]
        with pytest.raises(JobFailed, match="crashed 4 times"):
            await handle.result()
        await handle.retry()
        await harbor.run_until_empty()
        assert await handle.result() == "6 tons"


async def test_an_expired_step_is_the_reason_of_the_failure(store_url: str, weather: Weather) -> None:
    clock = HeldClock()
    async with Harbor(store_url, clock=clock) as harbor:

        @harbor.task
        def work(number: int = 0) -> int:
            return number

        flow = harbor.flow()
        late = flow.add(work.options(expires_at=10).call())
        flow.add(work.call(late.result))
        handle = await flow.enqueue()
        clock.advance(11)
        await harbor.run_until_empty()
        await harbor.backend.reclaim_expired_leases()
        with pytest.raises(JobCancelled, match="expired") as called_off:
            await handle.result()
        assert called_off.value.job_id == late.id


async def test_results_that_cannot_be_read_now_put_the_step_off_uncharged(harbor: Harbor, weather: Weather) -> None:
    from longshore.backends.base import Page
    from longshore.core.errors import BackendUnavailable

    weather.good = True
    handle = await three_steps(harbor, weather).enqueue()
    real = harbor.backend.list_jobs
    away = True

    async def list_jobs(filter: JobFilter, **options: Any) -> Page:
        if away and filter.ids:
            raise BackendUnavailable("away for a moment")
        return await real(filter, **options)

    harbor.backend.list_jobs = list_jobs  # type: ignore[method-assign]  # the store is unavailable for a moment
    await harbor.run_until_empty()
    step = (await handle.steps())[1]
    assert (step.status, step.retry_count, step.crashes) == (S.UNKNOWN_RETRY, 0, 0)
    away = False
    await harbor.queue().promote_job(step.id)
    await harbor.run_until_empty()
    assert await handle.result() == "6 tons"


async def test_a_flow_is_followed_from_another_process(store_url: str, weather: Weather) -> None:
    weather.good = True
    async with Harbor(store_url) as harbor:
        handle = await three_steps(harbor, weather).enqueue()
        await harbor.run_until_empty()
        if store_url == "memory://":
            return
        async with Harbor(connect(store_url)) as elsewhere:
            there = elsewhere.get_flow(handle.id)
            assert await there.result() == "6 tons"
            assert (await there.status()).state == "completed"


async def test_a_flow_is_over_with_its_steps_whatever_else_has_it_as_its_parent(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def one() -> int:
        return 1

    handle = await stored_harbor.group([one.call()]).enqueue()
    await stored_harbor.run_until_empty()
    await stored_harbor.backend.enqueue_job(Job(id="by the way", type="x", parent_id=handle.id, delay=3600))
    assert await handle.result(timeout=5) == [1]
    assert [step.id for step in await handle.steps()] == [f"{handle.id}.0"]
    assert await handle.cancel() == await handle.retry() == []
