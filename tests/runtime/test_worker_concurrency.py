"""Concurrency: a worker never holds too many jobs, claims and settles in batches, and shares with others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from longshore import Job, JobStatus, Outcome, Queue
from longshore.backends.base import Backend, SettleReport
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import all_jobs, log_of, new_job
from tests.runtime.conftest import OpenBackend
from tests.runtime.working import Gate, all_come_to, comes_to, most_at_once, running, until, working

S = JobStatus


class Turns:
    """Records the settle and claim calls of a backend and their results."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settled: list[int] = []
        self.asked: list[int] = []
        self.claimed: list[int] = []
        self._turn = backend.settle_and_dequeue
        monkeypatch.setattr(backend, "settle_and_dequeue", self._watched)

    async def _watched(
        self, outcomes: Sequence[Outcome], assignee_id: str, tags: Sequence[str] = (), limit: int = 1, **more: Any
    ) -> tuple[SettleReport, list[Job]]:
        report, jobs = await self._turn(outcomes, assignee_id, tags, limit, **more)
        self.settled.append(len(report.settled))
        self.asked.append(limit)
        self.claimed.append(len(jobs))
        return report, jobs


@pytest.mark.parametrize("concurrency", [1, 2, 7])
async def test_no_more_jobs_are_held_at_any_instant_than_may_run_at_once(
    backend: Backend, queue: Queue, concurrency: int
) -> None:
    # M-WRK-09 M-WRK-03 X-79
    at_once = 0
    here: list[int] = []
    stored: list[int] = []

    async def process(job: RunningJob) -> None:
        nonlocal at_once
        at_once += 1
        here.append(at_once)
        stored.append(len(await running(backend)))
        await asyncio.sleep(0.001 * (job.data % 3))
        at_once -= 1
        if job.data % 5 == 0 and job.retry_count == 0:
            raise ValueError("once more")

    await queue.add_bulk([{"type": "x", "data": n, "attempts": 2} for n in range(40)])
    async with working(queue, process, concurrency=concurrency):
        await all_come_to(backend, S.COMPLETED, count=40)
    assert len(here) == 48
    assert max(here) <= concurrency
    assert max(stored) <= concurrency
    assert most_at_once(await log_of(backend)) <= concurrency


async def test_a_worker_claims_up_to_its_concurrency_and_no_more(backend: Backend, queue: Queue) -> None:
    # M-WRK-09 X-79
    gate = Gate()
    await queue.add_bulk([{"type": "x"} for _ in range(20)])
    async with working(queue, gate, concurrency=6) as worker:
        await gate.has_begun(6)
        await queue.add("x")  # a new job, and no free slot for it
        counts = await backend.count_jobs()
        assert (counts[S.RUNNING], counts[S.INITIAL_PENDING]) == (6, 15)
        assert worker.running == 6
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=21)
    assert most_at_once(await log_of(backend)) == 6


async def test_jobs_are_claimed_and_settled_in_batches_within_the_free_slots(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-09 M-SQL-02
    turns = Turns(backend, monkeypatch)

    async def process(job: RunningJob) -> None:
        return None

    await queue.add_bulk([{"type": "x"} for _ in range(300)])
    async with working(queue, process, concurrency=50) as worker:
        await all_come_to(backend, S.COMPLETED, count=300)
        await worker.close()
    assert sum(turns.claimed) == sum(turns.settled) == 300
    held = 0
    for settled, asked, claimed in zip(turns.settled, turns.asked, turns.claimed, strict=True):
        held -= settled
        assert asked <= 50 - held
        held += claimed
    assert sum(1 for claimed in turns.claimed if claimed) <= 60
    assert sum(1 for settled in turns.settled if settled) <= 60


async def test_one_slow_job_does_not_hold_up_the_others(backend: Backend, queue: Queue) -> None:
    # M-WRK-09
    gate = Gate()

    async def process(job: RunningJob) -> None:
        if job.type == "slow":
            await gate(job)

    await queue.add("slow")
    async with working(queue, process, concurrency=2):
        await gate.has_begun()
        await queue.add_bulk([{"type": "quick"} for _ in range(20)])
        await all_come_to(backend, S.COMPLETED, count=20)
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=21)


async def test_several_workers_share_the_work_and_each_job_is_run_once(
    backend: Backend, open_backend: OpenBackend, queue: Queue
) -> None:
    # M-GOAL-01 M-SQL-02 M-WRK-07
    ran: Counter[str] = Counter()
    by: Counter[str | None] = Counter()

    async def process(job: RunningJob) -> None:
        ran[job.id] += 1
        by[job.assignee_id] += 1
        await asyncio.sleep(0)

    others = [Queue(open_backend()) for _ in range(2)] if backend.capabilities.shared else [queue, queue]
    await backend.enqueue_jobs([new_job(f"job {n}") for n in range(120)])
    async with (
        working(queue, process, concurrency=4),
        working(others[0], process, concurrency=4),
        working(others[1], process, concurrency=4),
    ):
        await all_come_to(backend, S.COMPLETED, count=120)
    assert len(ran) == 120
    assert set(ran.values()) == {1}
    assert len(by) == 3
    assert {job.executions for job in await all_jobs(backend)} == {1}
    assert most_at_once(await log_of(backend)) <= 12


async def test_two_workers_on_one_job_run_it_once(backend: Backend, open_backend: OpenBackend, queue: Queue) -> None:
    # M-SQL-02
    gate = Gate()
    other = Queue(open_backend()) if backend.capabilities.shared else queue
    async with working(queue, gate, concurrency=5), working(other, gate, concurrency=5):
        for n in range(10):
            await queue.add("x", job_id=f"job {n}")
        await gate.has_begun(10)
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=10)
    assert sorted(gate.begun) == sorted(f"job {n}" for n in range(10))


async def test_limits_of_a_queue_bind_its_workers(backend: Backend, mail: Queue) -> None:
    # M-WRK-09
    await backend.set_limits("mail", running=2)
    gate = Gate()
    async with working(mail, gate, concurrency=5) as worker:
        await mail.add_bulk([{"type": "x"} for _ in range(5)])
        await gate.has_begun(2)
        assert worker.running == 2
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=5)
    assert most_at_once(await log_of(backend)) == 2


async def test_a_job_claimed_by_hand_is_none_of_the_worker_s(backend: Backend, queue: Queue) -> None:
    gate = Gate()
    await queue.add("x", job_id="by hand")
    [job] = await queue.dequeue_jobs("somebody")
    async with working(queue, gate, concurrency=2):
        await queue.add("x", job_id="worker's")
        await gate.has_begun()
        await queue.complete_job(job.id, lease=job.lease)
        gate.open.set()
        await comes_to(backend, "worker's", S.COMPLETED)
        await until(lambda: gate.ended == ["worker's"])
