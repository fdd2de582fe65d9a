"""Retries: the number of attempts and the delays, by backoff, by a strategy or by the error."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from longshore import Job, JobStatus, Queue, exponential, fixed
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.runtime.retry_strategy import Strategy, by_error
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import history, story
from tests.runtime.working import all_come_to, comes_to, until, when, working

S = JobStatus


async def fail(job: RunningJob) -> None:
    """A processor that never succeeds."""
    raise ValueError(f"try {job.executions}")


async def waits_of(backend: Backend, queue: Queue, clock: HeldClock, tries: int, **options: Any) -> list[float]:
    """Return the seconds from each failure to the next attempt; the test moves the clock."""
    waits = []
    strategies = options.pop("strategies", {})
    process = options.pop("process", fail)
    async with working(queue, process, strategies=strategies, poll_interval=0.02):
        await queue.add("x", job_id="a", **options)
        for count in range(1, tries):

            async def failed(so_often: int = count) -> bool:
                job = await backend.get_job("a")
                return job.retry_count == so_often and job.status is S.FAILED_RETRY

            await until(failed)
            job = await backend.get_job("a")
            waits.append((when(job.run_at) - when(job.last_retry_at)).total_seconds())
            assert job.lease is None
            clock.advance(waits[-1])
        await comes_to(backend, "a")
    return waits


async def test_a_job_has_one_attempt_by_default(backend: Backend, queue: Queue) -> None:
    # M-OPT-03 M-RTY-02 M-TR-10 M-RTY-07 X-72 X-105
    async with working(queue, fail):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
    assert (job.status, job.executions, job.retry_count) == (S.DEAD, 1, 1)
    assert await story(backend, "a") == ["job.added", "job.active", "job.failed", "job.dead"]


async def test_attempts_are_tries_in_all_and_without_a_wait_the_next_is_at_once(backend: Backend, queue: Queue) -> None:
    # M-OPT-03 M-RTY-02 M-RTY-03 M-RTY-06 M-TR-09 M-TR-10 M-WRK-17 M-EV-05 M-JM-04 X-89 X-90
    async with working(queue, fail):
        await queue.add("x", job_id="a", attempts=3)
        job = await comes_to(backend, "a")
    assert (job.status, job.executions, job.retry_count) == (S.DEAD, 3, 3)
    assert job.error_message.startswith("ValueError: try 3")
    told = await history(backend, "a")
    assert [event.event for event in told] == [
        "job.added",
        *["job.active", "job.failed", "job.promoted"] * 2,
        *["job.active", "job.failed", "job.dead"],
    ]
    assert [event.detail["final"] for event in told if event.event == "job.failed"] == [False, False, True]


async def test_no_limit_means_no_limit(backend: Backend, queue: Queue) -> None:
    # M-OPT-03
    async def process(job: RunningJob) -> None:
        if job.executions < 25:
            raise ValueError("not yet")

    async with working(queue, process):
        await queue.add("x", job_id="a", attempts=0)
        await backend.enqueue_job(Job(id="plain", type="x"))
        for name in ("a", "plain"):
            job = await comes_to(backend, name)
            assert (job.status, job.executions, job.retry_count) == (S.COMPLETED, 25, 24)


async def test_a_fixed_backoff_waits_the_same_each_time(backend: Backend, queue: Queue, clock: HeldClock) -> None:
    # M-OPT-05 M-RTY-03 M-RTY-05 M-RTY-06 M-TR-08 M-GOAL-02
    assert await waits_of(backend, queue, clock, 4, attempts=4, backoff=fixed(7)) == [7, 7, 7]
    told = await history(backend, "a")
    assert [event.event for event in told][:5] == ["job.added", "job.active", "job.failed", "job.delayed", "job.active"]
    assert (await backend.get_job("a")).status is S.DEAD


async def test_an_exponential_backoff_doubles_up_to_its_cap(backend: Backend, queue: Queue, clock: HeldClock) -> None:
    # M-OPT-05 M-RTY-05
    waits = await waits_of(backend, queue, clock, 6, attempts=6, backoff=exponential(2, cap=20))
    assert waits == [2, 4, 8, 16, 20]


async def test_the_words_of_the_document_are_understood(backend: Backend, queue: Queue, clock: HeldClock) -> None:
    # M-OPT-05
    options = {"attempts": 3, "backoff": {"type": "exponential", "delay": 3}}
    assert await waits_of(backend, queue, clock, 3, **options) == [3, 6]


async def test_jitter_shortens_the_wait_by_chance(backend: Backend, queue: Queue, clock: HeldClock) -> None:
    # M-OPT-05
    waits = await waits_of(backend, queue, clock, 9, attempts=9, backoff=fixed(100, jitter=0.5))
    assert all(50 <= wait <= 100 for wait in waits)
    assert len(set(waits)) > 1


async def test_a_retry_is_run_when_its_time_has_come_without_looking_around(backend: Backend, queue: Queue) -> None:
    # M-RTY-06 M-TR-08 M-TR-05
    async def process(job: RunningJob) -> None:
        if job.executions == 1:
            raise ValueError("later")

    async with working(queue, process, poll_interval=600):
        await queue.add("x", job_id="a", attempts=2, backoff=0.2)
        job = await comes_to(backend, "a", S.COMPLETED)
    [first, second] = [event for event in await history(backend, "a") if event.event == "job.active"]
    assert (second.occurred_at - first.occurred_at).total_seconds() >= 0.2
    assert job.executions == 2


async def slowly_thought(failures: int, error: BaseException) -> float:
    await asyncio.sleep(0)
    return failures * 10


STRATEGIES: dict[str, Strategy] = {
    "by count": lambda failures, _: failures * 10,
    "async": slowly_thought,
    "as a duration": lambda failures, _: timedelta(seconds=failures * 10),  # type: ignore[dict-item,return-value]  # also accepted
}


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_strategy_by_name_decides_before_the_backoff(
    backend: Backend, queue: Queue, clock: HeldClock, name: str
) -> None:
    # M-OPT-04 M-RTY-03 X-78
    waits = await waits_of(
        backend, queue, clock, 3, strategies=STRATEGIES, attempts=3, retry_strategy=name, backoff=fixed(1)
    )
    assert waits == [10, 20]
    assert (await backend.get_job("a")).retry_count == 3  # a strategy cannot exceed the attempts


async def test_a_strategy_gets_the_number_of_failures_and_the_error(backend: Backend, queue: Queue) -> None:
    # M-OPT-04
    told: list[tuple[int, str]] = []

    def strategy(failures: int, error: BaseException) -> float:
        told.append((failures, f"{type(error).__name__}: {error}"))
        return 0

    async with working(queue, fail, strategies={"curious": strategy}):
        await queue.add("x", job_id="a", attempts=3, retry_strategy="curious")
        await comes_to(backend, "a", S.DEAD)
    assert told == [(n, f"ValueError: try {n}") for n in (1, 2, 3)]


@pytest.mark.parametrize("answer", [False, None])
async def test_a_strategy_may_refuse_a_retry(backend: Backend, queue: Queue, answer: Any) -> None:
    # M-OPT-04 M-RTY-04 X-78
    async def strategy(failures: int, error: BaseException) -> Any:
        return answer

    async with working(queue, fail, strategies={"no": strategy}):
        await queue.add("x", job_id="a", attempts=10, retry_strategy="no", backoff=5)
        job = await comes_to(backend, "a")
    assert (job.status, job.executions) == (S.DEAD, 1)
    assert when(job.finalized_at) >= when(job.started_at)


def raises(_: int, error: BaseException) -> float:
    raise SystemExit(1)


@pytest.mark.parametrize(
    "strategy",
    [raises, lambda *_: "soon", lambda *_: True, lambda *_: 10**400, lambda: 0, lambda *_: [1]],
    ids=["raises", "text", "true", "huge", "takes nothing", "list"],
)
async def test_a_strategy_that_gives_no_answer_leaves_it_to_the_backoff(
    backend: Backend, queue: Queue, clock: HeldClock, caplog: pytest.LogCaptureFixture, strategy: Any
) -> None:
    # M-RTY-03
    with caplog.at_level(logging.ERROR, "longshore.worker"):
        waits = await waits_of(
            backend, queue, clock, 2, strategies={"odd": strategy}, attempts=2, retry_strategy="odd", backoff=4
        )
    assert waits == [4]
    assert "'odd' raised an error on job a" in caplog.text


async def test_an_infinite_wait_means_no_retry(backend: Backend, queue: Queue) -> None:
    # M-RTY-04
    async with working(queue, fail, strategies={"never": lambda *_: float("inf")}):
        await queue.add("x", job_id="a", attempts=10, retry_strategy="never")
        assert (await comes_to(backend, "a")).status is S.DEAD


async def test_an_unknown_strategy_is_logged_and_the_backoff_decides(
    backend: Backend, queue: Queue, clock: HeldClock, caplog: pytest.LogCaptureFixture
) -> None:
    # M-OPT-04 M-RTY-03
    with caplog.at_level(logging.ERROR, "longshore.worker"):
        waits = await waits_of(backend, queue, clock, 2, attempts=2, retry_strategy="unheard of", backoff=fixed(4))
    assert waits == [4]
    assert "unheard of" in caplog.text


async def test_a_strategy_that_thinks_for_ever_is_not_waited_for(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-RTY-03
    monkeypatch.setattr("longshore.runtime.retry_strategy._STRATEGY_TIMEOUT", 0.05)

    async def ponder(failures: int, error: BaseException) -> float:
        await asyncio.Event().wait()
        return 0

    async with working(queue, fail, strategies={"ponder": ponder}):
        await queue.add("x", job_id="a", attempts=2, retry_strategy="ponder")
        job = await comes_to(backend, "a")
    assert (job.status, job.executions) == (S.DEAD, 2)


async def test_a_job_cancelled_while_its_strategy_runs_is_stopped(
    backend: Backend, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    # M-OPT-04
    thinking, go_on = asyncio.Event(), asyncio.Event()

    async def ponder(failures: int, error: BaseException) -> float:
        thinking.set()
        await go_on.wait()
        return 0

    async with working(queue, fail, strategies={"ponder": ponder}) as worker:
        await queue.add("x", job_id="a", attempts=10, retry_strategy="ponder")
        await thinking.wait()
        await queue.cancel_jobs(job_ids=["a"])
        go_on.set()
        job = await comes_to(backend, "a")
        await until(lambda: worker.running == 0)
    assert (job.status, job.retry_count) == (S.STOPPED, 1)
    assert "failed on job" not in caplog.text  # the strategy was not interrupted


class PortClosed(ConnectionError):
    pass


async def test_rules_by_error_type(backend: Backend, queue: Queue, clock: HeldClock) -> None:
    # M-FUT-06 M-OPT-04
    rules = by_error(
        {ConnectionError: exponential(5), ValueError: False, KeyError: 2, OSError: True}, otherwise=fixed(9)
    )
    errors: dict[str, BaseException] = {
        "port": PortClosed("at night"),
        "value": ValueError("never"),
        "key": KeyError("soon"),
        "system": OSError("at once"),
        "other": RuntimeError("who knows"),
    }

    async def process(job: RunningJob) -> None:
        raise errors[job.type]

    expected = {"port": 5.0, "key": 2.0, "other": 9.0}
    async with working(queue, process, strategies={"rules": rules}, concurrency=5):
        for kind in errors:
            await queue.add(kind, job_id=kind, attempts=2, retry_strategy="rules")
        await all_come_to(backend, S.DEAD, count=2)
        await all_come_to(backend, S.FAILED_RETRY, count=3)
    for kind, wait in expected.items():
        job = await backend.get_job(kind)
        assert (when(job.run_at) - when(job.last_retry_at)).total_seconds() == wait
    assert (await backend.get_job("value")).executions == 1
    assert (await backend.get_job("system")).executions == 2


async def test_an_error_without_a_rule_waits_for_the_backoff_of_the_job(
    backend: Backend, queue: Queue, clock: HeldClock
) -> None:
    async def process(job: RunningJob) -> None:
        raise RuntimeError("no rule")

    async with working(queue, process, strategies={"rules": by_error({ValueError: False})}):
        await queue.add("send", job_id="j", attempts=2, backoff=fixed(30), retry_strategy="rules")
        await all_come_to(backend, S.FAILED_RETRY, count=1)
    job = await backend.get_job("j")
    assert (when(job.run_at) - when(job.last_retry_at)).total_seconds() == 30


async def test_a_buried_job_that_is_retried_by_hand_starts_again_with_all_attempts(
    backend: Backend, queue: Queue
) -> None:
    # M-RTY-09 M-JM-06 X-94
    healed = False

    async def process(job: RunningJob) -> str:
        if not healed:
            raise ValueError("broken")
        return "mended"

    async with working(queue, process):
        await queue.add("x", job_id="a", attempts=2)
        await comes_to(backend, "a", S.DEAD)
        healed = True
        await queue.retry_job("a")
        job = await comes_to(backend, "a", S.COMPLETED)
    assert (job.retry_count, job.executions, job.error_message, job.result) == (0, 3, "", b'"mended"')


@pytest.mark.parametrize("remove", [True, 0])
async def test_jobs_are_removed_with_their_end_if_they_say_so(backend: Backend, queue: Queue, remove: Any) -> None:
    # M-OPT-08 M-OPT-09 M-TR-13 M-JM-03 M-JM-04 M-RTY-07 X-100
    async def process(job: RunningJob) -> None:
        if job.type == "bad":
            raise ValueError("no")

    async with working(queue, process):
        await queue.add("good", job_id="good", remove_on_complete=remove, remove_on_fail=remove)
        await queue.add("bad", job_id="bad", attempts=2, remove_on_complete=remove, remove_on_fail=remove)
        await queue.add("good", job_id="kept", remove_on_fail=remove)
        await queue.add("bad", job_id="dead", remove_on_complete=remove)
        await comes_to(backend, "kept", S.COMPLETED)
        await comes_to(backend, "dead", S.DEAD)
    assert await story(backend, "good") == ["job.added", "job.active", "job.completed", "job.removed"]
    assert (await story(backend, "bad"))[-3:] == ["job.failed", "job.dead", "job.removed"]
    assert (await story(backend, "bad")).count("job.active") == 2  # not before the final failure
    left = [job.id for job in await queue.get_jobs(["completed", "failed"])]
    assert sorted(left) == ["dead", "kept"]


async def test_so_many_finished_jobs_are_kept(backend: Backend, queue: Queue) -> None:
    # M-OPT-08 M-OPT-09 M-TR-13 X-100
    async def process(job: RunningJob) -> None:
        return None

    async with working(queue, process):
        for n in range(5):
            await queue.add("x", job_id=f"job {n}", remove_on_complete=2)
            await happened(backend, f"job {n}")
    assert sorted(job.id for job in await queue.get_jobs(["completed"])) == ["job 3", "job 4"]


async def happened(backend: Backend, job_id: str) -> None:
    async def met() -> bool:
        return "job.completed" in await story(backend, job_id)

    await until(met)
