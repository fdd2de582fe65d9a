"""Streams notice the changes of other processes, and recover what these leave: with a second backend, and for real."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from longshore import JobStatus, Queue
from longshore.backends.base import Backend
from longshore.testing.conformance.scenarios import lease_of, status_of
from tests.runtime.streaming import (
    TIMEOUT,
    add,
    are,
    eventually,
    most_held,
    never_poll,
    others_get,
    receive,
    receive_ids,
    until_lease_vanished,
)

S = JobStatus
ROOT = Path(__file__).parents[2]
BEFORE_A_HEARTBEAT = 8
"""Seconds: the next renewal is after ten, so that an earlier change was noticed without it."""


@pytest.fixture
async def elsewhere(other_backend: Backend) -> AsyncIterator[Queue]:
    """A queue as another process has it."""
    async with Queue(other_backend) as queue:
        yield queue


# -- a second backend on the same store


async def test_jobs_enqueued_by_another_process_are_pushed(
    queue: Queue, elsewhere: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-ENQ-03 Q-CON-04 Q-STREAM-25
    never_poll(monkeypatch)
    async with queue.stream_jobs("worker-1") as stream:
        for number in range(3):
            await add(elsewhere, f"job{number}")
            assert await receive_ids(stream) == [f"job{number}"]


async def release(queue: Queue, job_id: str) -> None:
    await queue.release_lease(job_id, lease_of(await queue.get_job(job_id)))


ENDED: dict[str, tuple[Callable[[Queue], Awaitable[Any]], str]] = {
    "completed": (lambda queue: queue.complete_job("first"), "second"),
    "failed": (lambda queue: queue.fail_job("first", "broke"), "second"),
    "stopped": (lambda queue: queue.stop_job("first"), "second"),
    "its worker is unresponsive": (lambda queue: queue.mark_worker_unresponsive("worker-1"), "first"),
    "reset": (lambda queue: queue.reset_running_jobs(), "first"),
    "released": (lambda queue: release(queue, "first"), "first"),
}


@pytest.mark.parametrize(("end", "next_one"), ENDED.values(), ids=ENDED.keys())
async def test_a_job_that_another_process_ends_frees_its_slot_here(
    queue: Queue,
    elsewhere: Queue,
    end: Callable[[Queue], Awaitable[Any]],
    next_one: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Q-COMP-03 Q-FAIL-04 Q-STOP-03 Q-MWU-02 Q-RST-03 Q-STREAM-15 X-26
    never_poll(monkeypatch)
    await add(queue, "first", "second")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["first"]
        await end(elsewhere)
        assert await receive_ids(stream, within=BEFORE_A_HEARTBEAT) == [next_one]
    assert (await most_held(queue.backend))["worker-1"] == 1


async def test_a_cancellation_from_another_process_reaches_the_stream_that_holds_the_job(
    queue: Queue, elsewhere: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CAN-03 X-18
    never_poll(monkeypatch)
    told: list[str] = []
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        stream.on_cancel(told.append)
        await receive(stream)
        await elsewhere.cancel_jobs(job_ids=["a"])
        await eventually(lambda: told == ["a"], within=BEFORE_A_HEARTBEAT)
        await others_get(queue, "b")
        await queue.acknowledge_cancellation("a", True)


async def test_the_slot_of_a_job_that_another_process_disowns_stays_taken(
    queue: Queue, elsewhere: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M1 Q-ACK-03 X-03
    never_poll(monkeypatch)
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await elsewhere.cancel_jobs(job_ids=["a"])
        await elsewhere.acknowledge_cancellation("a", False)
        await until_lease_vanished(stream, "a")
        await others_get(queue, "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        await add(queue, "c")
        assert await receive_ids(stream) == ["c"]


DECLARED_OVER: dict[str, Callable[[Queue], Awaitable[None]]] = {
    "unresponsive": lambda queue: queue.mark_worker_unresponsive("worker-1"),
    "reset": lambda queue: queue.reset_running_jobs(),
    "its queue reset": lambda queue: queue.reset_running_jobs(queue="default"),
}


@pytest.mark.parametrize("declare", DECLARED_OVER.values(), ids=DECLARED_OVER.keys())
async def test_the_slot_of_a_disowned_job_is_freed_when_another_process_declares_its_worker_unresponsive(
    queue: Queue, elsewhere: Queue, declare: Callable[[Queue], Awaitable[None]]
) -> None:
    # M1 Q-ACK-03 Q-MWU-02 Q-RST-03 X-03
    await add(queue, "a", "b")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert await receive_ids(stream) == ["a"]
        await elsewhere.cancel_jobs(job_ids=["a"])
        await elsewhere.acknowledge_cancellation("a", False)
        await until_lease_vanished(stream, "a")
        await elsewhere.mark_worker_unresponsive("another worker")
        await elsewhere.reset_running_jobs(queue="another queue")
        await others_get(queue, "b")
        await add(queue, "c")
        await declare(elsewhere)
        assert await receive_ids(stream) == ["c"]


async def test_a_cancellation_from_another_process_ends_an_undelivered_job(queue: Queue, elsewhere: Queue) -> None:
    # Q-CAN-03
    async with queue.stream_jobs("slow", max_assigned_jobs=1):
        await add(queue, "a")
        await eventually(lambda: are(queue, S.RUNNING, ["a"]))
        await elsewhere.cancel_jobs(job_ids=["a"])
        await eventually(lambda: are(queue, S.STOPPED, ["a"]))


async def test_jobs_released_by_a_stream_are_pushed_in_another_process(
    queue: Queue, elsewhere: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-STREAM-22 Q-STREAM-16 X-20
    never_poll(monkeypatch)
    await add(queue, "a")
    stream = queue.stream_jobs("worker-1")
    stream.start()
    await eventually(lambda: are(queue, S.RUNNING, ["a"]))
    async with elsewhere.stream_jobs("worker-2") as other:
        await stream.end()
        assert await receive_ids(other) == ["a"]


async def test_streams_of_two_processes_share_the_work_and_never_a_slot(queue: Queue, elsewhere: Queue) -> None:
    # Q-CON-01 Q-CON-03 Q-STREAM-08 Q-INV-01
    jobs = [f"job{number}" for number in range(60)]

    async def work(mine: Queue, name: str) -> None:
        async with mine.stream_jobs(name, max_assigned_jobs=2) as stream:
            async for batch in stream:
                for job in batch:
                    await mine.complete_job(job.id)

    working = [asyncio.create_task(work(queue, "here")), asyncio.create_task(work(elsewhere, "there"))]
    await add(queue, *jobs[:30])
    await add(elsewhere, *jobs[30:])
    await eventually(lambda: are(queue, S.COMPLETED, jobs))
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert all([(await queue.get_job(job_id)).executions == 1 for job_id in jobs])
    assert max((await most_held(queue.backend)).values()) <= 2


# -- processes


class Hand:
    """A process that runs tests.runtime.stream_process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def told(self) -> list[Any]:
        """Return the next line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            line = await self.process.stdout.readline()
        assert line, await self.errors()
        told: list[Any] = json.loads(line)
        return told

    async def errors(self) -> str:
        """Return its stderr, after its end."""
        assert self.process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            return (await self.process.stderr.read()).decode()

    async def dismiss(self) -> None:
        """Close its input, so that it ends in order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await self.told() == ["over"]
        assert await self.errors() == ""
        assert await self.process.wait() == 0


@asynccontextmanager
async def hired(role: str, url: str, name: str) -> AsyncIterator[Hand]:
    """Start a process that does not outlive the test."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "tests.runtime.stream_process", role, url, name),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Hand(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_worker_that_is_killed_leaves_its_jobs_to_the_stream_of_another_process(
    store_url: str, queue: Queue, other_backend: Backend
) -> None:
    # Q-STREAM-16
    await add(queue, "held", type="hold")
    async with hired("work", store_url, "doomed") as hand:
        assert await hand.told() == ["ready"]
        assert await hand.told() == ["got", "held", 1]
        async with queue.stream_jobs("survivor") as stream:
            hand.process.kill()
            [job] = await receive(stream)
            assert (job.id, job.epoch, job.crashes) == ("held", 2, 1)
            await queue.complete_job("held", lease=lease_of(job))


async def test_a_stream_in_another_process_gets_jobs_and_cancellations_and_ends_in_order(
    store_url: str, queue: Queue, other_backend: Backend
) -> None:
    # Q-ENQ-03 Q-PAT-01 X-18
    async with hired("work", store_url, "worker-1") as hand:
        assert await hand.told() == ["ready"]
        for number in range(10):
            await add(queue, f"job{number}")
            assert await hand.told() == ["got", f"job{number}", 1]
        await add(queue, "held", type="hold")
        assert await hand.told() == ["got", "held", 1]
        await queue.cancel_jobs(job_ids=["held"])
        assert await hand.told() == ["cancelled", "held"]
        await queue.acknowledge_cancellation("held", True)
        await eventually(lambda: are(queue, S.COMPLETED, [f"job{number}" for number in range(10)]))
        await hand.dismiss()


async def test_a_program_that_exits_with_everything_open_logs_no_error_and_releases_its_jobs(
    store_url: str, queue: Queue, other_backend: Backend
) -> None:
    # Q-STREAM-18 Q-STREAM-22
    await add(queue, "delivered")
    async with hired("careless", store_url, "worker-1") as hand:
        assert await hand.told() == ["got", "delivered"]
        assert await hand.errors() == ""
        assert await hand.process.wait() == 0
    assert await status_of(queue.backend, "delivered") is S.RUNNING


async def test_streams_work_on_both_sides_of_a_fork(store_url: str, queue: Queue, other_backend: Backend) -> None:
    # Q-CON-01
    async with hired("fork", store_url, "forked") as hand:
        for who in ("before", "child"):
            assert await hand.told() == ["completed", f"forked {who}", f"forked {who}"]
        assert await hand.told() == ["child ended", 0]
        assert await hand.told() == ["completed", "forked after", "forked after"]
        assert await hand.errors() == ""
        assert await hand.process.wait() == 0
