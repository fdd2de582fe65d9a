"""Jobs that end without waiting share a task; none of them affects the next."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from longshore import Job, connect
from longshore.runtime import job_tasks
from longshore.runtime.executors.event_loop import LoopExecutor
from longshore.runtime.job_tasks import JobTasks
from longshore.runtime.running_job import RunningJob

Step = Coroutine[Any, Any, None]


class Seen:
    """Coroutines by name, run as jobs, with their tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.words: list[str] = []
        self.coroutines: dict[str, Step] = {}
        self.job_tasks = JobTasks(LoopExecutor(self._run), connect("memory://"), {}, 1.0, lambda *_: None)

    async def _run(self, job: RunningJob) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks[job.id] = task
        await self.coroutines[job.id]

    def start(self, name: str, coroutine: Step) -> None:
        self.coroutines[name] = coroutine
        self.job_tasks.start(Job(id=name, type="x"))

    async def say(self, word: str) -> None:
        self.words.append(word)


@pytest.fixture
async def seen() -> Seen:
    return Seen()


async def _all_ended(seen: Seen) -> None:
    await _some_cycles_of_the_loop()
    assert seen.tasks.keys() == seen.coroutines.keys()
    await asyncio.wait(seen.tasks.values(), timeout=5)


async def _some_cycles_of_the_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_jobs_that_end_without_waiting_share_a_task_and_keep_their_order(seen: Seen) -> None:
    for name in "abc":
        seen.start(name, seen.say(name))
    await _all_ended(seen)
    assert seen.words == ["a", "b", "c"]
    assert len(set(seen.tasks.values())) == 1


async def test_a_job_that_waits_does_not_delay_others(seen: Seen) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()
        seen.words.append("waited")

    seen.start("a", seen.say("a"))
    seen.start("waits", wait())
    seen.start("b", seen.say("b"))
    await _some_cycles_of_the_loop()
    assert seen.words == ["a", "b"]
    assert seen.tasks["b"] is not seen.tasks["waits"]
    gate.set()
    await _all_ended(seen)
    assert seen.words == ["a", "b", "waited"]


async def test_each_has_a_context_of_its_own_before_and_after_it_waits(seen: Seen) -> None:
    mood = ContextVar("mood", default="none")

    async def set_and_wait(word: str, *, wait: bool) -> None:
        assert mood.get() == "none"
        mood.set(word)
        if wait:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        seen.words.append(mood.get())

    seen.start("a", set_and_wait("a", wait=False))
    seen.start("b", set_and_wait("b", wait=True))
    seen.start("c", set_and_wait("c", wait=True))
    await _all_ended(seen)
    assert sorted(seen.words) == ["a", "b", "c"]
    assert mood.get() == "none"


async def test_one_that_cancels_its_task_and_ends_leaves_the_next_alone(seen: Seen) -> None:
    async def cancel_oneself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def wait_a_little() -> None:
        await asyncio.sleep(0)
        seen.words.append("not cancelled")

    seen.start("a", cancel_oneself())
    seen.start("b", wait_a_little())
    await _all_ended(seen)
    assert seen.words == ["not cancelled"]


async def test_a_cancellation_reaches_the_one_that_waits_in_its_own_words(seen: Seen) -> None:
    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            seen.words.append(str(error))

    seen.start("a", wait_for_ever())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    seen.tasks["a"].cancel("enough")
    await _all_ended(seen)
    assert seen.words == ["enough"]


async def test_timeouts_and_groups_work_within_it(seen: Seen) -> None:
    async def in_a_group() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(seen.say("in a group"))

    seen.start("a", seen.say("before"))
    seen.start("b", in_a_group())
    await _all_ended(seen)
    assert seen.words == ["before", "in a group"]


async def test_other_work_on_the_loop_runs_while_many_jobs_end_at_once(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_tasks, "_LONGEST_STEP", 0)

    async def bring_another() -> None:
        asyncio.get_running_loop().call_soon(seen.words.append, "other")
        seen.words.append("a")

    seen.start("a", bring_another())
    seen.start("b", seen.say("b"))
    await _all_ended(seen)
    assert seen.words == ["a", "other", "b"]


async def test_an_attempt_that_was_cancelled_and_then_lost_its_lease_has_no_outcome() -> None:
    #
    begun, outcomes = asyncio.Event(), []

    async def process(_: RunningJob) -> None:
        begun.set()
        await asyncio.Event().wait()

    job_tasks = JobTasks(
        LoopExecutor(process), connect("memory://"), {}, 1.0, lambda _, outcome: outcomes.append(outcome)
    )
    for reasons in (["cancelled"], ["cancelled", "lost"]):
        begun.clear()
        job_tasks.start(Job(id="a", type="x"))
        await begun.wait()
        for reason in reasons:
            job_tasks.stop(job_tasks.attempts_of(["a"]), reason)  # type: ignore[arg-type]  # one of its values
        await _some_cycles_of_the_loop()
    assert [outcome and outcome.verb for outcome in outcomes] == ["stop", None]
