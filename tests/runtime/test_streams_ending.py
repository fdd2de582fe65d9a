"""The end of a stream: by its consumer, by its queue, by a failing store, or with its event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from longshore import JobStatus, Queue
from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable, QueueClosed
from longshore.runtime.streams import JobStream
from longshore.testing.conformance.scenarios import audit, story
from tests.postgres_server import Server
from tests.runtime.conftest import OpenBackend
from tests.runtime.streaming import TIMEOUT, add, are, eventually, never_poll, receive, receive_ids, until_held

S = JobStatus


async def consume(stream: JobStream) -> list[str]:
    """Return all jobs until the end."""
    return [job.id async for batch in stream for job in batch]


async def hold_two_and_hand_over_one(queue: Queue, stream: JobStream) -> None:
    """Put one job with the consumer ("delivered"), one in the outbox ("undelivered") and one without a slot."""
    await add(queue, "delivered")
    assert await receive_ids(stream) == ["delivered"]
    await add(queue, "undelivered", "waiting")
    await until_held(queue, stream, "undelivered")


async def test_undelivered_jobs_fail_and_delivered_ones_stay_with_their_consumer(
    backend: Backend, queue: Queue
) -> None:
    # Q-STREAM-22 X-20
    async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as stream:
        await hold_two_and_hand_over_one(queue, stream)
        await stream.end("the lights go out")
        job = await queue.get_job("undelivered")
        assert (job.status, job.error_message, job.retry_count) == (S.FAILED_RETRY, "the lights go out", 1)
        assert await are(queue, S.RUNNING, ["delivered"])
        assert await are(queue, S.INITIAL_PENDING, ["waiting"])
    await queue.complete_job("delivered")  # its consumer may still settle it
    assert await story(backend, "delivered") == ["job.added", "job.active", "job.completed"]


async def test_released_jobs_are_pushed_to_another_stream(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    # Q-STREAM-22 Q-STREAM-16 X-20
    never_poll(monkeypatch)
    ending = queue.stream_jobs("worker-1", max_assigned_jobs=1)
    ending.start()
    await add(queue, "a")
    await eventually(lambda: are(queue, S.RUNNING, ["a"]))
    async with queue.stream_jobs("worker-2") as other:
        await ending.end()
        assert await receive_ids(other) == ["a"]


async def test_a_consumer_that_is_cancelled_gets_its_cancellation_and_its_stream_ends(queue: Queue) -> None:
    # Q-STREAM-04 Q-STREAM-18 Q-STREAM-22 Q-ERR-01 X-117
    waiting = asyncio.Event()

    async def consumer() -> None:
        async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as stream:
            await hold_two_and_hand_over_one(queue, stream)
            waiting.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(consumer())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await are(queue, S.FAILED_RETRY, ["undelivered"])
    assert await are(queue, S.RUNNING, ["delivered"])


async def test_a_consumer_cancelled_while_it_waits_for_the_next_batch_loses_nothing(queue: Queue) -> None:
    # Q-STREAM-18 X-117
    async with queue.stream_jobs("worker-1") as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)
        await add(queue, "a")
        assert await receive_ids(stream) == ["a"]


async def test_closing_the_queue_ends_its_streams_without_an_error(backend: Backend, queue: Queue) -> None:
    # Q-STREAM-04 Q-STREAM-19 Q-STREAM-21 Q-STREAM-22 Q-CLO-01 Q-CLO-03 Q-PAT-02 X-29 X-30
    mine = Queue(backend)
    slow = mine.stream_jobs("slow", ["slow"], 1)
    slow.start()
    await add(queue, "undelivered", tags=["slow"])
    await eventually(lambda: are(queue, S.RUNNING, ["undelivered"]))
    quick = mine.stream_jobs("worker-1", ["quick"])
    consuming = asyncio.create_task(consume(quick))
    await add(queue, "a", tags=["quick"])
    await until_held(queue, quick, "a")
    await mine.close()
    async with asyncio.timeout(TIMEOUT):
        assert await consuming == ["a"]
        assert await consume(slow) == []
    job = await queue.get_job("undelivered")
    assert (job.status, job.error_message) == (S.FAILED_RETRY, "the queue was closed before the job was delivered")
    assert await are(queue, S.RUNNING, ["a"])
    with pytest.raises(QueueClosed):
        mine.stream_jobs("worker-1")


async def test_the_last_queue_releases_the_jobs_of_its_streams_before_it_closes_the_backend(
    open_backend: OpenBackend,
) -> None:
    # Q-CLO-01 Q-CLO-03 Q-STREAM-22 X-29
    backend = open_backend()
    async with Queue(backend) as queue:
        stream = queue.stream_jobs("slow")
        stream.start()
        await add(queue, "a")
        await eventually(lambda: are(queue, S.RUNNING, ["a"]))
    assert await consume(stream) == []
    with pytest.raises(QueueClosed):
        await backend.count_jobs()
    if backend.capabilities.shared:
        again = open_backend()
        assert await are(again, S.FAILED_RETRY, ["a"])
        await audit(again)


async def test_closing_one_queue_leaves_the_streams_of_others_alone(backend: Backend, queue: Queue) -> None:
    # Q-CLO-01
    async with queue.stream_jobs("worker-1") as stream:
        async with Queue(backend) as other, other.stream_jobs("worker-2", ["nothing"]):
            pass
        await add(queue, "a")
        assert await receive_ids(stream) == ["a"]


async def test_an_ended_stream_stays_ended(queue: Queue) -> None:
    # Q-STREAM-03 Q-STREAM-21
    await add(queue, "a")
    async with queue.stream_jobs("worker-1") as stream:
        assert await receive_ids(stream) == ["a"]
        await asyncio.gather(stream.end(), stream.end())
    await stream.end()
    await add(queue, "b")
    for _ in range(2):
        assert await consume(stream) == []
    stream.start()
    async with stream:
        assert await consume(stream) == []
    assert await are(queue, S.INITIAL_PENDING, ["b"])


async def test_a_stream_ended_before_it_began_never_begins(queue: Queue) -> None:
    # Q-STREAM-03 Q-STREAM-21 X-30
    await add(queue, "a")
    stream = queue.stream_jobs("worker-1")
    await stream.end()
    assert await consume(stream) == []
    assert await are(queue, S.INITIAL_PENDING, ["a"])


# -- a store that fails


@pytest.mark.parametrize("full", [False, True], ids=["with free slots", "full"])
async def test_a_backend_closed_underneath_ends_the_stream_with_that_error(
    open_backend: OpenBackend, full: bool
) -> None:
    # Q-STREAM-20 Q-STREAM-21 Q-ERR-03 X-28 X-30
    backend = open_backend()
    queue = Queue(backend)
    await add(queue, "a")
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1 if full else 2) as stream:
        assert await receive_ids(stream) == ["a"]
        waiting = asyncio.create_task(anext(stream))
        await backend.close()
        with pytest.raises(QueueClosed):
            async with asyncio.timeout(TIMEOUT):
                await waiting
        assert await consume(stream) == []  # raised once; then the stream has ended


async def test_an_error_of_the_store_ends_the_stream_with_that_error_and_releases_its_jobs(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-STREAM-20 Q-STREAM-22 Q-ERR-03 X-28
    async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as stream:
        await hold_two_and_hand_over_one(queue, stream)

        async def fail(*_: object, **__: object) -> None:
            raise OSError("the disk is gone")

        with monkeypatch.context() as broken:
            broken.setattr(backend, "dequeue_jobs", fail)
            await queue.complete_job("delivered")
            await eventually(lambda: are(queue, S.FAILED_RETRY, ["undelivered"]))
            with pytest.raises(OSError, match="the disk is gone"):
                await anext(stream)
    assert (await queue.get_job("undelivered")).error_message == "the disk is gone"


@pytest.mark.slow
async def test_a_file_that_is_no_longer_a_database_ends_the_stream_with_that_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Q-STREAM-20 X-28
    caplog.set_level(logging.CRITICAL, "longshore")
    backend = SQLiteBackend(tmp_path / "jobs.db")
    async with Queue(backend) as queue, queue.stream_jobs("worker-1") as stream:
        await add(queue, "a")
        assert await receive_ids(stream) == ["a"]
        for name in ("jobs.db", "jobs.db-wal"):
            with (tmp_path / name).open("r+b") as file:
                file.write(os.urandom(200_000))
        with pytest.raises(BackendUnavailable):
            async with asyncio.timeout(TIMEOUT):
                await anext(stream)


@pytest.mark.postgres
async def test_a_server_that_was_stopped_ends_the_stream_with_that_error(caplog: pytest.LogCaptureFixture) -> None:
    # Q-STREAM-20 X-28
    caplog.set_level(logging.CRITICAL, "longshore")
    with Server() as server:
        backend = connect(server.url("postgres"), wait_seconds=1)
        async with Queue(backend) as queue, queue.stream_jobs("worker-1") as stream:
            await add(queue, "a")
            assert await receive_ids(stream) == ["a"]
            server.stop("immediate")
            with pytest.raises(BackendUnavailable):
                async with asyncio.timeout(TIMEOUT):
                    await anext(stream)


async def test_a_store_that_is_locked_for_a_moment_does_not_end_a_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    #
    backend = SQLiteBackend(tmp_path / "jobs.db", busy_seconds=0)
    other = SQLiteBackend(tmp_path / "jobs.db")
    async with other, Queue(backend) as queue:
        await add(queue, "a")
        holding = other.new_connection()
        holding.execute("BEGIN EXCLUSIVE")
        async with queue.stream_jobs("worker-1") as stream:
            await eventually(lambda: "trying again" in caplog.text)
            holding.execute("COMMIT")
            holding.close()
            assert await receive_ids(stream) == ["a"]


async def test_a_stream_that_is_ended_while_its_store_is_locked_ends_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    #
    backend = SQLiteBackend(tmp_path / "jobs.db", busy_seconds=0)
    other = SQLiteBackend(tmp_path / "jobs.db")
    async with other, Queue(backend) as queue:
        await add(queue, "a")
        holding = other.new_connection()
        holding.execute("BEGIN EXCLUSIVE")
        async with queue.stream_jobs("worker-1") as stream:
            await eventually(lambda: "trying again" in caplog.text)
            await stream.end()
            assert await consume(stream) == []
        holding.execute("COMMIT")
        holding.close()
        assert await are(queue, S.INITIAL_PENDING, ["a"])


# -- other loops, and loops that end


def in_another_loop(work: Callable[[], Awaitable[None]]) -> threading.Thread:
    """Run it in a thread with its own loop, as another part of the program would."""

    async def run() -> None:
        await work()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    return thread


async def test_a_stream_can_be_ended_from_another_loop(queue: Queue) -> None:
    # Q-CON-01 Q-STREAM-21
    async with queue.stream_jobs("worker-1", max_assigned_jobs=2) as stream:
        await hold_two_and_hand_over_one(queue, stream)
        thread = in_another_loop(lambda: stream.end("asked for from afar"))
        await asyncio.to_thread(thread.join, TIMEOUT)
        assert not thread.is_alive()
        assert (await queue.get_job("undelivered")).error_message == "asked for from afar"
        assert await consume(stream) == []


async def test_a_loop_that_ends_with_an_open_stream_releases_undelivered_jobs(backend: Backend, queue: Queue) -> None:
    # Q-STREAM-18 Q-STREAM-22 X-20
    mine = Queue(backend)

    async def leave_it_open() -> None:
        stream = mine.stream_jobs("worker-1", max_assigned_jobs=2)
        stream.start()
        await hold_two_and_hand_over_one(mine, stream)

    await asyncio.to_thread(in_another_loop(leave_it_open).join, TIMEOUT)
    assert await are(queue, S.FAILED_RETRY, ["undelivered"])
    assert await are(queue, S.RUNNING, ["delivered"])
    async with asyncio.timeout(TIMEOUT):
        await mine.close()
    async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
        assert len(await receive(stream)) == 1


async def test_a_stopped_loop_does_not_prevent_closing(backend: Backend, queue: Queue) -> None:
    # Q-CLO-01 Q-STREAM-22
    mine = Queue(backend)
    loop = asyncio.new_event_loop()

    async def leave_it_open() -> None:
        stream = mine.stream_jobs("worker-1", max_assigned_jobs=2)
        stream.start()
        await hold_two_and_hand_over_one(mine, stream)

    await asyncio.to_thread(loop.run_until_complete, leave_it_open())
    async with asyncio.timeout(TIMEOUT):
        await mine.close()
    assert await are(queue, S.FAILED_RETRY, ["undelivered"])

    def let_it_finish() -> None:
        tasks = asyncio.all_tasks(loop)
        loop.run_until_complete(asyncio.wait(tasks))
        loop.close()

    await asyncio.to_thread(let_it_finish)


async def test_jobs_claimed_while_the_loop_ends_are_released(tmp_path: Path) -> None:
    # Q-STREAM-18 Q-STREAM-22 X-20
    backend = SQLiteBackend(tmp_path / "jobs.db")
    other = SQLiteBackend(tmp_path / "jobs.db")
    await add(backend, "a")
    holding = other.new_connection()
    holding.execute("BEGIN IMMEDIATE")
    claiming, ending = threading.Event(), threading.Event()
    dequeue = backend.dequeue_jobs

    async def noted(*arguments: object, **options: object) -> object:
        claiming.set()
        return await dequeue(*arguments, **options)  # type: ignore[arg-type]  # passed on unchanged

    backend.dequeue_jobs = noted  # type: ignore[method-assign,assignment]  # records when the claim runs

    async def leave_it_open() -> None:
        Queue(backend).stream_jobs("worker-1").start()
        await asyncio.to_thread(claiming.wait, TIMEOUT)
        ending.set()

    thread = in_another_loop(leave_it_open)
    await asyncio.to_thread(ending.wait, TIMEOUT)
    holding.execute("COMMIT")
    holding.close()
    await asyncio.to_thread(thread.join, TIMEOUT)
    async with other:
        job = await other.get_job("a")
        assert (job.status, job.crashes) in [(S.FAILED_RETRY, 0), (S.INITIAL_PENDING, 0)]
    await backend.close()


@pytest.mark.slow
async def test_a_closed_loop_does_not_keep_its_leases(
    backend: Backend, queue: Queue, recwarn: pytest.WarningsRecorder
) -> None:
    #
    loop = asyncio.new_event_loop()
    await add(queue, "a")
    mine = Queue(backend)

    async def leave_it_open() -> JobStream:
        stream = mine.stream_jobs("worker-1", lease=1)
        await receive(stream)
        return stream

    def close_without_a_word() -> None:
        loop.run_until_complete(leave_it_open())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # the injected fault
        loop.close()

    await asyncio.to_thread(close_without_a_word)
    async with queue.stream_jobs("worker-2") as stream:
        [job] = await receive(stream)
        assert (job.id, job.crashes) == ("a", 1)
    await mine.close()
