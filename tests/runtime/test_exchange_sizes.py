"""How many jobs a worker settles and claims at a time, seen in its calls to the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from longshore import Job, Outcome, Queue, Worker, connect
from longshore.backends.base import Backend, SettleReport
from longshore.core.errors import BackendUnavailable
from longshore.runtime.executors.base import Executor
from longshore.runtime.running_job import RunningJob
from tests.runtime.working import Gate, happens, until, working


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    """The sizes are the same on every store."""
    opened = connect("memory://")
    yield opened
    await opened.close()


@pytest.fixture
async def queue(backend: Backend) -> Queue:
    """Return all jobs of the store."""
    return Queue(backend)


class Exchanges:
    """The calls that settle and claim; `hold` blocks their answers."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits: list[int] = []
        self.settled: list[int] = []
        self.under_way = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self._exchange = backend.settle_and_dequeue
        monkeypatch.setattr(backend, "settle_and_dequeue", self._watched)

    async def _watched(
        self, outcomes: Sequence[Outcome], assignee_id: str, tags: Sequence[str] = (), limit: int = 1, **more: Any
    ) -> tuple[SettleReport, list[Job]]:
        self.limits.append(limit)
        self.settled.append(len(outcomes))
        self.under_way += 1
        try:
            await self.answers.wait()
            return await self._exchange(outcomes, assignee_id, tags, limit, **more)
        finally:
            self.under_way -= 1


async def _nothing(_: RunningJob) -> None:
    return None


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (2, 1), (3, 2), (100, 50), (1_000, 500), (10_000, 500)])
async def test_a_claim_takes_at_most_half_of_the_concurrency_and_500_jobs(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, concurrency: int, most: int
) -> None:
    exchanges = Exchanges(backend, monkeypatch)
    async with working(queue, _nothing, concurrency=concurrency):
        await until(lambda: bool(exchanges.limits))
    assert exchanges.limits[0] == most


@pytest.mark.parametrize(("held", "left"), [(6, 4), (9, 1)])
async def test_a_claim_takes_no_more_jobs_than_there_are_free_slots(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, held: int, left: int
) -> None:
    gate = Gate()
    await queue.add_bulk([{"type": "x"} for _ in range(held)])
    async with working(queue, gate, concurrency=10):
        await gate.has_begun(held)
        exchanges = Exchanges(backend, monkeypatch)
        await until(lambda: bool(exchanges.limits))
        assert set(exchanges.limits) == {left}


async def test_a_worker_without_a_free_slot_does_not_claim(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    await queue.add_bulk([{"type": "x"} for _ in range(12)])
    async with working(queue, gate, concurrency=10):
        await gate.has_begun(10)
        exchanges = Exchanges(backend, monkeypatch)
        await queue.add("x")
        await asyncio.sleep(0.2)
        assert exchanges.limits == []
        assert len(gate.begun) == 10


@pytest.mark.parametrize(
    ("concurrency", "ended", "second"), [(100, 24, False), (100, 25, True), (400, 99, False), (400, 100, True)]
)
async def test_a_second_exchange_starts_for_a_quarter_of_the_concurrency_and_at_least_25_jobs(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, concurrency: int, ended: int, second: bool
) -> None:
    gates = [asyncio.Event() for _ in range(concurrency)]
    begun = 0

    async def process(job: RunningJob) -> None:
        nonlocal begun
        begun += 1
        await gates[job.data].wait()

    await queue.add_bulk([{"type": "x", "data": number} for number in range(concurrency)])
    async with working(queue, process, concurrency=concurrency):
        await until(lambda: begun == concurrency)
        exchanges = Exchanges(backend, monkeypatch)
        exchanges.answers.clear()
        gates[0].set()
        await until(lambda: exchanges.under_way == 1)
        for gate in gates[1 : ended + 1]:
            gate.set()
        await asyncio.sleep(0.05)
        assert exchanges.settled == ([1, ended] if second else [1])
        for gate in gates:
            gate.set()
        exchanges.answers.set()


class Leaky(Executor):
    """Have this many jobs that cannot be ended."""

    def __init__(self, left_behind: int) -> None:
        self.left = left_behind

    @property
    def left_behind(self) -> int:
        return self.left

    async def run(self, _: RunningJob) -> None:
        return None


async def test_a_worker_with_ten_abandoned_jobs_for_each_slot_claims_no_more_until_one_has_ended(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Leaky(30)
    exchanges = Exchanges(backend, monkeypatch)
    async with working(queue, executor, concurrency=3):
        assert "30 abandoned jobs" in (await happens(backend, "worker.error")).detail["error"]
        assert exchanges.limits == []
        executor.left = 29
        await until(lambda: bool(exchanges.limits))


async def test_of_the_jobs_of_a_lost_claim_only_those_with_a_valid_lease_run(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    worker = Worker(queue, gate, concurrency=5, autorun=False, sweep=False, cancel_grace=0.5, poll_interval=0.05)
    await queue.add_bulk([{"type": "x", "job_id": name} for name in ("good", "over", "without an end")])
    leases: list[float | None] = [60, 0.01, None]
    for lease in leases:
        await backend.dequeue_jobs(worker.id, limit=1, lease=lease)
    await asyncio.sleep(0.05)
    exchange, answered = backend.settle_and_dequeue, []

    async def first_answer_lost(*args: Any, **options: Any) -> Any:
        answer = await exchange(*args, **options)
        answered.append(answer)
        if len(answered) == 1:
            raise BackendUnavailable("the connection was cut after the commit")
        return answer

    monkeypatch.setattr(backend, "settle_and_dequeue", first_answer_lost)
    async with worker:
        await until(lambda: len(answered) > 2)
        assert gate.begun == ["good"]
        gate.open.set()
