"""Workers while their store fails, and while many things happen at once: nothing is lost or reported twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from longshore import JobStatus, Queue, connect
from longshore.backends.base import Backend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import Fatal, LongshoreError, Snooze
from longshore.runtime.running_job import RunningJob
from longshore.testing.conformance.scenarios import all_jobs, audit, history, log_of, new_job
from tests.runtime.conftest import OpenBackend
from tests.runtime.working import Gate, all_come_to, comes_to, happens, most_at_once, until, worker_loop_of, working
from tests.tcp_proxy import COMMITTED, TcpProxy

S = JobStatus


async def test_a_worker_survives_a_locked_sqlite_file(tmp_path: Path) -> None:
    # M-WRK-11 M-EV-13 M-SQL-04
    gate = Gate()
    async with SQLiteBackend(tmp_path / "jobs.db", busy_seconds=0.1) as backend:
        queue = Queue(backend)
        async with working(queue, gate, concurrency=2) as worker:
            await queue.add("x", job_id="running")
            await gate.has_begun()
            await queue.add("x", job_id="waiting", delay=0.05)
            other = backend.new_connection()
            other.execute("BEGIN EXCLUSIVE")
            gate.open.set()
            await until(lambda: bool(worker_loop_of(worker).store_error))  # it has tried and failed
            assert gate.begun == ["running"]
            other.execute("ROLLBACK")
            other.close()
            job = await comes_to(backend, "running", S.COMPLETED)
            await comes_to(backend, "waiting", S.COMPLETED)
            event = await happens(backend, "worker.error")
        assert job.executions == 1
        assert event.assignee_id == worker.id
        assert "locked" in event.detail["error"]
        await audit(backend)


async def test_a_worker_outlives_a_network_that_fails_again_and_again(postgres_url: str) -> None:
    # M-WRK-11 M-EV-13 M-WRK-15
    ran: Counter[str] = Counter()

    async def process(job: RunningJob) -> str:
        ran[job.id] += 1
        await asyncio.sleep(0.001)
        return job.id

    with TcpProxy(postgres_url) as proxy:
        url = f"{proxy.url}?connect_timeout=2"
        async with (
            connect(postgres_url) as direct,
            connect(url, answer_seconds=1, wait_seconds=2, poll_seconds=0.2) as backend,
        ):
            await direct.enqueue_jobs([new_job(f"job {n}") for n in range(150)])
            async with working(Queue(backend), process, concurrency=10, lock_duration=2):
                for blow in (proxy.reset, proxy.cut, proxy.reset):
                    before = (await direct.count_jobs())[S.COMPLETED]
                    proxy.lost_answer = COMMITTED  # once, a commit whose answer is lost
                    await until(lambda: proxy.lost_answer is None)
                    blow()

                    async def goes_on(since: int = before) -> bool:
                        return (await direct.count_jobs())[S.COMPLETED] > since or since == 150

                    await until(goes_on)
                await all_come_to(direct, S.COMPLETED, count=150)
            for job in await all_jobs(direct):
                told = [event.event for event in await history(direct, job.id)]
                assert told.count("job.completed") == 1
                assert job.executions == 1 + job.crashes
            assert most_at_once(await log_of(direct)) <= 20  # jobs of a lost claim run only after a sweep
            await audit(direct)
    assert set(ran) == {f"job {n}" for n in range(150)}


class Weather:
    """Do random operations on the jobs."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    async def process(self, job: RunningJob) -> Any:
        roll = self._chance.random()
        if roll < 0.15:
            raise ValueError("a squall")
        if roll < 0.2:
            raise Snooze(self._chance.random() * 0.05)
        if roll < 0.23:
            raise Fatal("a wreck")
        if roll < 0.28:
            await job.update_progress(round(roll, 3))
        await asyncio.sleep(self._chance.random() * 0.03)
        if roll > 0.97:
            await asyncio.Event().wait()  # until its timeout or cancellation
        return {"roll": round(roll, 3)}


@pytest.mark.parametrize("number", range(2))
async def test_whatever_happens_every_job_ends_once_and_by_the_table(
    backend: Backend, open_backend: OpenBackend, queue: Queue, seed: int, number: int
) -> None:
    # M-GOAL-01 M-WRK-09 M-WRK-15 M-WRK-18 M-RTY-02 M-SQL-02
    chance = Random(seed + number)
    weather = Weather(chance)
    other = Queue(open_backend()) if backend.capabilities.shared else queue
    await queue.add_bulk(
        [
            {
                "type": "x",
                "job_id": f"job {n}",
                "attempts": 4,
                "timeout": 0.3,
                "max_crashes": 5,
                "backoff": 0.01,
            }
            for n in range(80)
        ]
    )

    async def stormy() -> None:
        while True:
            await asyncio.sleep(0.05)
            victim = f"job {chance.randrange(80)}"
            deed = chance.randrange(4)
            try:
                if deed == 0:
                    await queue.cancel_jobs(job_ids=[victim])
                elif deed == 1:
                    await backend.mark_worker_unresponsive("second")
                elif deed == 2:
                    await other.complete_job(victim, b'"by hand"')
                else:
                    await other.reset_running_jobs()
            except LongshoreError:  # the job is in another status
                continue

    options: dict[str, Any] = {"lock_duration": 0.5, "cancel_grace": 0.1, "concurrency": 5, "poll_interval": 0.02}
    storm = asyncio.create_task(stormy())
    try:
        async with working(queue, weather.process, id="first", **options):
            async with working(other, weather.process, id="second", **options):
                await all_come_to(backend, *(status for status in S if status.final), count=70)
                storm.cancel()
            # the second was closed meanwhile; the first one runs the rest
            await all_come_to(backend, *(status for status in S if status.final), count=80)
    finally:
        storm.cancel()
    for job in await all_jobs(backend):
        ends = [event for event in await history(backend, job.id) if event.to_status and event.to_status.final]
        late = [event for event in ends if event.from_status is S.UNKNOWN_STOPPED]
        assert len(ends) - len(late) == 1, [event.event for event in ends]
        assert job.retry_count <= 4
