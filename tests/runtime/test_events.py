"""Listeners: durable, in order, across processes, and independent of each other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from longshore import JobEvent, JobStatus, Outcome, Queue
from longshore.backends.base import Backend
from longshore.backends.operations import admin, schedules
from longshore.core import transitions
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable, CursorExpired, InvalidArgument
from longshore.runtime import events as event_module
from longshore.testing.conformance.scenarios import claim, history, job_in, new_job
from tests.runtime.conftest import OpenBackend
from tests.runtime.streaming import eventually

S = JobStatus
IN_TIME = 20
"""Seconds on a busy machine; the waits take milliseconds."""


class Ear:
    """A listener that keeps its events; wait for them with `heard`."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self._arrived = asyncio.Event()

    def __call__(self, event: JobEvent) -> None:
        self.events.append(event)
        self._arrived.set()

    @property
    def names(self) -> list[str]:
        return [event.event for event in self.events]

    async def heard(self, until: Callable[[Ear], bool]) -> None:
        """Wait until this holds for its events."""
        async with asyncio.timeout(IN_TIME):
            while not until(self):
                self._arrived.clear()
                await self._arrived.wait()

    async def of(self, count: int) -> list[str]:
        """Return the names of this many events, once they have arrived."""
        await self.heard(lambda ear: len(ear.events) >= count)
        return self.names


async def live_through_it(queue: Queue, job_id: str) -> None:
    """Run a job that fails once."""
    [job] = await queue.dequeue_jobs("w", limit=1)
    assert job.id == job_id
    await queue.set_progress(job_id, 50)
    await queue.append_log(job_id, "half")
    await queue.fail_job(job_id, "no")
    await queue.dequeue_jobs("w")
    await queue.complete_job(job_id, b"1")
    await queue.remove_job(job_id)


WHOLE_LIFE = [
    *("job.added", "job.active", "job.progress", "job.log_added", "job.failed", "job.promoted"),
    *("job.active", "job.completed", "job.removed"),
]


async def test_a_listener_gets_what_was_added_right_after_its_start(queue: Queue) -> None:
    # M-EV-02 M-QUE-02 M-QUE-11 M-EV-01
    ear = Ear()
    queue.on("job.added", ear)
    job = await queue.add("email", {"to": "ada"})
    assert await ear.of(1) == ["job.added"]
    [event] = ear.events
    assert (event.queue, event.job_id, event.type, event.to_status) == ("default", job.id, "email", S.INITIAL_PENDING)
    assert (event.job_uid, event.job_seq) == (job.uid, 1)


async def test_a_listener_gets_what_another_queue_of_the_backend_adds_right_after_it_started(backend: Backend) -> None:
    # M6 M-QUE-11 M-EV-16
    listening, adding = Queue(backend), Queue(backend)
    ear = Ear()
    jobs = []
    for _ in range(20):
        end = listening.on("job.added", ear)
        jobs.append((await adding.add("email")).id)
        await ear.of(len(jobs))
        end()
    assert [event.job_id for event in ear.events] == jobs


async def test_a_listener_gets_what_another_process_adds_right_after_it_started(
    queue: Queue, other_backend: Backend
) -> None:
    # M6 M-EV-18
    await other_backend.count_jobs()
    ear = Ear()
    queue.on("job.added", ear)
    job_id = await other_backend.enqueue_job(new_job())
    await ear.of(1)
    assert [event.job_id for event in ear.events] == [job_id]


def test_a_blocking_listener_gets_what_another_queue_adds_right_after_it_started(
    backend: Backend, store_url: str
) -> None:
    # M6
    heard: SimpleQueue[str | None] = SimpleQueue()
    listening, adding = Queue(backend), Queue(backend)
    keeper = Queue(backend)
    listening.sync.on("job.added", lambda event: heard.put(event.job_id))
    job = adding.sync.add("email")
    assert heard.get(timeout=IN_TIME) == job.id
    listening.sync.close()
    adding.sync.close()
    assert not keeper.closed


async def test_a_store_that_does_not_return_the_end_of_its_log_in_time_refuses_the_listener(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M6
    assert event_module.END_WITHIN == 1.0

    async def never() -> str:
        await asyncio.Event().wait()
        raise AssertionError

    with monkeypatch.context() as silent:
        silent.setattr(event_module, "END_WITHIN", 0.01)
        silent.setattr(backend, "end_of_events", never)
        began = monotonic()
        with pytest.raises(BackendUnavailable, match=r"call on\(\) again"):
            queue.on("job.added", Ear())
        assert monotonic() - began < 5, "it waits no longer than END_WITHIN"
    ear = Ear()
    queue.on("job.added", ear)
    await queue.add("email")
    await ear.of(1)


LIFE = ("job.added", "job.active", "job.completed")


@pytest.mark.parametrize("kind", ["plain", "async", "suspends"])
async def test_separate_listeners_get_one_jobs_events_in_order(queue: Queue, kind: str) -> None:
    # M2 M-EV-01
    heard: dict[str | None, list[str]] = {}

    def plain(event: JobEvent) -> None:
        heard.setdefault(event.job_id, []).append(event.event)

    async def asynchronous(event: JobEvent) -> None:
        plain(event)

    async def suspends(event: JobEvent) -> None:
        await asyncio.sleep(0)
        plain(event)

    listener = {"plain": plain, "async": asynchronous, "suspends": suspends}[kind]
    for name in reversed(LIFE):
        queue.on(name, listener)
    count = 60

    async def live(number: int) -> None:
        await queue.add("email", job_id=f"j{number}")
        for job in await queue.dequeue_jobs("w"):
            await queue.complete_job(job.id)

    await asyncio.gather(*(live(number) for number in range(count)))
    while left := await queue.dequeue_jobs("w"):
        await queue.complete_job(left[0].id)
    await eventually(lambda: sum(map(len, heard.values())) == 3 * count)
    assert {job_id: names for job_id, names in heard.items() if names != list(LIFE)} == {}


def test_separate_blocking_listeners_get_one_jobs_events_in_order(backend: Backend, store_url: str) -> None:
    # M2 M-EV-01
    heard: SimpleQueue[tuple[str | None, str]] = SimpleQueue()
    keeper, queue = Queue(backend), Queue(backend)
    for name in reversed(LIFE):
        queue.sync.on(name, lambda event: heard.put((event.job_id, event.event)))
    for number in range(30):
        queue.sync.add("email", job_id=f"j{number}")
        for job in queue.sync.dequeue_jobs("w"):
            queue.sync.complete_job(job.id)
    told: dict[str | None, list[str]] = {}
    for _ in range(90):
        job_id, event = heard.get(timeout=IN_TIME)
        told.setdefault(job_id, []).append(event)
    queue.sync.close()
    assert {job_id: names for job_id, names in told.items() if names != list(LIFE)} == {}
    assert not keeper.closed


async def test_a_single_long_call_does_not_change_the_order_of_separate_listeners(queue: Queue) -> None:
    # M2 M-EV-01
    heard: list[str] = []

    async def active(event: JobEvent) -> None:
        with suppress(TimeoutError):  # the injected fault: one long call
            await asyncio.wait_for(asyncio.Event().wait(), 0.2)
        heard.append(event.event)

    queue.on("job.completed", lambda event: heard.append(event.event))
    queue.on("job.active", active)
    await queue.add("email")
    for job in await queue.dequeue_jobs("w"):
        await queue.complete_job(job.id)
    await eventually(lambda: len(heard) == 2)
    assert heard == ["job.active", "job.completed"]


async def test_a_queue_reads_the_log_once_for_all_of_its_listeners(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M2
    places: list[Any] = []
    read = backend.read_events

    async def counted(*args: Any, **kwargs: Any) -> list[JobEvent]:
        found = await read(*args, **kwargs)
        places.extend(event.cursor for event in found)
        return found

    monkeypatch.setattr(backend, "read_events", counted)
    ears = [Ear() for _ in range(5)]
    for ear in ears:
        queue.on("job.added", ear)
    for _ in range(10):
        await queue.add("email")
    for ear in ears:
        await ear.of(10)
    assert len(places) == len(set(places)) == 10


@pytest.mark.slow
async def test_a_listener_whose_buffer_is_full_continues_from_the_log_and_misses_no_event(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # M2
    assert event_module.BUFFERED == 1_000
    monkeypatch.setattr(event_module, "BUFFERED", 5)
    quick, slow, free = Ear(), Ear(), asyncio.Event()

    async def slowly(event: JobEvent) -> None:
        await free.wait()
        slow(event)

    queue.on("job.added", slowly)
    queue.on("job.added", quick)
    with caplog.at_level(logging.WARNING, "longshore.events"):
        jobs = [(await queue.add("email")).id for _ in range(30)]
        await quick.of(30)
        free.set()
        await slow.of(30)
        free.clear()
        jobs += [(await queue.add("email")).id for _ in range(30)]
        await quick.of(60)
        free.set()
        await slow.of(60)
        jobs += [(await queue.add("email")).id for _ in range(3)]
        await slow.of(63)
        await quick.of(63)
    assert [event.job_id for event in slow.events] == jobs
    assert [event.job_id for event in quick.events] == jobs
    assert len(caplog.records) == 1
    assert "reads them from the log" in caplog.text


async def test_a_listener_gets_no_earlier_events(queue: Queue) -> None:
    # M-EV-17
    await queue.add("before")
    ear = Ear()
    queue.on("*", ear)
    after = await queue.add("after")
    await ear.of(1)
    assert [event.job_id for event in ear.events] == [after.id]


async def test_a_listener_gets_one_event_name_or_all_with_a_star_in_order(queue: Queue, backend: Backend) -> None:
    # M-EV-01 M-EV-06 M-EV-10 M-EV-11 M-QUE-11
    everything, ends = Ear(), Ear()
    queue.on("*", everything)
    queue.on("job.completed", ends)
    job = await queue.add("email")
    await live_through_it(queue, job.id)
    assert await everything.of(len(WHOLE_LIFE)) == WHOLE_LIFE
    assert await ends.of(1) == ["job.completed"]
    assert [event.job_seq for event in everything.events] == list(range(1, len(WHOLE_LIFE) + 1))
    stored = await history(backend, job.id)
    assert [(event.cursor, event.to_status) for event in everything.events] == [
        (event.cursor, event.to_status) for event in stored
    ]


async def test_the_events_of_a_job_carry_the_job_and_its_result(queue: Queue, backend: Backend) -> None:
    # M3 M-EV-02 M-EV-03 M-EV-04
    ear = Ear()
    for name in LIFE:
        queue.on(name, ear)
    job = await queue.add("email", {"to": "ada"})
    await ear.of(1)
    await claim(backend)
    await ear.of(2)
    await queue.complete_job(job.id, b'{"sent": 1}')
    await ear.of(3)
    added, active, completed = ear.events
    assert (added.detail["job"].id, added.detail["job"].data) == (job.id, {"to": "ada"})
    assert (active.detail["job"].id, active.detail["job"].status) == (job.id, S.RUNNING)
    assert completed.detail == {"result": {"sent": 1}}
    [stored] = [event for event in await history(backend, job.id) if event.event == "job.completed"]
    assert stored.detail == {}, "an ordinary completion writes no result into the log"


RESULTS: dict[str, tuple[bytes | None, dict[str, Any]]] = {
    "json": (b'{"sent": 1}', {"result": {"sent": 1}}),
    "none": (None, {"result": None}),
    "bytes": (b"\xff\x00", {"result_base64": "/wA="}),
    "not a number": (b"NaN", {"result_base64": "TmFO"}),
    "half a pair": (b'"\\ud800"', {"result_base64": b64encode(b'"\\ud800"').decode()}),
    "deep": (b"[" * 4_000 + b"]" * 4_000, {"result_base64": b64encode(b"[" * 4_000 + b"]" * 4_000).decode()}),
    "just small enough": (b'"' + b"x" * 8_190 + b'"', {"result": "x" * 8_190}),
    "large": (b'"' + b"x" * 8_191 + b'"', {"result_omitted": 8_193}),
}


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "kept"])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
async def test_a_listener_gets_the_result_even_if_the_job_is_removed_on_completion(
    queue: Queue, backend: Backend, removed: bool, result: tuple[bytes | None, dict[str, Any]]
) -> None:
    # M3 M-EV-04
    given, told = result
    ear = Ear()
    queue.on("job.completed", ear)
    job = await queue.add("email", remove_on_complete=removed)
    [claimed] = await queue.dequeue_jobs("w")
    await queue.settle_jobs([Outcome(job.id, claimed.lease, result=given)])
    await ear.of(1)
    assert ear.events[0].detail == told
    [stored] = [event for event in await history(backend, job.id) if event.event == "job.completed"]
    assert stored.detail == (told if removed else {})


async def test_an_event_carries_the_size_of_a_job_that_is_too_large(queue: Queue) -> None:
    # M3 M-EV-02
    ear = Ear()
    queue.on("job.added", ear)
    await queue.enqueue_job(new_job(payload=b'"' + b"x" * event_module.SHOWN_JOB + b'"'))
    await ear.of(1)
    assert ear.events[0].detail == {"job_omitted": event_module.SHOWN_JOB + 2}


async def test_failed_attempts_and_scheduled_retries_have_aliases(queue: Queue, backend: Backend) -> None:
    # M8 M-EV-15 X-89 X-91
    failed, scheduled, everything = Ear(), Ear(), Ear()
    queue.on("job.attempt_failed", failed)
    queue.on("job.retry_scheduled", scheduled)
    queue.on("*", everything)
    await queue.add("later", delay=60, job_id="later")
    job = await queue.add("email")
    await claim(backend)
    await queue.fail_job(job.id, "once", retry_at=60)
    await queue.promote_job(job.id)
    await claim(backend)
    await queue.bury_job(job.id, "for good")
    await everything.heard(lambda ear: "job.dead" in ear.names)
    assert [(event.event, event.detail["error"]) for event in failed.events] == [("job.failed", "once")]
    assert [(event.event, event.job_id) for event in scheduled.events] == [("job.delayed", job.id)]


async def test_listeners_get_waiting_for_dependencies_and_their_completion(queue: Queue, backend: Backend) -> None:
    # M-EV-15 X-91
    ear = Ear()
    queue.on("job.waiting_children", ear)
    queue.on("job.dependencies_completed", ear)
    first = await queue.add("first")
    second = await queue.add("second", depends_on=[first.id])
    await claim(backend)
    await queue.complete_job(first.id)
    assert await ear.of(2) == ["job.waiting_children", "job.dependencies_completed"]
    waiting, ready = ear.events
    assert (waiting.job_id, waiting.detail) == (second.id, {"waiting_for": 1})
    assert (ready.job_id, ready.from_status, ready.to_status) == (second.id, S.WAITING_CHILDREN, S.INITIAL_PENDING)


async def test_a_failure_event_says_whether_it_was_final(queue: Queue, backend: Backend) -> None:
    # M-EV-05 X-89
    ear = Ear()
    queue.on("job.failed", ear)
    job = await queue.add("email")
    await claim(backend)
    await queue.fail_job(job.id, "once")
    await claim(backend)
    await queue.bury_job(job.id, "for good")
    await ear.of(2)
    assert [(event.detail["final"], event.detail["error"]) for event in ear.events] == [
        (False, "once"),
        (True, "for good"),
    ]


async def test_delays_promotions_and_crashes_are_events(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    # M-EV-07 M-EV-08 M-EV-09
    ear = Ear()
    for name in ("job.delayed", "job.promoted", "job.stalled"):
        queue.on(name, ear)
    job = await queue.add("later", delay=60)
    await ear.of(1)
    await queue.promote_job(job.id)
    await ear.of(2)
    await claim(backend)
    await queue.fail_job(job.id, "no", retry_at=60)
    await ear.of(3)
    clock.advance(60)
    await claim(backend)
    clock.advance(31)
    await queue.reclaim_expired_leases()
    assert (await ear.of(5))[:3] == ["job.delayed", "job.promoted", "job.delayed"]
    assert sorted(ear.names[3:]) == ["job.promoted", "job.stalled"]
    delayed = [event for event in ear.events if event.event == "job.delayed"]
    assert [event.detail["until"] for event in delayed] == [
        int((event.occurred_at.timestamp() + 60) * 1_000_000) for event in delayed
    ]


async def test_pausing_and_resuming_a_queue_are_events(queue: Queue, mail: Queue) -> None:
    # M-EV-12 M-QUE-10
    ear = Ear()
    mail.on("queue.paused", ear)
    mail.on("queue.resumed", ear)
    await mail.pause()
    await ear.of(1)
    await mail.resume()
    assert await ear.of(2) == ["queue.paused", "queue.resumed"]
    assert [(event.queue, event.job_id) for event in ear.events] == [("mail", None)] * 2


async def test_a_named_queue_gets_its_own_events_and_a_queue_without_a_name_all(
    queue: Queue, mail: Queue, backend: Backend
) -> None:
    # M-QUE-11 M-EV-16
    its_own, all_of_them = Ear(), Ear()
    mail.on("*", its_own)
    queue.on("*", all_of_them)
    for number in range(3):
        await queue.enqueue_job(new_job(f"b{number}", queue="billing"))
        await mail.add("m", job_id=f"m{number}")
    await all_of_them.of(6)
    await its_own.of(3)
    assert [event.job_id for event in its_own.events] == ["m0", "m1", "m2"]
    assert [event.job_id for event in all_of_them.events] == ["b0", "m0", "b1", "m1", "b2", "m2"]


async def test_other_queues_events_do_not_keep_a_listener_busy(
    queue: Queue, mail: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-QUE-11
    looks = 0
    read = backend.read_events

    async def counted(*args: Any, **kwargs: Any) -> list[JobEvent]:
        nonlocal looks
        looks += 1
        return await read(*args, **kwargs)

    ear = Ear()
    mail.on("*", ear)
    await mail.add("first")
    await ear.of(1)
    for _ in range(5):
        await queue.enqueue_job(new_job(queue="billing"))
    monkeypatch.setattr(backend, "read_events", counted)
    for _ in range(5):  # each pass may find one more change, but not endlessly
        await backend.wait_for_change(0.05)
    assert looks < 20
    await mail.add("second")
    await ear.of(2)


async def test_events_of_another_process_reach_the_listener(
    queue: Queue, store_url: str, backend: Backend, tmp_path: Any
) -> None:
    # M-EV-18 M-EV-17
    if not backend.capabilities.shared:
        pytest.skip("no other process can open this store")
    program = (
        "import sys, asyncio, longshore\n"
        "async def main():\n"
        "    async with longshore.Queue(longshore.connect(sys.argv[1]), 'mail') as queue:\n"
        "        for number in range(3): await queue.add('email', number)\n"
        "asyncio.run(main())\n"
    )
    ear = Ear()
    queue.on("job.added", ear)
    await queue.count_jobs()
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, store_url)
    assert await other.wait() == 0
    assert await ear.of(3) == ["job.added"] * 3
    assert {event.queue for event in ear.events} == {"mail"}


async def test_nothing_committed_is_missed_however_many_write_at_once(
    queue: Queue, open_backend: OpenBackend, backend: Backend
) -> None:
    # M-EV-17 M-EV-18
    ear = Ear()
    queue.on("job.added", ear)
    await queue.count_jobs()
    writers = [open_backend() for _ in range(3)] if backend.capabilities.shared else [backend]
    jobs = await asyncio.gather(*(writers[number % len(writers)].enqueue_job(new_job()) for number in range(60)))
    await ear.of(60)
    assert sorted(str(event.job_id) for event in ear.events) == sorted(jobs)


async def test_a_listener_that_raises_is_logged_and_does_not_affect_others(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    # M-EV-01 M-EV-17
    good, again = Ear(), Ear()

    def bad(event: JobEvent) -> None:
        again(event)
        raise ValueError("a bug of the listener's")

    async def cancelled(event: JobEvent) -> None:
        raise asyncio.CancelledError

    queue.on("job.added", bad)
    queue.on("job.added", cancelled)
    queue.on("job.added", good)
    with caplog.at_level(logging.WARNING, "longshore.events"):
        for number in range(3):
            await queue.add("email", number)
        await good.of(3)
        await again.of(3)
    assert "a bug of the listener's" in caplog.text
    assert {record.name for record in caplog.records} == {"longshore.events"}


@pytest.mark.slow
async def test_a_slow_listener_does_not_delay_others_and_gets_its_events_in_order(queue: Queue) -> None:
    # M-EV-01
    quick, slow, free = Ear(), Ear(), asyncio.Event()

    async def slowly(event: JobEvent) -> None:
        await free.wait()
        await asyncio.sleep(0)
        slow(event)

    queue.on("job.added", slowly)
    queue.on("job.added", quick)
    jobs = [(await queue.add("email")).id for _ in range(5)]
    await quick.of(5)
    assert slow.events == []
    free.set()
    await slow.of(5)
    assert [event.job_id for event in slow.events] == jobs


async def test_a_listener_runs_in_the_loop_that_registered_it(queue: Queue) -> None:
    # M-QUE-11
    where: list[tuple[asyncio.AbstractEventLoop, int]] = []
    done = asyncio.Event()

    async def asynchronous(event: JobEvent) -> None:
        where.append((asyncio.get_running_loop(), threading.get_ident()))
        done.set()

    queue.on("job.added", asynchronous)
    await queue.add("email")
    async with asyncio.timeout(IN_TIME):
        await done.wait()
    assert where == [(asyncio.get_running_loop(), threading.get_ident())]


async def test_unsubscribing_ends_a_listener_also_from_within_itself(queue: Queue) -> None:
    # M-QUE-11
    other, finished, done = Ear(), [], asyncio.Event()
    ends: list[Callable[[], None]] = []

    async def once(event: JobEvent) -> None:
        ends[0]()
        await asyncio.sleep(0)
        finished.append(event.job_id)
        done.set()

    queue.on("job.added", other)
    ends.append(queue.on("job.added", once))
    ends.append(queue.on("job.added", Ear()))
    first = await queue.add("email")
    await other.of(1)
    ends[1]()
    ends[1]()
    await queue.add("email")
    await other.of(2)
    async with asyncio.timeout(IN_TIME):
        await done.wait()
    assert finished == [first.id]


async def test_closing_a_queue_ends_its_own_listeners_only(backend: Backend, queue: Queue) -> None:
    # M-QUE-12 X-84
    closing = Queue(backend)
    gone, stays = Ear(), Ear()
    closing.on("*", gone)
    queue.on("*", stays)
    await queue.count_jobs()  # an operation of its queue waits until the listener has started
    await closing.add("email")
    await gone.of(1)
    await closing.close()
    await queue.add("email")
    await stays.of(2)
    assert len(gone.events) == 1


async def test_a_listener_may_close_the_queue_it_listens_on(backend: Backend, queue: Queue) -> None:
    # M-QUE-12
    closing, over = Queue(backend), asyncio.Event()

    async def close_it(event: JobEvent) -> None:
        await closing.close()
        over.set()

    closing.on("job.added", close_it)
    await closing.add("email")
    async with asyncio.timeout(IN_TIME):
        await over.wait()
    assert closing.closed


async def test_a_store_that_cannot_be_read_for_a_while_delays_events_and_loses_none(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # M-EV-17
    ear, tried = Ear(), asyncio.Event()

    async def unreadable(*_: Any, **__: Any) -> Any:
        tried.set()
        raise BackendUnavailable("the network is down")

    queue.on("job.added", ear)
    await queue.add("first")
    await ear.of(1)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, "longshore.events"):
        broken.setattr(backend, "read_events", unreadable)
        await queue.add("second")
        async with asyncio.timeout(IN_TIME):
            await tried.wait()
    await queue.add("third")
    await ear.of(3)
    assert [event.type for event in ear.events] == ["first", "second", "third"]
    assert "the network is down" in caplog.text


async def test_an_unreachable_store_refuses_the_listener_and_blocks_no_other_call(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M6 M-EV-17
    async def unavailable() -> str:
        raise BackendUnavailable("starting")

    with monkeypatch.context() as starting:
        starting.setattr(backend, "end_of_events", unavailable)
        with pytest.raises(BackendUnavailable, match="starting"):
            queue.on("job.added", Ear())
        await queue.count_jobs()
    ear = Ear()
    queue.on("job.added", ear)
    await queue.add("email")
    await ear.of(1)


async def test_a_pruned_cursor_is_logged_and_the_listener_continues(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # M-EV-17
    ear, expired = Ear(), asyncio.Event()
    read = backend.read_events

    async def pruned(*args: Any, **kwargs: Any) -> list[JobEvent]:
        if not expired.is_set():
            expired.set()
            raise CursorExpired("the events after this cursor have been pruned; start from None")
        return await read(*args, **kwargs)

    queue.on("job.added", ear)
    monkeypatch.setattr(backend, "read_events", pruned)
    with caplog.at_level(logging.WARNING, "longshore.events"):
        async with asyncio.timeout(IN_TIME):
            await expired.wait()
            while not ear.events:
                await queue.add("email")
                await backend.wait_for_change(0.05)
    assert "missed events" in caplog.text


@pytest.mark.parametrize("event", ["job.adedd", "", "JOB.ADDED", None, 7], ids=str)
async def test_an_unknown_event_name_is_refused(queue: Queue, event: Any) -> None:
    # M-QUE-11
    with pytest.raises(InvalidArgument, match=r"job\.added"):
        queue.on(event, print)
    not_callable: Any = "print"
    with pytest.raises(InvalidArgument, match="listener"):
        queue.on("*", not_callable)


def test_a_listener_needs_a_loop_to_be_called_in(store_url: str, backend: Backend) -> None:
    # M-QUE-11
    with pytest.raises(RuntimeError, match=r"queue\.sync\.on"):
        Queue(backend).on("*", print)


def names_in(source: str) -> Iterator[str]:
    for part in source.split('"')[1::2]:
        if (
            part.startswith(("job.", "queue.", "worker.", "schedule."))
            and part.replace(".", "").replace("_", "").isalpha()
        ):
            yield part


def test_every_event_the_verbs_write_can_be_listened_to() -> None:
    # M-EV-01
    written = {name for part in (transitions, admin, schedules) for name in names_in(inspect.getsource(part))}
    assert written - set(event_module.EVENTS) == set()
    assert {"job.waiting_children", "job.dependencies_completed"} <= written
    assert len(event_module.EVENTS) == 30


async def test_every_status_of_a_job_has_an_event(queue: Queue, backend: Backend) -> None:
    # M-EV-01
    ear = Ear()
    queue.on("*", ear)
    await queue.count_jobs()
    for status in S:
        await job_in(backend, status)
    told = len(await backend.read_events())
    await ear.of(told)
    assert {event.to_status for event in ear.events} >= set(S)
