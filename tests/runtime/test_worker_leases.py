"""Leases of a worker: renewed while its processors are busy, dropped when lost, and never two outcomes."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Mapping
from time import monotonic

import pytest

from longshore import JobStatus, Lease, Queue
from longshore.backends.base import Backend
from longshore.core.errors import BackendUnavailable
from longshore.core.times import Duration
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker import renew_seconds
from longshore.testing.conformance.scenarios import history, new_job, status_of, story
from tests.runtime.conftest import OpenBackend
from tests.runtime.working import Gate, all_come_to, comes_to, happens, until, when, working

S = JobStatus
LEASE = 0.6


class Renewals:
    """Records renewals of leases; may refuse some of them, or never answer."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[set[str]] = []
        self.refuse = 0
        self.silent = False
        self._extend = backend.extend_leases
        monkeypatch.setattr(backend, "extend_leases", self._watched)

    async def _watched(self, leases: Mapping[str, Lease], duration: Duration) -> dict[str, Lease]:
        self.batches.append(set(leases))
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.refuse:
            self.refuse -= 1
            raise BackendUnavailable("no renewals at this hour")
        return await self._extend(leases, duration)


@pytest.mark.slow
async def test_leases_are_renewed_while_a_processor_blocks_the_event_loop(
    backend: Backend, open_backend: OpenBackend, queue: Queue
) -> None:
    # M-WRK-13 M-WRK-20 M-WRK-05
    other = open_backend() if backend.capabilities.shared else backend
    over = threading.Event()

    def sweep_meanwhile() -> None:
        async def sweep() -> None:
            while not over.is_set():
                await other.reclaim_expired_leases()
                await asyncio.to_thread(over.wait, 0.05)

        asyncio.run(sweep())

    async def process(job: RunningJob) -> str:
        threading.Event().wait(3 * LEASE)  # a processor that blocks the loop
        return "done"

    rival = threading.Thread(target=sweep_meanwhile)
    rival.start()
    try:
        async with working(queue, process, lock_duration=LEASE):
            await queue.add("x", job_id="a")
            job = await comes_to(backend, "a")
    finally:
        over.set()
        rival.join()
    assert (job.status, job.result, job.executions, job.crashes) == (S.COMPLETED, b'"done"', 1, 0)
    assert await story(backend, "a") == ["job.added", "job.active", "job.completed"]


@pytest.mark.slow
async def test_a_processor_that_holds_the_interpreter_past_its_lease_loses_it_and_only_one_outcome_counts(
    backend: Backend, queue: Queue
) -> None:
    # M-WRK-14 M-WRK-15 M-WRK-20 X-81
    usleep = ctypes.PyDLL(None).usleep  # unlike CDLL it keeps the interpreter lock

    async def process(job: RunningJob) -> int:
        if job.executions == 1:
            usleep(int(3 * LEASE * 1_000_000))
        return job.executions

    async with working(queue, process, lock_duration=LEASE):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a")
    assert (job.status, job.result, job.executions, job.crashes, job.retry_count) == (S.COMPLETED, b"2", 2, 1, 0)
    assert (await story(backend, "a")).count("job.completed") == 1


async def test_all_leases_are_renewed_in_one_batch_without_those_of_ended_jobs(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-13 M-WRK-19
    renewals = Renewals(backend, monkeypatch)
    first, second = Gate(), Gate()

    async def process(job: RunningJob) -> str:
        return await (first if job.type == "first" else second)(job)

    await queue.add_bulk([{"type": "first", "job_id": f"first {n}"} for n in range(20)])
    await queue.add("second", job_id="second")
    async with working(queue, process, concurrency=21, lock_duration=LEASE):
        await first.has_begun(20)
        await second.has_begun()
        begun = {*first.begun, *second.begun}
        await until(lambda: begun in renewals.batches)
        before = when(((await backend.get_job("second")).lease or Lease("", 0, None)).expires_at)
        first.open.set()
        await all_come_to(backend, S.COMPLETED, count=20)
        await queue.add("first", job_id="afterwards")  # after this one, the worker knows that those have ended
        await comes_to(backend, "afterwards", S.COMPLETED)
        many = len(renewals.batches)
        await until(lambda: len(renewals.batches) > many + 2)
        assert all(batch == {"second"} for batch in renewals.batches[many:])
        assert when(((await backend.get_job("second")).lease or Lease("", 0, None)).expires_at) > before
        second.open.set()
        await comes_to(backend, "second", S.COMPLETED)


async def test_a_renewal_that_fails_is_repeated_while_the_lease_lasts(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-14
    renewals = Renewals(backend, monkeypatch)
    renewals.refuse = 2
    gate = Gate()
    async with working(queue, gate, lock_duration=4 * LEASE, lock_renew_time=LEASE / 3):
        await queue.add("x", job_id="a")
        await until(lambda: len(renewals.batches) >= 4)
        gate.open.set()
        job = await comes_to(backend, "a", S.COMPLETED)
    assert (job.executions, job.crashes) == (1, 0)


async def test_a_worker_that_gets_no_answer_stops_the_job_when_its_lease_ends(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-14 M-WRK-15
    renewals = Renewals(backend, monkeypatch)
    renewals.silent = True
    gate = Gate()
    async with working(queue, gate, lock_duration=LEASE, sweep=False) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        begun = monotonic()
        await until(lambda: gate.cancelled == ["a"])
        assert monotonic() - begun < 2 * LEASE  # by its own clock, whatever the store does
        await until(lambda: worker.running == 0)
        assert await story(backend, "a") == ["job.added", "job.active"]  # and writes nothing
        renewals.silent = False
        gate.open.set()
        while not await backend.reclaim_expired_leases():  # the store's clock is a little behind the worker's
            await backend.wait_for_change(0.05)
        job = await comes_to(backend, "a", S.COMPLETED)
    assert (job.executions, job.crashes) == (2, 1)


@pytest.mark.slow
async def test_a_worker_may_renew_nothing(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # M-WRK-13 M-WRK-05
    renewals = Renewals(backend, monkeypatch)
    gate = Gate()
    async with working(queue, gate, lock_duration=LEASE, lock_renew_time=0):
        await queue.add("x", job_id="a")
        await until(lambda: gate.cancelled == ["a"])
        gate.open.set()
        job = await comes_to(backend, "a", S.COMPLETED)
        assert job.crashes == 1
    assert renewals.batches == []
    assert "lock_renew_time" not in caplog.text


@pytest.mark.parametrize(
    ("lock", "given", "every"),
    [(30, None, 7.5), (2, None, 0.5), (600, None, 15), (60, None, 15), (30, 15, 15), (600, 200, 200), (10, 15, None)],
)
def test_a_lease_is_renewed_at_a_quarter_and_at_least_every_15_seconds_unless_a_time_is_given(
    lock: float, given: float | None, every: float | None
) -> None:
    # R3 M-WRK-05 X-82
    assert renew_seconds(lock, given) == every


@pytest.mark.parametrize("renew_time", [LEASE, 5])
async def test_renewing_as_seldom_as_leases_end_is_not_renewing_and_the_log_says_so(
    backend: Backend,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    renew_time: float,
) -> None:
    # M-WRK-13 X-82
    renewals = Renewals(backend, monkeypatch)
    gate = Gate()
    with caplog.at_level(logging.WARNING, "longshore.worker"):
        async with working(queue, gate, lock_duration=LEASE, lock_renew_time=renew_time):
            await queue.add("x", job_id="a")
            await until(lambda: gate.cancelled == ["a"])
    assert renewals.batches == []
    assert "lock_renew_time" in caplog.text


async def test_a_job_with_a_lost_lease_is_dropped_without_an_outcome_and_run_again(
    backend: Backend, queue: Queue
) -> None:
    # M-WRK-14 M-WRK-15 M-EV-07 X-81
    gate = Gate()
    async with working(queue, gate, lock_duration=LEASE) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        await backend.mark_worker_unresponsive(worker.id)  # as another process does, without a notification
        await until(lambda: gate.cancelled == ["a"])
        await gate.has_begun(2)
        gate.open.set()
        job = await comes_to(backend, "a", S.COMPLETED)
    assert (job.executions, job.crashes, job.retry_count) == (2, 1, 0)
    told = await story(backend, "a")
    assert told == ["job.added", "job.active", "job.stalled", "job.promoted", "job.active", "job.completed"]


@pytest.mark.parametrize("raises", [False, True])
async def test_the_outcome_of_a_lost_job_is_not_recorded(
    backend: Backend, queue: Queue, caplog: pytest.LogCaptureFixture, raises: bool
) -> None:
    # M-WRK-15 X-81
    async def process(job: RunningJob) -> str:
        if job.executions == 1:
            await backend.mark_worker_unresponsive(worker.id)
            if raises:
                raise ValueError("stale")
            return "stale"
        return "fresh"

    with caplog.at_level(logging.WARNING, "longshore.worker"):
        async with working(queue, process, lock_duration=30) as worker:
            await queue.add("x", job_id="a", attempts=1)
            job = await comes_to(backend, "a")
    assert (job.status, job.result, job.retry_count) == (S.COMPLETED, b'"fresh"', 0)
    assert (await story(backend, "a")).count("job.completed") == 1
    assert "refused" in caplog.text


@pytest.mark.parametrize("answers", [False, True])
async def test_a_job_ended_by_hand_is_dropped_at_once(
    backend: Backend, queue: Queue, caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    # M-WRK-15
    gate = Gate()

    async def process(job: RunningJob) -> str:
        try:
            return await gate(job)
        except asyncio.CancelledError:
            if answers:
                return "ignored"
            raise

    async with working(queue, process) as worker:
        await queue.add("x", job_id="a")
        await gate.has_begun()
        await queue.complete_job("a", b'"by hand"')
        await until(lambda: gate.cancelled == ["a"])
        await until(lambda: worker.running == 0)
        await worker.close()
        assert (await backend.get_job("a")).result == b'"by hand"'
    assert await story(backend, "a") == ["job.added", "job.active", "job.completed"]
    assert "refused" not in caplog.text  # the worker did not even try


async def test_a_reset_takes_all_running_jobs_away(backend: Backend, queue: Queue) -> None:
    # M-WRK-15 M-EV-07
    gate = Gate()
    async with working(queue, gate, concurrency=3):
        await queue.add_bulk([{"type": "x"} for _ in range(3)])
        await gate.has_begun(3)
        await queue.reset_running_jobs()
        await until(lambda: len(gate.cancelled) == 3)
        await gate.has_begun(6)
        gate.open.set()
        for job_id in set(gate.begun):
            job = await comes_to(backend, job_id, S.COMPLETED)
            assert (job.executions, job.crashes) == (2, 1)


@pytest.mark.slow
async def test_every_open_worker_reclaims_jobs_of_vanished_workers(backend: Backend, queue: Queue) -> None:
    # M-GOAL-04 M-TR-11 M-EV-07 X-71 X-73
    await backend.enqueue_job(new_job("a"))
    await backend.dequeue_jobs("ghost", lease=0.1)

    async def process(job: RunningJob) -> str | None:
        return job.assignee_id

    async with working(queue, process) as worker:
        job = await comes_to(backend, "a", S.COMPLETED)
        assert job.result == f'"{worker.id}"'.encode()
    assert (job.executions, job.crashes, job.retry_count) == (2, 1, 0)
    events = await history(backend, "a")
    assert [event.event for event in events][1:5] == ["job.active", "job.stalled", "job.promoted", "job.active"]
    assert (events[2].queue, events[2].job_id, events[2].assignee_id) == ("default", "a", "ghost")


@pytest.mark.slow
async def test_a_worker_that_should_not_sweep_leaves_them(backend: Backend, queue: Queue) -> None:
    await backend.enqueue_job(new_job("a"))
    await backend.dequeue_jobs("ghost", lease=0.1)
    gate = Gate()
    gate.open.set()
    async with working(queue, gate, sweep=False) as worker:
        await happens(backend, "job.active")
        async with working(queue, gate):  # another one does
            await comes_to(backend, "a", S.COMPLETED)
        await backend.enqueue_job(new_job("b", tags=["theirs"]))
        await comes_to(backend, "b", S.COMPLETED)
        assert worker.running == 0


@pytest.mark.parametrize("max_crashes", [0, 2])
async def test_a_job_that_loses_its_owners_too_often_is_buried(
    backend: Backend, queue: Queue, max_crashes: int
) -> None:
    # M-TR-12 M-EV-05 M-EV-07 M-OPT-03
    async def process(job: RunningJob) -> None:
        await backend.mark_worker_unresponsive(worker.id)

    async with working(queue, process) as worker:
        await queue.add("x", job_id="poison", attempts=10, max_crashes=max_crashes)
        job = await comes_to(backend, "poison", S.DEAD)
    assert (job.crashes, job.executions, job.retry_count) == (max_crashes + 1, max_crashes + 1, 0)
    told = await story(backend, "poison")
    assert told.count("job.stalled") == max_crashes + 1
    assert told.index("job.stalled") < told.index("job.dead")


async def test_a_crashed_job_waits_for_its_backoff(backend: Backend, queue: Queue) -> None:
    # M-TR-11 X-71
    gate = Gate()
    async with working(queue, gate) as worker:
        await queue.add("x", job_id="a", backoff=3600)
        await gate.has_begun()
        await backend.mark_worker_unresponsive(worker.id)
        assert await status_of(backend, "a") is S.UNKNOWN_RETRY
        job = await backend.get_job("a")
        assert (when(job.run_at) - when(job.updated_at)).total_seconds() == pytest.approx(3600, abs=1)
        assert (await story(backend, "a"))[-2:] == ["job.stalled", "job.delayed"]
