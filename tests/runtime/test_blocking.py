"""Blocking operations: done when they return; a caller's connection stays in the caller's thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import queue as plain_queues
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from longshore import Job, JobEvent, JobFilter, JobStatus, Queue, Repeat, connect
from longshore.backends.base import Backend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import InvalidArgument, JobNotFound, QueueClosed
from longshore.runtime import background
from longshore.runtime.queue import SyncQueue
from longshore.testing.conformance.scenarios import new_job

S = JobStatus
IN_TIME = 20


@pytest.fixture
def blocking(store_url: str) -> Iterator[SyncQueue]:
    """A queue in code without an event loop."""
    with Queue(connect(store_url)).sync as opened:
        yield opened


def test_every_verb_of_a_queue_is_there_with_the_same_arguments() -> None:
    # Q-API-01
    verbs = [name for name, _ in inspect.getmembers(Queue, inspect.isfunction) if not name.startswith("_")]
    verbs.remove("register_worker")  # for workers, which need a loop
    for verb in verbs:
        ours, theirs = getattr(SyncQueue, verb), getattr(Queue, verb)
        assert not inspect.iscoroutinefunction(ours), verb
        if verb not in ("add", "on"):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), verb
        assert ours.__doc__, verb


def test_a_job_lives_its_life_without_a_loop(blocking: SyncQueue) -> None:
    # Q-API-01 M-QUE-02 M-QUE-03 M-QUE-04
    job = blocking.add("email", {"to": "ada"}, attempts=3, tags=["eu"])
    assert (job.data, job.max_attempts, job.tags) == ({"to": "ada"}, 3, ("eu",))
    assert [other.type for other in blocking.add_bulk([("a", 1), {"type": "b"}])] == ["a", "b"]
    assert blocking.enqueue_job(new_job("j1")) == "j1"
    assert blocking.enqueue_jobs([new_job("j2")]) == ["j2"]
    [claimed] = blocking.dequeue_jobs("w", ["eu"])
    assert claimed.lease is not None
    assert list(blocking.extend_leases({claimed.id: claimed.lease}, 60)) == [claimed.id]
    blocking.set_progress(claimed.id, 50, lease=claimed.lease)
    blocking.complete_job(claimed.id, b"1", lease=claimed.lease)
    assert blocking.get_job(job.id).status is S.COMPLETED
    assert blocking.get_job_counts()["COMPLETED"] == 1
    assert [found.id for found in blocking.list_jobs(JobFilter(tags=["eu"])).items] == [job.id]
    assert [event.event for event in blocking.read_events(job_id=job.id)][-1] == "job.completed"
    with pytest.raises(JobNotFound):
        blocking.get_job("nobody")


def test_a_repeated_job_is_a_schedule(blocking: SyncQueue) -> None:
    #
    schedule = blocking.add("report", repeat=Repeat(every=60))
    assert [found.id for found in blocking.get_schedules()] == [schedule.id]


def test_a_closed_queue_is_closed_for_both(store_url: str) -> None:
    # X-30 Q-CLO-02
    queue = Queue(connect(store_url), "mail")
    with queue.sync as blocking:
        assert (blocking.name, blocking.closed) == ("mail", False)
    assert queue.closed
    assert blocking.closed
    blocking.close()
    with pytest.raises(QueueClosed):
        blocking.add("email")


def test_a_stream_is_consumed_in_a_plain_loop(blocking: SyncQueue) -> None:
    # Q-PAT-01 Q-CLO-01
    jobs = {job.id for job in blocking.add_bulk([("a", number) for number in range(5)])}
    done = set()
    with blocking.stream_jobs("w", max_assigned_jobs=2) as stream:
        for batch in stream:
            for job in batch:
                blocking.complete_job(job.id)
                done.add(job.id)
            if done == jobs:
                break
    assert blocking.count_jobs()[S.COMPLETED] == 5
    with blocking.stream_jobs("w") as stream:
        blocking.close()
        assert list(stream) == []


def test_a_listener_is_a_plain_function_in_another_thread(blocking: SyncQueue) -> None:
    # M-QUE-11 M-EV-02
    heard: plain_queues.Queue[tuple[JobEvent, threading.Thread]] = plain_queues.Queue()
    unsubscribe = blocking.on("job.added", lambda event: heard.put((event, threading.current_thread())))
    jobs = [blocking.add("email").id for _ in range(3)]
    found = [heard.get(timeout=IN_TIME) for _ in range(3)]
    assert [event.job_id for event, _ in found] == jobs
    assert {thread.name for _, thread in found}.isdisjoint({"longshore-background", threading.current_thread().name})
    unsubscribe()

    async def asynchronous(event: JobEvent) -> None: ...

    with pytest.raises(InvalidArgument, match="plain function"):
        blocking.on("job.added", asynchronous)
    with pytest.raises(InvalidArgument, match="event"):
        blocking.on("job.bedded", print)


def test_slow_listeners_hold_up_neither_one_another_nor_the_closing(store_url: str) -> None:
    go_on, heard = threading.Event(), threading.Event()
    with Queue(connect(store_url)).sync as queue:
        slow = min(32, (os.cpu_count() or 1) + 4)  # as many threads as an event loop has
        unsubscribe = [queue.on("job.added", lambda _: go_on.wait(IN_TIME)) for _ in range(slow)]
        queue.on("job.added", lambda _: heard.set())
        queue.add("x")
        assert heard.wait(IN_TIME)
        closing = threading.Thread(target=queue.close)
        closing.start()
        closing.join(IN_TIME)
        assert not closing.is_alive()
        assert not go_on.is_set()
        go_on.set()
    pause, until = threading.Event(), time.perf_counter() + IN_TIME
    while any(thread.name == "longshore-listener" for thread in threading.enumerate()):
        assert time.perf_counter() < until, "the threads of listeners end with them"
        pause.wait(0.01)
    assert len(unsubscribe) == slow  # they are kept


class Interrupted(Exception):
    """Raised by a signal handler."""


@contextmanager
def interrupted_soon() -> Iterator[None]:
    """Interrupt the block by a signal, like the timeout of a web server."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_exception_raised_into_the_waiting_thread_calls_the_work_off() -> None:
    called_off = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            called_off.set()

    with interrupted_soon():
        background.run(waits())
    assert called_off.wait(IN_TIME)


def test_an_undelivered_batch_is_delivered_next_time_or_released(blocking: SyncQueue) -> None:
    with blocking.stream_jobs("w", max_assigned_jobs=5) as stream:
        with interrupted_soon():
            next(stream)
        job = blocking.add("x")
        assert [taken.id for taken in next(stream)] == [job.id]
        blocking.complete_job(job.id)
        with interrupted_soon():
            next(stream)
        other = blocking.add("y")
        assert stream._pending is not None
        stream._pending.result(IN_TIME)
    assert blocking.get_job(other.id).status is S.FAILED_RETRY


async def test_inside_an_event_loop_it_refuses_to_block(queue: Queue) -> None:
    # Q-CON-01
    calls: list[Any] = [
        lambda: queue.sync.add("email"),
        lambda: queue.sync.get_job("x"),
        lambda: queue.sync.add("email", connection=object()),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="await"):
            call()


def test_many_threads_use_one_queue(blocking: SyncQueue) -> None:
    # Q-CON-01
    def add_some() -> None:
        for number in range(10):
            blocking.add("email", number)

    threads = [threading.Thread(target=add_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blocking.count_jobs()[S.INITIAL_PENDING] == 40


# -- in the caller's transaction

KINDS = ("driver", "sqlalchemy connection", "sqlalchemy session")


@contextmanager
def transaction_of(backend: Backend, url: str, kind: str, *, commits: bool) -> Iterator[object]:
    """A connection of the caller with an open transaction, which ends as requested."""
    if isinstance(backend, SQLiteBackend):
        connection = backend.new_connection()
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT" if commits else "ROLLBACK")
        connection.close()
        return
    opened: Any
    if kind == "driver":
        opened = psycopg.connect(url)
    else:
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool)
        opened = engine.connect() if kind == "sqlalchemy connection" else Session(engine)
    yield opened
    if commits:
        opened.commit()
    else:
        opened.rollback()
    opened.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_is_added_in_the_callers_transaction_and_thread(blocking: SyncQueue, store_url: str, kind: str) -> None:
    # M-QUE-02
    backend = blocking.queue.backend
    if not backend.capabilities.joins_transactions:
        with pytest.raises(InvalidArgument):
            blocking.add("email", connection=object())
        return
    if isinstance(backend, SQLiteBackend) and kind != "driver":
        pytest.skip("SQLite is joined through its own driver only")
    blocking.count_jobs()
    for commits, found in ((False, 0), (True, 4)):
        with transaction_of(backend, store_url, kind, commits=commits) as connection:
            job = blocking.add("email", {"to": "ada"}, connection=connection)
            blocking.add_bulk([("a", 1), ("b", 2)], connection=connection)
            blocking.enqueue_jobs([Job(type="c")], connection=connection)
            assert blocking.count_jobs()[S.INITIAL_PENDING] == 0
        assert blocking.count_jobs()[S.INITIAL_PENDING] == found
    assert blocking.get_job(job.id).data == {"to": "ada"}


def test_the_callers_connection_is_used_by_the_callers_thread_alone(tmp_path: Any) -> None:
    # M-QUE-02
    users = set()
    backend = SQLiteBackend(tmp_path / "jobs.db")
    with Queue(backend).sync as blocking:
        blocking.count_jobs()
        connection = backend.new_connection()

        def note_thread(*_: object) -> bool:
            users.add(threading.current_thread())
            return True

        connection.set_exec_trace(note_thread)
        connection.execute("BEGIN IMMEDIATE")
        blocking.add("email", connection=connection)
        connection.execute("COMMIT")
        connection.set_exec_trace(None)
        connection.close()
    assert users == {threading.current_thread()}
    assert isinstance(connection, apsw.Connection)


async def test_an_async_connection_is_refused_with_advice(postgres_url: str) -> None:
    # M-QUE-02
    def add_it(queue: Queue, connection: object) -> str:
        with pytest.raises(InvalidArgument) as refusal:
            queue.sync.add("email", connection=connection)
        return str(refusal.value)

    async with Queue(connect(postgres_url)) as queue, await psycopg.AsyncConnection.connect(postgres_url) as connection:
        told: list[str] = []
        thread = threading.Thread(target=lambda: told.append(add_it(queue, connection)))
        thread.start()
        thread.join()
    assert "await queue.add" in told[0]
