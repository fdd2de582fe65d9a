"""Closing a worker: it finishes, releases or drops its jobs, and writes nothing afterwards."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest

from longshore import Job, JobStatus, Outcome, Queue
from longshore.backends.base import Backend, SettleReport
from longshore.core.errors import BackendUnavailable, Fatal, InvalidArgument, LeaseLost
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker import Worker
from longshore.testing.conformance.scenarios import log_of, nothing_changes, status_of, story
from tests.runtime.working import Gate, comes_to, happens, until, worker_loop_of, working

S = JobStatus


async def test_a_closing_worker_settles_running_jobs_and_starts_no_more(backend: Backend, queue: Queue) -> None:
    # M-WRK-18 X-80
    gate = Gate()
    async with working(queue, gate, concurrency=2) as worker:
        await queue.add("x", job_id="a")
        await queue.add("x", job_id="b")
        await gate.has_begun(2)
        closing = asyncio.create_task(worker.close())
        await queue.add("x", job_id="late")
        await asyncio.sleep(0)
        assert not closing.done()
        gate.open.set()
        await asyncio.wait_for(closing, 10)
        assert worker.running == 0
        assert [(await backend.get_job(job_id)).result for job_id in "ab"] == [b'"a"', b'"b"']
        assert (await backend.get_job("late")).status is S.INITIAL_PENDING


async def test_leases_are_renewed_while_a_worker_closes(backend: Backend, queue: Queue) -> None:
    # M-WRK-18 M-WRK-13
    gate = Gate()
    async with working(queue, gate, lock_duration=0.5) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        before = (await backend.get_job("a")).lease
        closing = asyncio.create_task(worker.close())

        async def renewed_twice() -> bool:
            lease = (await backend.get_job("a")).lease
            assert lease is not None
            assert before is not None
            assert lease.expires_at is not None
            assert before.expires_at is not None
            return (lease.expires_at - before.expires_at).total_seconds() > 0.5

        await until(renewed_twice)
        gate.open.set()
        await closing
    job = await backend.get_job("a")
    assert (job.status, job.executions) == (S.COMPLETED, 1)


async def test_closing_it_again_and_again_is_closing_it_once(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    gate = Gate()
    async with working(queue, gate) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        closings = [asyncio.create_task(worker.close()) for _ in range(3)]
        gate.open.set()
        await asyncio.wait_for(asyncio.gather(*closings), 10)
        await worker.close()
        await worker.close(force=True)
        await worker.close(grace=5)
    assert await story(backend, "a") == ["job.added", "job.active", "job.completed"]


async def test_a_worker_may_be_closed_from_another_thread_s_loop(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    gate = Gate()
    async with working(queue, gate) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        closing = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(worker.close())))
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.wait_for(closing, 10)
        assert worker.running == 0
        await asyncio.to_thread(lambda: asyncio.run(worker.close()))
    assert await status_of(backend, "a") is S.COMPLETED


class ClosedInTheMidst:
    """Close the worker after the store has claimed for it."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker: Worker | None = None
        self.closing: asyncio.Task[None] | None = None
        self._turn = backend.settle_and_dequeue
        monkeypatch.setattr(backend, "settle_and_dequeue", self._watched)

    async def _watched(
        self, outcomes: Sequence[Outcome], assignee_id: str, tags: Sequence[str] = (), limit: int = 1, **more: Any
    ) -> tuple[SettleReport, list[Job]]:
        report, jobs = await self._turn(outcomes, assignee_id, tags, limit, **more)
        if jobs and self.closing is None and self.worker is not None:
            self.closing = asyncio.create_task(self.worker.close())
            await asyncio.sleep(0)
        return report, jobs


async def test_jobs_claimed_while_it_was_closed_go_back_uncharged(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-18 X-80
    midst = ClosedInTheMidst(backend, monkeypatch)
    gate = Gate()
    gate.open.set()
    async with working(queue, gate, concurrency=4) as worker:
        midst.worker = worker
        await queue.add_bulk([{"type": "x", "job_id": name} for name in "ab"])
        await until(lambda: midst.closing is not None)
        assert midst.closing is not None
        await asyncio.wait_for(midst.closing, 10)
    assert gate.begun == []
    assert "job.released" in [event.event for event in await log_of(backend)]
    for name in "ab":
        job = await backend.get_job(name)
        assert (job.crashes, job.retry_count) == (0, 0)
        assert job.status in (S.UNKNOWN_RETRY, S.INITIAL_PENDING)
    async with working(queue, gate):
        await comes_to(backend, "a", S.COMPLETED)
        await comes_to(backend, "b", S.COMPLETED)


async def test_after_its_grace_running_jobs_are_released_without_a_counted_attempt(
    backend: Backend, queue: Queue
) -> None:
    # M-WRK-18 X-80
    gate = Gate()
    async with working(queue, gate, concurrency=3) as worker:
        await queue.add_bulk([{"type": "x", "job_id": name} for name in "abc"])
        await gate.has_begun(3)
        await asyncio.wait_for(worker.close(grace=0.05), 10)
        assert sorted(gate.cancelled) == ["a", "b", "c"]
    for name in "abc":
        job = await backend.get_job(name)
        assert (job.status, job.executions, job.crashes, job.retry_count) == (S.UNKNOWN_RETRY, 1, 0, 0)
        assert await story(backend, name) == ["job.added", "job.active", "job.released"]
    gate.open.set()
    async with working(queue, gate, concurrency=3):
        for name in "abc":
            assert (await comes_to(backend, name)).status is S.COMPLETED


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("ends", S.COMPLETED),
        ("returns", S.UNKNOWN_RETRY),
        ("fails", S.UNKNOWN_RETRY),
        ("fatal", S.UNKNOWN_RETRY),
    ],
)
@pytest.mark.parametrize("threads", [False, True])
async def test_of_jobs_that_were_asked_to_stop_only_those_with_a_result_are_completed(
    backend: Backend, queue: Queue, kind: str, status: JobStatus, threads: bool
) -> None:
    # M-WRK-18 X-80
    begun = threading.Event()

    def end() -> str | None:
        if kind == "fails":
            raise ValueError("in the midst of it") from None
        if kind == "fatal":
            raise Fatal("so it seems") from None
        return "just in time" if kind == "ends" else None

    async def on_loop(job: RunningJob) -> str | None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return end()

    def in_thread(job: RunningJob) -> str | None:
        begun.set()
        while not job.cancelled:
            threading.Event().wait(0.005)
        value = end()
        return value if value is None else job.complete(value)

    async with working(queue, in_thread if threads else on_loop, cancel_grace=20) as worker:
        await queue.add("x", job_id="a", attempts=1)
        assert await asyncio.to_thread(begun.wait, 10)
        await worker.close(grace=0)
    job = await backend.get_job("a")
    assert (job.status, job.crashes, job.retry_count) == (status, 0, 0)


async def test_a_job_that_did_not_notice_that_it_should_stop_has_done_its_work(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    begun, over = threading.Event(), threading.Event()

    def process(job: RunningJob) -> None:
        assert not job.cancelled
        begun.set()
        over.wait(20)

    async with working(queue, process, cancel_grace=20) as worker:
        await queue.add("x", job_id="a")
        assert await asyncio.to_thread(begun.wait, 10)
        closing = asyncio.create_task(worker.close(grace=0))
        await until(lambda: any(attempt.stop_reason for attempt in worker_loop_of(worker).job_tasks.attempts_of(["a"])))
        over.set()
        await closing
    assert await status_of(backend, "a") is S.COMPLETED


@pytest.mark.slow
async def test_a_thread_that_does_not_end_cannot_hold_up_the_close(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    begun, over = threading.Event(), threading.Event()

    def process(job: RunningJob) -> str:
        begun.set()
        over.wait(60)  # one call in C: nothing can interrupt it
        return "too late"

    try:
        async with working(queue, process, cancel_grace=0.1) as worker:
            await queue.add("x", job_id="a")
            assert await asyncio.to_thread(begun.wait, 10)
            await asyncio.wait_for(worker.close(grace=0.1), 10)
        job = await backend.get_job("a")
        assert (job.status, job.crashes, job.retry_count) == (S.UNKNOWN_RETRY, 0, 0)
    finally:
        over.set()


async def test_by_force_it_ends_at_once_and_writes_nothing_any_more(backend: Backend, queue: Queue) -> None:
    # M-WRK-18 X-80
    begun, over, ended = threading.Event(), threading.Event(), threading.Event()
    refused: list[BaseException] = []

    def process(job: RunningJob) -> str:
        begun.set()
        over.wait(60)
        notes: list[Callable[[], object]] = [
            lambda: job.update_progress(99),
            lambda: job.log("still here"),
            lambda: job.save_checkpoint("far"),
        ]
        for note in notes:
            try:
                note()
            except LeaseLost as error:
                refused.append(error)
        ended.set()
        return "ignored"

    async def has_said_hello() -> bool:
        return [info.state for info in await backend.list_workers()] == ["running"]

    async with working(queue, process, concurrency=2, cancel_grace=30) as worker:
        await queue.add("x", job_id="a")
        assert await asyncio.to_thread(begun.wait, 10)
        await until(has_said_hello)
        begun_closing = monotonic()
        await worker.close(force=True)
        assert monotonic() - begun_closing < 5
        assert [info.state for info in await backend.list_workers()] == ["running"]  # not even a last heartbeat
        async with nothing_changes(backend):
            over.set()
            assert await asyncio.to_thread(ended.wait, 10)
            await asyncio.wait_for(worker.run(), 10)
        assert len(refused) == 3
    assert await status_of(backend, "a") is S.RUNNING
    assert await story(backend, "a") == ["job.added", "job.active"]


async def test_jobs_dropped_by_force_are_reclaimed_when_their_leases_expire(backend: Backend, queue: Queue) -> None:
    # M-WRK-18 X-80
    gate = Gate()
    async with working(queue, gate, lock_duration=0.5) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        await worker.close(force=True)
        await until(lambda: gate.cancelled == ["a"])
    gate.open.set()
    async with working(queue, gate):
        job = await comes_to(backend, "a", S.COMPLETED)
    assert (job.executions, job.crashes) == (2, 1)


async def test_force_cuts_a_graceful_close_short(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    gate = Gate()
    async with working(queue, gate) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        closing = asyncio.create_task(worker.close())
        await asyncio.sleep(0)
        await asyncio.wait_for(worker.close(force=True), 5)
        await asyncio.wait_for(closing, 5)
    assert await status_of(backend, "a") is S.RUNNING


async def test_a_worker_that_never_ran_is_closed_at_once(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    worker = Worker(queue, Gate(), autorun=False)
    for options in ({}, {"force": True}, {"grace": 1}):
        await asyncio.wait_for(worker.close(**options), 5)
    nonsense: Any = -1
    with pytest.raises(InvalidArgument, match="grace"):
        await worker.close(grace=nonsense)


async def test_a_worker_ends_when_its_queue_s_backend_is_closed(backend: Backend) -> None:
    # M-WRK-18
    only = Queue(backend)
    gate = Gate()
    worker = Worker(only, gate, poll_interval=0.05)
    await only.add("x")
    await gate.has_begun()
    await only.close()  # the last queue on its backend
    await asyncio.wait_for(worker.run(), 10)
    await until(lambda: len(gate.cancelled) == 1)
    await worker.close()


async def test_a_closing_worker_without_its_store_gives_up_after_its_grace(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-18
    async def gone(*_: object, **__: object) -> None:
        raise BackendUnavailable("unavailable")

    monkeypatch.setattr("longshore.runtime.worker._LAST_EXCHANGE", 0.2)
    gate = Gate()
    async with working(queue, gate, cancel_grace=0) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        monkeypatch.setattr(backend, "settle_and_dequeue", gone)
        await asyncio.wait_for(worker.close(grace=0), 10)
    assert await status_of(backend, "a") is S.RUNNING


@pytest.mark.parametrize("sweep", [True, False])
async def test_an_unreferenced_worker_keeps_running_and_is_closed_with_its_queue(
    backend: Backend, queue: Queue, sweep: bool
) -> None:
    # M-WRK-18
    gate = Gate()
    seen = weakref.ref(Worker(queue, gate, sweep=sweep, cancel_grace=0.5))
    await queue.add("x", job_id="a")
    await gate.has_begun()
    gc.collect()
    assert seen() is not None
    async with Queue(backend):  # keeps the store open
        await queue.close()
        assert gate.cancelled == ["a"]
        assert await status_of(backend, "a") is S.UNKNOWN_RETRY
    await until(lambda: gc.collect() >= 0 and seen() is None)


async def test_a_worker_left_behind_by_its_loop_does_no_harm(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    gate_begun = threading.Event()
    left: list[Worker] = []

    async def process(job: RunningJob) -> None:
        gate_begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        left.append(Worker(queue, process, lock_duration=0.5))
        await asyncio.to_thread(gate_begun.wait, 10)

    await queue.add("x", job_id="a")
    await asyncio.to_thread(lambda: asyncio.run(main()))
    await asyncio.wait_for(left[0].close(), 5)
    gate = Gate()
    gate.open.set()
    async with working(queue, gate):
        assert (await comes_to(backend, "a")).status is S.COMPLETED
        await happens(backend, "job.completed")
