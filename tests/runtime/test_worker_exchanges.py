"""Two concurrent exchanges with the store: the worker keeps its concurrency, and loses no job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from longshore import Job, JobStatus, Outcome, Queue
from longshore.backends.base import Backend, SettleReport
from longshore.core.errors import BackendUnavailable
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import all_jobs, log_of
from tests.runtime.working import all_come_to, most_at_once, running, until, worker_loop_of, working

S = JobStatus


class SlowStore:
    """Counts running exchanges; the answer of the second one may be lost, or delayed until it is released."""

    def __init__(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, *, answers_lost: int = 0, holds_back: bool = False
    ) -> None:
        self.at_once = 0
        self.most = 0
        self.sizes: list[int] = []
        self.stuck = asyncio.Event()
        self.released = asyncio.Event()
        self._to_lose = answers_lost
        self._holds_back = holds_back
        self._exchange = backend.settle_and_dequeue
        monkeypatch.setattr(backend, "settle_and_dequeue", self._slowly)

    async def _slowly(
        self, outcomes: Sequence[Outcome], assignee_id: str, tags: Sequence[str] = (), limit: int = 1, **more: Any
    ) -> tuple[SettleReport, list[Job]]:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.sizes.append(max(len(outcomes), limit))
        try:
            for _ in range(20):  # long enough for running jobs to end
                await asyncio.sleep(0)
            answer = await self._exchange(outcomes, assignee_id, tags, limit, **more)
            if self.at_once == 2 and self._holds_back:
                self.stuck.set()
                await self.released.wait()
            if self.at_once == 2 and self._to_lose:
                self._to_lose -= 1
                raise BackendUnavailable("the connection was cut after the commit")
            return answer
        finally:
            self.at_once -= 1


async def nothing(job: RunningJob) -> int:
    return int(job.data)


@pytest.mark.slow
async def test_a_second_exchange_begins_beside_the_first_while_there_is_plenty(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-09 X-79
    store = SlowStore(backend, monkeypatch)
    await queue.add_bulk([{"type": "x", "data": n} for n in range(1_000)])
    async with working(queue, nothing, concurrency=100):
        await all_come_to(backend, S.COMPLETED, count=1_000)
    assert store.most == 2
    assert max(store.sizes) <= 50
    assert most_at_once(await log_of(backend)) <= 100
    assert {job.executions for job in await all_jobs(backend)} == {1}


async def test_slots_that_one_exchange_may_fill_are_not_free_for_the_other(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-09 X-79
    store = SlowStore(backend, monkeypatch)
    go_on = asyncio.Event()

    async def process(job: RunningJob) -> None:
        if job.data < 20:  # these keep running, so that fewer slots are left than two exchanges could fill
            await go_on.wait()

    await queue.add_bulk([{"type": "x", "data": n} for n in range(1_000)])
    async with working(queue, process, concurrency=100):
        await all_come_to(backend, S.COMPLETED, count=980)
        go_on.set()
        await all_come_to(backend, S.COMPLETED, count=1_000)
    assert store.most == 2
    assert most_at_once(await log_of(backend)) <= 100


async def test_few_jobs_take_one_exchange_at_a_time(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore(backend, monkeypatch)
    await queue.add_bulk([{"type": "x", "data": n} for n in range(60)])
    async with working(queue, nothing, concurrency=10):
        await all_come_to(backend, S.COMPLETED, count=60)
    assert store.most == 1


async def test_lost_answers_of_both_exchanges_lose_no_job_and_exceed_no_limit(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-11 M-WRK-15
    store = SlowStore(backend, monkeypatch, answers_lost=3)
    await queue.add_bulk([{"type": "x", "data": n} for n in range(600)])
    async with working(queue, nothing, concurrency=100):
        await all_come_to(backend, S.COMPLETED, count=600)
    assert store.most == 2
    assert most_at_once(await log_of(backend)) <= 100
    assert {(job.executions, job.crashes) for job in await all_jobs(backend)} == {(1, 0)}


async def test_jobs_that_two_exchanges_bring_to_a_closing_worker_go_back(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-18 X-80
    store = SlowStore(backend, monkeypatch, holds_back=True)
    await queue.add_bulk([{"type": "x", "data": n} for n in range(600)])
    async with working(queue, nothing, concurrency=100) as worker:
        await store.stuck.wait()
        closing = asyncio.ensure_future(worker.close())
        await until(lambda: worker_loop_of(worker).closing)
        store.released.set()
        await closing
        assert not await running(backend)
        counts = await backend.count_jobs()
        assert counts[S.COMPLETED] + counts[S.INITIAL_PENDING] + counts[S.UNKNOWN_RETRY] == 600
        assert counts[S.UNKNOWN_RETRY]
        assert {job.crashes for job in await all_jobs(backend)} == {0}


async def test_a_worker_closed_by_force_starts_no_job_of_a_running_exchange(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-18
    store = SlowStore(backend, monkeypatch, holds_back=True)
    begun = 0

    async def process(job: RunningJob) -> None:
        nonlocal begun
        begun += 1

    await queue.add_bulk([{"type": "x", "data": n} for n in range(600)])
    async with working(queue, process, concurrency=100, lock_duration=60) as worker:
        await store.stuck.wait()
        before = begun
        await worker.close(force=True)
        store.released.set()
        await until(lambda: store.at_once == 0)
    assert begun == before
    assert worker.running == 0
    assert await running(backend)  # they were not released: their leases expire
