"""Closing a queue: later calls are refused, streams end, and the last queue on a backend closes it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from longshore import JobFilter, JobStatus, Outcome, Queue, Repeat
from longshore.backends.base import Backend, WorkerInfo
from longshore.core.errors import QueueClosed
from longshore.core.schedule import Schedule
from longshore.testing.conformance.scenarios import STALE, new_job, status_of

S = JobStatus

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "type": ("email",),
    "specs": ([("email",)],),
    "job": (new_job(),),
    "jobs": ([new_job()],),
    "job_ids": (["x"],),
    "job_id": ("x",),
    "assignee_id": ("w",),
    "leases": ({"x": STALE},),
    "duration": (30,),
    "lease": (STALE,),
    "value": (1,),
    "message": ("x",),
    "data": (1,),
    "error": ("x",),
    "status": (S.STOPPED,),
    "outcomes": ([Outcome("x", STALE)],),
    "was_executing": (True,),
    "filter": (JobFilter(),),
    "statuses": ("PENDING",),
    "timeout": (1,),
    "event": ("*",),
    "listener": (print,),
    "grace": (0,),
    "schedule": (Schedule(id="s", job=new_job(), repeat=Repeat(every=60)),),
    "schedule_id": ("s",),
    "ttl": (60,),
    "worker": (WorkerInfo(id="w"),),
}
VERBS = sorted(
    name for name, _ in inspect.getmembers(Queue, inspect.isfunction) if not name.startswith("_") and name != "close"
)


def arguments_of(verb: str) -> list[Any]:
    parameters = list(inspect.signature(getattr(Queue, verb)).parameters.values())[1:]
    return [ARGUMENTS[one.name][0] for one in parameters if one.default is inspect.Parameter.empty]


async def called(queue: Queue, verb: str) -> None:
    answer = getattr(queue, verb)(*arguments_of(verb))
    if inspect.isawaitable(answer):
        await answer


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_of_a_closed_queue_is_refused(queue: Queue, verb: str) -> None:
    # Q-CLO-03 X-30 X-29
    await queue.close()
    assert queue.closed
    with pytest.raises(QueueClosed):
        await called(queue, verb)


async def test_closing_twice_and_at_once_is_closing(queue: Queue) -> None:
    # X-30 Q-CLO-02
    await asyncio.gather(queue.close(), queue.close(), queue.close())
    await queue.close()
    assert queue.closed


async def test_the_last_open_queue_closes_the_backend(backend: Backend) -> None:
    # Q-CLO-02
    first, second = Queue(backend), Queue(backend, "mail")
    await first.close()
    await second.add("still open")
    await second.close()
    with pytest.raises(QueueClosed):
        await backend.count_jobs()


async def test_leaving_a_queue_closes_it(backend: Backend) -> None:
    # Q-CLO-02
    async with Queue(backend) as queue:
        await queue.add("a")
    assert queue.closed
    assert "closed" in repr(queue)
    with pytest.raises(QueueClosed):
        await backend.count_jobs()


async def test_an_unreferenced_queue_does_not_keep_the_backend_open(backend: Backend) -> None:
    # Q-CLO-02
    Queue(backend, "forgotten")
    async with Queue(backend):
        pass
    with pytest.raises(QueueClosed):
        await backend.count_jobs()


async def test_an_error_while_closing_the_backend_is_raised_and_the_queue_is_closed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CLO-02
    async def stuck() -> None:
        raise OSError("the disk is gone")

    queue = Queue(backend)
    with monkeypatch.context() as broken:
        broken.setattr(backend, "close", stuck)
        with pytest.raises(OSError, match="the disk is gone"):
            await queue.close()
    assert queue.closed
    await queue.close()


async def test_a_close_whose_caller_was_cancelled_continues_and_later_calls_wait_for_it(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CLO-02 X-30
    begun, go_on, close = asyncio.Event(), asyncio.Event(), backend.close

    async def slow() -> None:
        begun.set()
        await go_on.wait()
        await close()

    queue = Queue(backend)
    with monkeypatch.context() as slowed:
        slowed.setattr(backend, "close", slow)
        first = asyncio.create_task(queue.close())
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        later = asyncio.create_task(queue.close())
        go_on.set()
        await asyncio.wait_for(later, 20)
    with pytest.raises(QueueClosed):
        await backend.count_jobs()


async def test_a_queue_whose_loop_ended_during_close_is_closed_by_the_next_call(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-CLO-02 X-30
    async def never() -> None:
        await asyncio.Event().wait()

    async def closes_in_vain(queue: Queue) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.close(), 0.05)

    queue = Queue(backend)
    with monkeypatch.context() as stuck:
        stuck.setattr(backend, "close", never)
        await asyncio.to_thread(asyncio.run, closes_in_vain(queue))
    assert queue.closed
    await asyncio.wait_for(queue.close(), 20)
    with pytest.raises(QueueClosed):
        await backend.count_jobs()


async def test_a_backend_closes_though_all_threads_of_the_loop_are_busy(backend: Backend) -> None:
    over = threading.Event()
    with ThreadPoolExecutor(1) as only:
        asyncio.get_running_loop().set_default_executor(only)
        busy = asyncio.create_task(asyncio.to_thread(over.wait))
        await backend.count_jobs()
        await asyncio.wait_for(backend.close(), 20)
        over.set()
        await busy


async def test_a_stream_ends_without_an_error_and_releases_undelivered_jobs(backend: Backend, queue: Queue) -> None:
    # Q-CLO-01 Q-CLO-03 X-29
    closing = Queue(backend, "mail")
    async with closing.stream_jobs("w", max_assigned_jobs=2) as stream:
        taken, waiting = await closing.add("a"), None
        async for batch in stream:
            assert [job.id for job in batch] == [taken.id]
            waiting = await closing.add("b")
            while await status_of(backend, waiting.id) is not S.RUNNING:
                await backend.wait_for_change(1)
            await closing.close()
    assert waiting is not None
    given_back = await queue.get_job(waiting.id)
    assert (given_back.status, given_back.retry_count) == (S.FAILED_RETRY, 1)
    assert "closed" in given_back.error_message
    assert await status_of(backend, taken.id) is S.RUNNING
