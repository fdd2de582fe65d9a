"""A worker without faults: it takes a queue and a processor, and runs every job once."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

from longshore import Job, JobStatus, Queue, connect
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, QueueClosed
from longshore.runtime.running_job import RunningJob, current_job
from longshore.runtime.worker import Processor, Worker
from longshore.testing.conformance.scenarios import history, log_of, new_job, story
from tests.runtime.working import Gate, all_come_to, comes_to, happens, until, when, working

S = JobStatus


async def nothing(job: RunningJob) -> None:
    """A processor that does nothing."""


async def test_a_job_is_run_and_its_result_is_stored(backend: Backend, queue: Queue) -> None:
    # M-GOAL-01 M-WRK-01 M-WRK-02 M-WRK-12 M-WRK-16 M-TR-01 M-TR-04 M-TR-07 M-JM-03 M-EV-03 M-EV-04 X-70
    async def add(job: RunningJob) -> dict[str, int]:
        assert job.type == "add"
        assert job.status is S.RUNNING
        return {"sum": sum(job.data)}

    async with working(queue, add) as worker:
        added = await queue.add("add", [1, 2, 3])
        job = await comes_to(backend, added.id)
    assert job.status is S.COMPLETED
    assert job.result == b'{"sum":6}'
    assert job.executions == 1
    assert job.assignee_id == worker.id
    assert when(job.started_at) <= when(job.finalized_at)
    events = await history(backend, job.id)
    assert [event.event for event in events] == ["job.added", "job.active", "job.completed"]
    assert [event.queue for event in events] == ["default"] * 3
    assert events[1].assignee_id == worker.id
    assert (events[1].from_status, events[1].to_status) == (S.INITIAL_PENDING, S.RUNNING)


async def test_listeners_hear_of_a_job_s_start_and_end(backend: Backend, queue: Queue) -> None:
    # M-EV-03 M-EV-04 M-WRK-12
    heard: list[tuple[str, str | None]] = []
    queue.on("job.active", lambda event: heard.append((event.event, event.job_id)))
    queue.on("job.completed", lambda event: heard.append((event.event, event.job_id)))
    async with working(queue, nothing):
        await queue.add("ping", job_id="a")
        await until(lambda: len(heard) == 2)
    assert sorted(heard) == [("job.active", "a"), ("job.completed", "a")]


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "text", "", [], [1, [2]], {"a": {"b": None}}])
async def test_any_json_is_a_result(backend: Backend, queue: Queue, value: object) -> None:
    # M-WRK-16
    async def give(job: RunningJob) -> object:
        return value

    async with working(queue, give):
        await queue.add("give", job_id="a")
        job = await comes_to(backend, "a")
    assert job.status is S.COMPLETED
    if value is None:
        assert job.result is None
    else:
        assert Job(type="x", payload=job.result or b"").data == value


async def test_the_defaults_of_a_worker(backend: Backend, queue: Queue) -> None:
    # M-WRK-03 M-WRK-04 M-WRK-05 M-WRK-06 M-WRK-07 X-82
    gate = Gate()
    worker = Worker(queue, gate)  # it starts by itself
    try:
        await queue.add("a")
        await queue.add("b")
        await gate.has_begun()
        assert worker.concurrency == 1
        assert worker.running == 1
        counts = await backend.count_jobs()
        assert (counts[S.RUNNING], counts[S.INITIAL_PENDING]) == (1, 1)
        job = await backend.get_job(gate.begun[0])
        assert job.lease is not None
        assert round((when(job.lease.expires_at) - when(job.assigned_at)).total_seconds()) == 30
    finally:
        await worker.close(grace=0)


async def test_every_worker_has_its_own_id(backend: Backend, queue: Queue) -> None:
    # M-WRK-07
    workers = [Worker(queue, nothing, autorun=False) for _ in range(100)]
    assert len({worker.id for worker in workers}) == 100
    assert Worker(queue, nothing, autorun=False, id="crane-1").id == "crane-1"


async def test_a_worker_that_should_not_run_by_itself_waits_for_run(backend: Backend, queue: Queue) -> None:
    # M-WRK-06 M-WRK-08
    async with working(queue, nothing, autorun=False) as worker:
        job = await queue.add("a")
        assert worker.running == 0
        assert await backend.list_workers() == []
        running = asyncio.create_task(worker.run())
        await comes_to(backend, job.id, S.COMPLETED)
        await worker.close()
        await asyncio.wait_for(running, 10)


async def test_running_it_again_begins_nothing_new(backend: Backend, queue: Queue) -> None:
    # M-WRK-08
    gate = Gate()
    async with working(queue, gate) as worker:
        runs = [asyncio.create_task(worker.run()) for _ in range(3)]
        await queue.add("a")
        await queue.add("b")
        await gate.has_begun()
        assert worker.running == 1
        gate.open.set()
        await all_come_to(backend, S.COMPLETED, count=2)
        await worker.close()
        await asyncio.wait_for(asyncio.gather(*runs), 10)
        await asyncio.wait_for(worker.run(), 10)  # after the end it returns at once
        job = await queue.add("late")
        assert worker.running == 0
    assert (await backend.get_job(job.id)).status is S.INITIAL_PENDING
    assert sorted(await story(backend, gate.begun[0])) == ["job.active", "job.added", "job.completed"]


async def test_a_worker_until_empty_runs_all_jobs_and_those_they_add_and_ends(backend: Backend, queue: Queue) -> None:
    # M-WRK-08
    async def process(job: RunningJob) -> None:
        if job.data:
            await queue.add("x", job.data - 1)

    await queue.add_bulk([{"type": "x", "data": 3}] * 20)
    later = await queue.add("x", 0, delay=3600)
    worker = Worker(queue, process, concurrency=3, autorun=False, until_empty=True)
    await asyncio.wait_for(worker.run(), 20)
    assert (await backend.count_jobs())[S.COMPLETED] == 80
    assert (await backend.get_job(later.id)).status is S.INITIAL_PENDING
    assert [info.state for info in await backend.list_workers()] == ["stopped"]
    await asyncio.wait_for(worker.run(), 10)  # it has ended


async def test_a_worker_until_empty_runs_jobs_added_during_its_last_empty_claim(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-08
    look, looked = backend.settle_and_dequeue, asyncio.Event()

    async def answered_when_the_job_has_ended(*args: Any, **options: Any) -> Any:
        answer = await look(*args, **options)
        if worker.running and not looked.is_set():
            assert not answer[1]
            looked.set()
            await until(lambda: worker.running == 0)
        return answer

    async def process(job: RunningJob) -> None:
        if job.id == "first":
            await looked.wait()
            await queue.add("x", job_id="second")

    monkeypatch.setattr(backend, "settle_and_dequeue", answered_when_the_job_has_ended)
    await queue.add("x", job_id="first")
    worker = Worker(queue, process, concurrency=2, autorun=False, until_empty=True, poll_interval=0.05)
    await asyncio.wait_for(worker.run(), 20)
    assert (await backend.count_jobs())[S.COMPLETED] == 2


async def test_a_worker_closed_before_it_ran_never_runs(backend: Backend, queue: Queue) -> None:
    # M-WRK-08
    worker = Worker(queue, nothing, autorun=False)
    await worker.close()
    await asyncio.wait_for(worker.run(), 10)
    assert worker.running == 0
    assert await backend.list_workers() == []


def test_without_an_event_loop_it_waits_for_run() -> None:
    # M-WRK-06
    backend = connect("memory://")
    worker = Worker(Queue(backend), nothing)

    async def work() -> None:
        running = asyncio.create_task(worker.run())
        await backend.enqueue_job(new_job("a"))
        await comes_to(backend, "a", S.COMPLETED)
        await worker.close()
        await running

    asyncio.run(work())


async def test_a_worker_takes_a_queue_and_a_function(backend: Backend, queue: Queue) -> None:
    # M-WRK-01 M-WRK-21
    anything: Any = backend
    with pytest.raises(InvalidArgument, match="queue"):
        Worker(anything, nothing)
    anything = None
    with pytest.raises(InvalidArgument, match="queue"):
        Worker(anything, nothing)
    anything = "a function"
    with pytest.raises(InvalidArgument, match="process"):
        Worker(queue, anything)
    closed = Queue(backend)
    await closed.close()
    with pytest.raises(QueueClosed):
        Worker(closed, nothing)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("concurrency", True),
        ("concurrency", 1.5),
        ("lock_duration", 0),
        ("lock_duration", "30"),
        ("lock_renew_time", -1),
        ("cancel_grace", -1),
        ("poll_interval", 0),
        ("tags", "eu"),
        ("tags", [""]),
        ("queues", "mail"),
        ("id", ""),
        ("strategies", {"slowly": 5}),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused_by_name(
    backend: Backend, queue: Queue, field: str, value: object
) -> None:
    # M-WRK-01
    options: Any = {field: value}
    with pytest.raises(InvalidArgument, match=field):
        Worker(queue, nothing, **options)


async def test_jobs_are_taken_by_priority_then_lifo_then_age(backend: Backend, queue: Queue) -> None:
    # M-GOAL-02 M-SQL-03
    done: list[str] = []

    async def note(job: RunningJob) -> None:
        done.append(job.id)

    await queue.add("x", job_id="old")
    await queue.add("x", job_id="new")
    await queue.add("x", job_id="pushed", lifo=True)
    await queue.add("x", job_id="pushed later", lifo=True)
    await queue.add("x", job_id="urgent", priority=-1)
    await queue.add("x", job_id="patient", priority=5)
    async with working(queue, note):
        await all_come_to(backend, S.COMPLETED, count=6)
    assert done == ["urgent", "pushed later", "pushed", "old", "new", "patient"]


async def test_a_delayed_job_starts_at_its_time_and_not_before(
    backend: Backend, queue: Queue, clock: HeldClock
) -> None:
    # M-GOAL-02 M-GOAL-04 M-TR-02 M-TR-05 M-WRK-10 M-SQL-06
    async with working(queue, nothing, poll_interval=0.02):
        await queue.add("later", job_id="later", delay=60)
        await queue.add("now", job_id="now")
        await comes_to(backend, "now", S.COMPLETED)
        clock.advance(59.9)
        await queue.add("now", job_id="a minute on")
        await comes_to(backend, "a minute on", S.COMPLETED)
        assert (await backend.get_job("later")).status is S.INITIAL_PENDING
        clock.advance(0.2)  # no notification: it polls
        job = await comes_to(backend, "later", S.COMPLETED)
    assert job.run_at is not None
    assert when(job.started_at) >= when(job.run_at)


async def test_an_idle_worker_is_woken_by_a_new_job_and_not_by_the_next_look(backend: Backend, queue: Queue) -> None:
    # M-WRK-10 M-SQL-06
    async with working(queue, nothing, poll_interval=600):
        await queue.add("x", job_id="first")
        await comes_to(backend, "first", S.COMPLETED)
        await queue.add("x", job_id="second")
        await comes_to(backend, "second", S.COMPLETED)


async def test_a_worker_is_notified_of_jobs_that_another_process_adds(
    backend: Backend, other_backend: Backend, queue: Queue
) -> None:
    # M-GOAL-01 M-EV-18
    async with working(queue, nothing):
        await other_backend.enqueue_job(new_job("a"))
        await comes_to(other_backend, "a", S.COMPLETED)


async def test_a_worker_takes_only_jobs_that_carry_all_its_tags(backend: Backend, queue: Queue) -> None:
    await queue.add("x", job_id="neither")
    await queue.add("x", job_id="one", tags=["eu"])
    await queue.add("x", job_id="both", tags=["gpu", "eu"])
    async with working(queue, nothing, tags=["eu", "gpu"], concurrency=3):
        await comes_to(backend, "both", S.COMPLETED)
        await queue.add("x", job_id="both again", tags=["eu", "gpu"])
        await comes_to(backend, "both again", S.COMPLETED)
    assert (await backend.count_jobs())[S.INITIAL_PENDING] == 2


async def test_a_worker_claims_from_its_queue_or_from_the_given_queues(
    backend: Backend, queue: Queue, mail: Queue
) -> None:
    # M-WRK-01
    other, third = Queue(backend, "other"), Queue(backend, "third")
    async with working(mail, nothing, concurrency=3):
        await other.add("x", job_id="o")
        await mail.add("x", job_id="m")
        await comes_to(backend, "m", S.COMPLETED)
        assert (await backend.get_job("o")).status is S.INITIAL_PENDING
    async with working(queue, nothing, queues=["other", "third"], concurrency=3):
        await mail.add("x", job_id="m2")
        await third.add("x", job_id="t")
        await comes_to(backend, "o", S.COMPLETED)
        await comes_to(backend, "t", S.COMPLETED)
        assert (await backend.get_job("m2")).status is S.INITIAL_PENDING
    async with working(queue, nothing):
        await comes_to(backend, "m2", S.COMPLETED)


async def test_a_paused_queue_starts_no_job_and_running_jobs_continue(backend: Backend, mail: Queue) -> None:
    # M-QUE-10 X-99
    gate = Gate()
    async with working(mail, gate, concurrency=2):
        await mail.add("x", job_id="running")
        await gate.has_begun()
        await mail.pause()
        await mail.add("x", job_id="waiting")
        gate.open.set()
        await comes_to(backend, "running", S.COMPLETED)
        assert (await backend.get_job("waiting")).status is S.INITIAL_PENDING
        await mail.resume()
        await comes_to(backend, "waiting", S.COMPLETED)


async def test_current_job_is_known_wherever_the_processor_goes(backend: Backend, queue: Queue) -> None:
    # M-WRK-02
    seen: dict[str, str] = {}

    async def deeper(name: str) -> None:
        seen[name] = current_job().id

    async def process(job: RunningJob) -> None:
        assert current_job() is job
        await deeper(f"{job.id} called")
        await asyncio.create_task(deeper(f"{job.id} in a task"))
        seen[f"{job.id} in a thread"] = await asyncio.to_thread(lambda: current_job().id)

    def process_in_thread(job: RunningJob) -> None:
        assert current_job() is job
        seen[f"{job.id} def"] = current_job().id

    await queue.add("x", job_id="a")
    await queue.add("x", job_id="b")
    async with working(queue, process, concurrency=2):
        await all_come_to(backend, S.COMPLETED, count=2)
    await queue.add("x", job_id="c")
    async with working(queue, process_in_thread):
        await all_come_to(backend, S.COMPLETED, count=3)
    assert seen == {
        **{f"{name} {where}": name for name in "ab" for where in ("called", "in a task", "in a thread")},
        "c def": "c",
    }
    with pytest.raises(Exception, match="no job runs here"):
        current_job()


async def test_a_processor_may_be_any_callable(backend: Backend, queue: Queue) -> None:
    # M-WRK-02
    class Greeter:
        async def __call__(self, job: RunningJob) -> str:
            return f"hello {threading.current_thread().name}"

        def in_thread(self, job: RunningJob) -> str:
            return f"hello {threading.current_thread().name}"

    async def greet(greeting: str, job: RunningJob) -> str:
        return greeting

    here = threading.current_thread().name
    processors: list[tuple[Processor, str]] = [
        (Greeter(), f'"hello {here}"'),
        (Greeter().in_thread, '"hello longshore-processor"'),
        (functools.partial(greet, "good day"), '"good day"'),
        (lambda _: 42, "42"),
    ]
    for number, (process, expected) in enumerate(processors):
        async with working(queue, process):
            await queue.add("x", job_id=f"job {number}")
            job = await comes_to(backend, f"job {number}")
            assert (job.status, job.result) == (S.COMPLETED, expected.encode())


async def test_the_worker_reports_itself(backend: Backend, mail: Queue) -> None:
    # M-WRK-07
    gate = Gate()
    async with working(mail, gate, concurrency=3, tags=["eu"], lock_duration=0.6) as worker:
        await mail.add("x", tags=["eu"])
        await gate.has_begun()

        async def told() -> bool:
            return any(info.running == 1 for info in await backend.list_workers())

        await until(told)
        [info] = await backend.list_workers()
        assert (info.id, info.queues, info.tags, info.concurrency) == (worker.id, ("mail",), ("eu",), 3)
        assert (info.state, info.pid > 0) == ("running", True)
        assert when(info.started_at) <= when(info.seen_at)
        began = info.started_at
        gate.open.set()
        await worker.close()
    [info] = await backend.list_workers()
    assert (info.state, info.running, info.started_at) == ("stopped", 0, began)


@pytest.mark.slow
async def test_a_worker_that_has_had_jobs_and_finds_no_more_says_that_it_is_drained(
    backend: Backend, mail: Queue
) -> None:
    # M-EV-14
    gate = Gate()
    async with working(mail, gate) as worker:
        await mail.add("x")
        await gate.has_begun()
        gate.open.set()
        event = await happens(backend, "worker.drained")
        assert event.queue == "mail"
        assert event.job_id is None
        assert event.assignee_id == worker.id
        await mail.add("x")

        async def drained_again() -> bool:
            return [event.event for event in await log_of(backend)].count("worker.drained") > 1

        await until(drained_again)
    told = [event.event for event in await log_of(backend) if event.event in ("job.completed", "worker.drained")]
    assert told == ["job.completed", "worker.drained"] * 2  # once each time, and after its jobs
