"""Whatever a processor raises or returns, its job gets readable error text, and the worker continues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Never

import pytest

from longshore import Job, JobStatus, Queue
from longshore.backends.base import Backend
from longshore.core.errors import BackendUnavailable, Fatal, Snooze
from longshore.core.validation import LARGEST_PAYLOAD, LONGEST_TEXT
from longshore.runtime.executors.base import Executor
from longshore.runtime.executors.event_loop import LoopExecutor
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import history, log_of, story
from tests.runtime.working import all_come_to, comes_to, happens, until, when, working

S = JobStatus


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Outlaw(BaseException):
    pass


def raising(make: Callable[[], BaseException]) -> Callable[[], Never]:
    def raises() -> Never:
        raise make()

    return raises


ENDINGS: dict[str, tuple[Callable[[], object], str]] = {
    "plain": (raising(lambda: ValueError("no such port")), "ValueError: no such port"),
    "without a message": (raising(KeyError), "KeyError"),
    "a base exception": (raising(lambda: Outlaw("beyond the law")), "Outlaw: beyond the law"),
    "system exit": (raising(lambda: SystemExit(3)), "SystemExit: 3"),
    "keyboard interrupt": (raising(KeyboardInterrupt), "KeyboardInterrupt"),
    "generator exit": (raising(GeneratorExit), "GeneratorExit"),
    "stop iteration": (raising(lambda: StopIteration(7)), "StopIteration"),
    "stop async iteration": (raising(StopAsyncIteration), "StopAsyncIteration"),
    "unspeakable": (raising(Unspeakable), "Unspeakable: (its message cannot be read: __str__ raised RuntimeError)"),
    "50 MB of text": (raising(lambda: ValueError("x" * 50_000_000)), "50000000 characters in all"),
    "a NUL and half a character": (raising(lambda: ValueError("\0 \ud800")), "ValueError: \ufffd \ufffd"),
    "a group": (
        raising(lambda: ExceptionGroup("two things", [ValueError("one"), KeyError("other")])),
        "ExceptionGroup: two things (2 sub-exceptions)",
    ),
    "cancelled by itself": (raising(asyncio.CancelledError), "CancelledError"),
    "timed out by itself": (raising(lambda: TimeoutError("of the processor's own")), "of the processor's own"),
    "a set": (lambda: {1, 2}, "result: is of the Python type set, which is not JSON"),
    "not a number": (lambda: {"mean": float("nan")}, "result.mean: is NaN"),
    "bytes": (lambda: b"raw", "result: is of the Python type bytes, which is not JSON"),
    "an object": (object, "result: is of the Python type object, which is not JSON"),
    "too large a result": (lambda: "x" * (LARGEST_PAYLOAD + 1), f"must be at most {LARGEST_PAYLOAD} bytes"),
}


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_any_ending_becomes_a_readable_failure(
    backend: Backend, queue: Queue, ending: str, in_thread: bool
) -> None:
    # M-WRK-17 M-RTY-01 M-RTY-07 M-TR-10 M-JM-04 M-JOB-09 M-EV-05
    end, expected = ENDINGS[ending]

    async def on_loop(job: RunningJob) -> object:
        return end() if job.type == "bad" else "fine"

    def thread(job: RunningJob) -> object:
        return end() if job.type == "bad" else "fine"

    async with working(queue, thread if in_thread else on_loop):
        await queue.add("bad", job_id="bad")
        job = await comes_to(backend, "bad")
        await queue.add("good", job_id="good")
        assert (await comes_to(backend, "good")).status is S.COMPLETED
    assert (job.status, job.retry_count, job.executions, job.crashes) == (S.DEAD, 1, 1, 0)
    assert expected in job.error_message
    assert len(job.error_message) <= LONGEST_TEXT + 100
    assert when(job.finalized_at) >= when(job.started_at)
    failed = [event for event in await history(backend, "bad") if event.event == "job.failed"]
    assert [event.detail["final"] for event in failed] == [True]
    assert failed[0].detail["error"][:100] == job.error_message[:100]
    assert "in raises" in job.error_message or "cannot be stored" in job.error_message or "itself" in job.error_message


async def test_the_text_shows_where_it_happened_and_nothing_of_ours(backend: Backend, queue: Queue) -> None:
    # M-RTY-01 M-JOB-09
    def load(cargo: str) -> Never:
        raise LookupError(f"no {cargo} aboard")

    async def process(job: RunningJob) -> None:
        load("tea")

    async with working(queue, process):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
    lines = job.error_message.splitlines()
    assert lines[0] == "LookupError: no tea aboard"
    assert "in process" in job.error_message
    assert "in load" in job.error_message
    assert "runs.py" not in job.error_message
    assert "executors" not in job.error_message


class Trap(dict[str, object]):
    def items(self) -> Any:
        raise RecursionError("mind the trap")


async def test_a_result_that_raises_while_it_is_serialised_is_a_failure(backend: Backend, queue: Queue) -> None:
    # M-RTY-01
    async def process(job: RunningJob) -> object:
        return Trap(a=1)

    async with working(queue, process) as worker:
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
        await until(lambda: worker.running == 0)
    assert job.status is S.DEAD
    assert "mind the trap" in job.error_message
    assert "its result cannot be stored" in job.error_message


async def test_a_failed_job_that_completes_later_does_not_look_failed(backend: Backend, queue: Queue) -> None:
    # X-76 M-EV-05 M-TR-09
    async def process(job: RunningJob) -> None:
        if job.executions == 1:
            raise ValueError("at first")

    async with working(queue, process):
        await queue.add("x", job_id="a", attempts=2)
        job = await comes_to(backend, "a")
    assert (job.status, job.error_message) == (S.COMPLETED, "")
    failed = [event for event in await history(backend, "a") if event.event == "job.failed"]
    assert ["at first" in str(event.detail) for event in failed] == [True]
    assert [event.detail["final"] for event in failed] == [False]


async def test_a_fatal_error_buries_the_job_whatever_attempts_it_has_left(backend: Backend, queue: Queue) -> None:
    # M-RTY-07 M-TR-10
    async def process(job: RunningJob) -> None:
        raise Fatal("this cargo does not exist")

    async with working(queue, process, strategies={"always": lambda *_: 0}):
        await queue.add("x", job_id="a", attempts=10, retry_strategy="always")
        await queue.add("x", job_id="b", attempts=0, backoff=5)
        for name in "ab":
            job = await comes_to(backend, name)
            assert (job.status, job.retry_count, job.executions) == (S.DEAD, 1, 1)
            assert job.error_message.startswith("Fatal: this cargo does not exist")


async def test_a_snoozed_job_runs_again_later_and_is_not_charged(backend: Backend, queue: Queue) -> None:
    # M-GOAL-02
    async def process(job: RunningJob) -> str:
        if job.executions < 3:
            raise Snooze(0.05, "the tide is out")
        return "sailed"

    async with working(queue, process, poll_interval=600):  # it starts the retry without a poll
        await queue.add("x", job_id="a", attempts=1, max_crashes=0)
        job = await comes_to(backend, "a")
    assert (job.status, job.executions, job.retry_count, job.crashes) == (S.COMPLETED, 3, 0, 0)
    released = [event for event in await history(backend, "a") if event.event == "job.released"]
    assert len(released) == 2
    assert "the tide is out" in str(released[0].detail)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "soon", None, 10**30])
async def test_a_snooze_that_makes_no_sense_is_a_failure(backend: Backend, queue: Queue, delay: Any) -> None:
    # M-RTY-01
    async def process(job: RunningJob) -> None:
        raise Snooze(delay)

    async with working(queue, process):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
    assert (job.status, job.retry_count) == (S.DEAD, 1)
    assert "delay" in job.error_message


class Clumsy(Executor):
    """Fails to take a job."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def take(self, record: Job, backend: Backend) -> RunningJob:
        if record.type == "heavy":
            raise RuntimeError("too heavy")
        return self._inner.take(record, backend)

    async def run(self, job: RunningJob) -> Any:
        return await self._inner.run(job)


async def test_an_executor_that_cannot_take_a_job_fails_that_job_alone(backend: Backend, queue: Queue) -> None:
    # M-RTY-01 M-WRK-17
    async def process(job: RunningJob) -> None:
        return None

    await queue.add_bulk([{"type": kind, "job_id": f"{kind} {n}"} for n in range(3) for kind in ("heavy", "light")])
    async with working(queue, Clumsy(LoopExecutor(process)), concurrency=6):
        await all_come_to(backend, S.COMPLETED, count=3)
        await all_come_to(backend, S.DEAD, count=3)
    assert "too heavy" in (await backend.get_job("heavy 0")).error_message


class Outage:
    """A store whose claims fail for a while."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch, errors: Iterator[Exception]) -> None:
        self.calls = 0
        self._errors = errors
        self._turn: Any = backend.settle_and_dequeue
        monkeypatch.setattr(backend, "settle_and_dequeue", self._failing)

    async def _failing(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        error = next(self._errors, None)
        if error is not None:
            raise error
        return await self._turn(*args, **options)


@pytest.mark.parametrize("error", [BackendUnavailable("the disk is full"), OSError("the disk is full")])
async def test_a_store_that_fails_for_a_while_is_reported_and_survived(
    backend: Backend,
    mail: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    # M-WRK-11 M-EV-13
    outage = Outage(backend, monkeypatch, iter([error, error]))
    record, refusals = backend.record_worker_event, iter([error, error])

    async def cannot_be_told(*args: Any, **options: Any) -> None:
        for refusal in refusals:  # while the store fails, it accepts no events either
            raise refusal
        await record(*args, **options)

    monkeypatch.setattr(backend, "record_worker_event", cannot_be_told)
    ran = 0

    async def process(job: RunningJob) -> None:
        nonlocal ran
        ran += 1

    with caplog.at_level(logging.ERROR, "longshore.worker"):
        async with working(mail, process) as worker:
            await mail.add("x", job_id="a")
            await comes_to(backend, "a", S.COMPLETED)
            event = await happens(backend, "worker.error")
    assert outage.calls >= 3
    assert ran == 1
    assert (event.queue, event.assignee_id, event.job_id) == ("mail", worker.id, None)
    assert "the disk is full" in event.detail["error"]
    assert "the disk is full" in caplog.text


async def test_outcomes_wait_for_an_unavailable_store_and_are_settled_once(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-11 M-WRK-16
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def process(job: RunningJob) -> str:
        begun.set()
        await go_on.wait()
        return "kept"

    async with working(queue, process):
        await queue.add("x", job_id="a")
        await begun.wait()
        outage = Outage(backend, monkeypatch, iter([BackendUnavailable("not now")] * 2))
        go_on.set()
        job = await comes_to(backend, "a")
    assert outage.calls >= 3
    assert (job.status, job.result, job.executions) == (S.COMPLETED, b'"kept"', 1)
    assert await story(backend, "a") == ["job.added", "job.active", "job.completed"]


async def test_an_answer_lost_after_the_commit_makes_no_second_outcome(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-15 M-WRK-16 M-SQL-02
    turn: Any = backend.settle_and_dequeue
    lost: list[Mapping[str, JobStatus]] = []

    async def committed_and_not_told(*args: Any, **options: Any) -> Any:
        answer = await turn(*args, **options)
        if answer[0].settled and not lost:
            lost.append(answer[0].settled)
            raise BackendUnavailable("the connection was cut after the commit")
        return answer

    monkeypatch.setattr(backend, "settle_and_dequeue", committed_and_not_told)

    async def process(job: RunningJob) -> str:
        return "once"

    async with working(queue, process) as worker:
        await queue.add("x", job_id="a")
        await comes_to(backend, "a", S.COMPLETED)
        await queue.add("x", job_id="b")
        await comes_to(backend, "b", S.COMPLETED)
        await until(lambda: worker.running == 0)
    assert lost == [{"a": S.COMPLETED}]
    assert await story(backend, "a") == ["job.added", "job.active", "job.completed"]


async def test_a_worker_keeps_no_store_busy_that_does_not_answer(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-11
    def errors() -> Iterator[Exception]:
        while True:
            yield BackendUnavailable("down")

    monkeypatch.setattr("longshore.runtime.worker._LAST_EXCHANGE", 0.1)
    outage = Outage(backend, monkeypatch, errors())

    async def process(job: RunningJob) -> None:
        return None

    async with working(queue, process):
        for n in range(50):
            await queue.add("x", job_id=f"job {n}")
        await happens(backend, "worker.error")
        assert outage.calls <= 5
    assert "job.active" not in [event.event for event in await log_of(backend)]
