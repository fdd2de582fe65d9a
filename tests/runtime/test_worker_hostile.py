"""Regressions: faults that a hostile review found in the worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from longshore import JobStatus, Lease, Outcome, Queue, Repeat, connect
from longshore.backends.base import Backend, ClaimFailed
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.times import Duration
from longshore.runtime.executors.base import Executor, Target
from longshore.runtime.executors.event_loop import LoopExecutor
from longshore.runtime.executors.process import ProcessExecutor
from longshore.runtime.executors.thread import ThreadExecutor
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker import Worker
from longshore.testing.conformance.scenarios import all_jobs, log_of, status_of
from tests.runtime import processors
from tests.runtime.working import Gate, all_come_to, comes_to, happens, most_at_once, until, working

S = JobStatus
LEASE = 0.6


class Extensions:
    """Counts renewals of leases; may spoil some of them first."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.spoilt: list[Any] = []
        """What the next renewals do: raise this exception, or return this wrong answer."""
        self._extend = backend.extend_leases
        monkeypatch.setattr(backend, "extend_leases", self._counted)

    async def _counted(self, leases: Mapping[str, Lease], duration: Duration) -> Any:
        self.count += 1
        if not self.spoilt:
            return await self._extend(leases, duration)
        wrong = self.spoilt.pop(0)
        if isinstance(wrong, Exception):
            raise wrong
        return wrong


# -- the heartbeat


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_heartbeat_that_fails_or_hangs_costs_no_lease(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    # M-WRK-13 M-WRK-14
    async def unwell(*_: object, **__: object) -> None:
        if hangs:
            await asyncio.get_running_loop().create_future()
        raise OSError("the package is not installed, or the host name is unknown")

    monkeypatch.setattr(backend, "heartbeat_worker", unwell)
    renewals = Extensions(backend, monkeypatch)
    gate = Gate()
    async with working(queue, gate, concurrency=2, lock_duration=LEASE):
        await queue.add("x", job_id="a")
        await gate.has_begun()
        before = renewals.count
        await until(lambda: renewals.count >= before + 4)  # the duration of two leases
        gate.open.set()
        job = await comes_to(backend, "a")
        monkeypatch.undo()
    assert (job.status, job.executions, job.crashes) == (S.COMPLETED, 1, 0)
    assert gate.cancelled == []


@pytest.mark.slow
async def test_a_renewal_with_an_unexpected_error_is_repeated(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # M-WRK-14
    renewals = Extensions(backend, monkeypatch)
    renewals.spoilt = ["not an answer"]
    gate = Gate()
    async with working(queue, gate, lock_duration=4, lock_renew_time=0.2):
        await queue.add("x", job_id="a")
        await gate.has_begun()
        await until(lambda: renewals.count >= 4)
        gate.open.set()
        job = await comes_to(backend, "a")
    assert (job.status, job.executions) == (S.COMPLETED, 1)
    assert "the lease keeper failed" in caplog.text


@pytest.mark.slow
async def test_a_batch_that_could_not_be_renewed_is_tried_again_soon_though_a_later_one_could(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-14
    monkeypatch.setattr("longshore.runtime.leases._AT_ONCE", 1)
    renewals = Extensions(backend, monkeypatch)
    gate = Gate()
    async with working(queue, gate, concurrency=4, lock_duration=2, lock_renew_time=1):
        await queue.add_bulk([{"type": "x", "job_id": name} for name in "ab"])
        await gate.has_begun(2)
        renewals.spoilt = [BackendUnavailable("not this one")]
        before = renewals.count
        await until(lambda: renewals.count >= before + 8)  # past the first deadline
        gate.open.set()
        for name in "ab":
            job = await comes_to(backend, name)
            assert (job.status, job.executions, job.crashes) == (S.COMPLETED, 1, 0)


# -- a job runs once


async def test_a_lost_job_is_not_run_again_beside_its_own_processor(backend: Backend, queue: Queue) -> None:
    # M-WRK-09 M-WRK-15
    over = asyncio.Event()
    active = most = 0

    async def process(job: RunningJob) -> int:
        nonlocal active, most
        active += 1
        most = max(most, active)
        try:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:  # slow to end
                    continue
        finally:
            active -= 1
        return job.executions

    async with working(queue, process, concurrency=3, cancel_grace=30) as worker:
        await queue.add("x", job_id="a", max_crashes=None)
        await until(lambda: active == 1)
        await queue.mark_worker_unresponsive(worker.id)
        await happens(backend, "job.released")  # claimed again, and not run
        assert (active, worker.running) == (1, 1)
        over.set()
        await until(lambda: worker.running == 0)
        await backend.promote_job("a")
        job = await comes_to(backend, "a")
    assert (job.status, job.result) == (S.COMPLETED, b"3")
    assert most == 1


# -- timeouts


@pytest.mark.slow
async def test_waiting_for_a_free_process_does_not_count_towards_the_timeout() -> None:
    # M-WRK-12
    queue = Queue(connect("memory://"))
    async with working(queue, ProcessExecutor(processors.spins), concurrency=4):
        await queue.add_bulk([{"type": "x", "data": 0.6, "timeout": 1.5} for _ in range(4)])
        await all_come_to(queue.backend, S.COMPLETED, count=4)
    await queue.close()


@pytest.mark.slow
async def test_importing_does_not_count_towards_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # M-WRK-12
    slow = "import threading\nthreading.Event().wait(1.5)\ndef process(job):\n    return 'imported'\n"
    (tmp_path / "slow_to_import.py").write_text(slow, encoding="ascii")
    monkeypatch.syspath_prepend(tmp_path)
    queue = Queue(connect("memory://"))
    executor = ProcessExecutor(Target("slow_to_import", "process"), cancel_grace=0.1)
    async with working(queue, executor, cancel_grace=0.1):
        job = await queue.add("x", timeout=1)
        assert (await comes_to(queue.backend, job.id)).result == b'"imported"'
    await queue.close()


# -- a worker and its queue


async def test_a_worker_closes_with_its_queue_and_releases_its_jobs(
    backend: Backend, queue: Queue, mail: Queue
) -> None:
    # M-WRK-18
    gate = Gate()
    worker = Worker(mail, gate, poll_interval=0.05)
    await mail.add("x", job_id="running")
    await gate.has_begun()
    await asyncio.wait_for(mail.close(), 10)  # another one is open on the backend
    await asyncio.wait_for(worker.run(), 5)
    job = await backend.get_job("running")
    assert (job.status, job.crashes, job.retry_count) == (S.UNKNOWN_RETRY, 0, 0)
    async with Queue(backend, "mail") as again:
        await again.add("x", job_id="afterwards")
    assert worker.running == 0
    assert await status_of(backend, "afterwards") is S.INITIAL_PENDING


@pytest.mark.parametrize("queues", [["other"], ["mail", "other"]])
async def test_a_worker_on_a_named_queue_takes_from_no_other(mail: Queue, queues: list[str]) -> None:
    # M-QUE-01
    with pytest.raises(InvalidArgument, match="queues"):
        Worker(mail, Gate(), queues=queues)


async def test_a_worker_takes_from_some_queue(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        Worker(queue, Gate(), queues=[])


async def test_a_named_queue_does_not_change_the_schedule_of_another(queue: Queue, mail: Queue) -> None:
    async with Queue(queue.backend, "other") as other:
        await other.add("theirs", repeat=Repeat(every=3600), job_id="nightly")
    with pytest.raises(InvalidArgument, match="schedule of the queue 'other'"):
        await mail.add("mine", repeat=Repeat(every=5), job_id="nightly")
    assert [(one.id, one.job.type, one.job.queue) for one in await queue.get_schedules()] == [
        ("nightly", "theirs", "other")
    ]


async def test_a_worker_whose_run_is_cancelled_stops(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    gate = Gate()
    worker = Worker(queue, gate, autorun=False, poll_interval=0.05, cancel_grace=0.5)
    running = asyncio.create_task(worker.run())
    await queue.add("x", job_id="a")
    await gate.has_begun()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    job = await backend.get_job("a")
    assert (job.status, job.crashes, job.retry_count) == (S.UNKNOWN_RETRY, 0, 0)
    assert gate.cancelled == ["a"]
    assert worker.running == 0
    await happens(backend, "job.released")


# -- a faulty store


@pytest.mark.slow
async def test_one_outcome_that_cannot_be_written_holds_up_no_other(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # M-WRK-11 M-EV-13
    settle = backend.settle_and_dequeue

    async def choosy(outcomes: Sequence[Outcome], *args: Any, **more: Any) -> Any:
        if any(outcome.job_id == "poison" and outcome.verb == "complete" for outcome in outcomes):
            raise ValueError("this row cannot be written")
        return await settle(outcomes, *args, **more)

    monkeypatch.setattr(backend, "settle_and_dequeue", choosy)
    ran: list[str] = []

    async def process(job: RunningJob) -> None:
        ran.append(job.id)

    async with working(queue, process, concurrency=4, lock_duration=LEASE):
        await queue.add("x", job_id="poison", max_crashes=1)
        await until(lambda: ran == ["poison"])
        await queue.add_bulk([{"type": "x"} for _ in range(5)])
        await all_come_to(backend, S.COMPLETED, count=5)
        job = await comes_to(backend, "poison", S.DEAD)  # its lease is no longer renewed, and it does not crash forever
        await happens(backend, "worker.error")
    assert (job.executions, job.crashes) == (2, 2)
    assert "cannot write the outcome" in caplog.text


async def test_a_store_that_fails_for_a_moment_costs_no_outcome(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-11
    settle = backend.settle_and_dequeue
    left = 3

    async def shaky(outcomes: Sequence[Outcome], *args: Any, **more: Any) -> Any:
        nonlocal left
        if outcomes and left:
            left -= 1
            raise ValueError("not now")
        return await settle(outcomes, *args, **more)

    monkeypatch.setattr(backend, "settle_and_dequeue", shaky)
    gate = Gate()
    gate.open.set()
    async with working(queue, gate):
        await queue.add("x", job_id="a")
        job = await comes_to(backend, "a", S.COMPLETED)
    assert (job.executions, gate.begun) == (1, ["a"])


@pytest.mark.slow
@pytest.mark.parametrize("answered", [0.6, 1.2])
async def test_a_claim_with_a_late_answer_is_renewed_at_once_or_not_started(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, answered: float
) -> None:
    # M-WRK-13 M-WRK-14
    renewals = Extensions(backend, monkeypatch)
    settle = backend.settle_and_dequeue
    slow = True

    async def slowly(*args: Any, **more: Any) -> Any:
        nonlocal slow
        asked_at = monotonic()
        answer = await settle(*args, **more)
        if answer[1] and slow:
            slow = False
            await until(lambda: monotonic() - asked_at > answered)
        return answer

    monkeypatch.setattr(backend, "settle_and_dequeue", slowly)
    gate = Gate()
    async with working(queue, gate, lock_duration=1, lock_renew_time=0.9, sweep=False):
        await queue.add("x", job_id="a", max_crashes=None)
        if answered < 1:
            await gate.has_begun()
            await until(lambda: renewals.count >= 2)
            assert (gate.begun, gate.cancelled) == (["a"], [])
        else:

            async def begun_again() -> bool:
                await backend.reclaim_expired_leases()
                return bool(gate.begun)

            await until(begun_again)
            assert (await backend.get_job("a")).executions == 2
        gate.open.set()
        job = await comes_to(backend, "a", S.COMPLETED)
    assert gate.begun == ["a"]
    assert job.crashes <= job.executions - 1


# -- executors


async def test_an_executor_that_was_closed_with_its_worker_is_refused(queue: Queue) -> None:
    for executor in (ThreadExecutor(lambda _: None), ProcessExecutor(processors.double)):
        async with working(queue, executor):
            pass
        with pytest.raises(InvalidArgument, match="closed"):
            Worker(queue, executor)


async def test_an_executor_closed_by_another_worker_charges_no_job(backend: Backend, queue: Queue) -> None:
    executor = ProcessExecutor(processors.double)
    async with working(queue, executor):
        async with working(queue, executor):
            pass
        await queue.add("x", job_id="a", attempts=1)
        await happens(backend, "job.released")
    job = await backend.get_job("a")
    assert (job.status, job.crashes, job.retry_count) == (S.UNKNOWN_RETRY, 0, 0)


@pytest.mark.parametrize("threads", [False, True])
async def test_notes_go_to_the_store_their_job_is_from(backend: Backend, queue: Queue, threads: bool) -> None:
    async def on_loop(job: RunningJob) -> None:
        await job.update_progress(job.id)

    def in_thread(job: RunningJob) -> None:
        job.update_progress(job.id)

    executor: Executor = ThreadExecutor(in_thread) if threads else LoopExecutor(on_loop)
    async with Queue(connect("memory://")) as elsewhere, working(queue, executor), working(elsewhere, executor):
        for one in (queue, elsewhere, queue):
            job = await one.add("x")
            ended = await comes_to(one.backend, job.id)
            assert (ended.status, ended.progress) == (S.COMPLETED, job.id)


# -- queries to a quiet store


@pytest.mark.slow
async def test_a_full_worker_does_not_query_a_quiet_store(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = waits = 0
    count, wait = backend.count_jobs, backend.wait_for_change

    async def counted(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await count(*args, **more)

    async def waited(*args: Any, **more: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*args, **more)

    gate = Gate()
    async with working(queue, gate, sweep=False):
        await queue.add("x", job_id="a")
        await gate.has_begun()
        monkeypatch.setattr(backend, "count_jobs", counted)
        monkeypatch.setattr(backend, "wait_for_change", waited)
        await until(lambda: waits >= 10)
        before = looks
        await until(lambda: waits >= 30)
        assert looks - before <= 1  # the heartbeat may be a change
        await queue.cancel_jobs(job_ids=["a"])
        assert (await comes_to(backend, "a")).status is S.STOPPED


async def test_retries_far_away_leave_no_timers(backend: Backend, queue: Queue) -> None:
    async def process(job: RunningJob) -> None:
        raise ValueError

    def timers() -> int:
        loop: Any = asyncio.get_running_loop()
        return sum(not handle.cancelled() for handle in loop._scheduled)

    before = timers()
    async with working(queue, process, concurrency=4):
        await queue.add_bulk([{"type": "x", "attempts": 2, "backoff": 86_400} for _ in range(60)])
        await all_come_to(backend, S.FAILED_RETRY, count=60)
        assert timers() < before + 20


async def test_jobs_of_a_lost_claim_are_run_and_the_concurrency_is_not_exceeded(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-WRK-09 M-WRK-11
    settle = backend.settle_and_dequeue
    lost = 0

    async def lossy(*args: Any, **more: Any) -> Any:
        nonlocal lost
        answer = await settle(*args, **more)
        if answer[1] and lost < 3:
            lost += 1
            raise BackendUnavailable("connection reset")
        return answer

    monkeypatch.setattr(backend, "settle_and_dequeue", lossy)

    async def process(job: RunningJob) -> str:
        return job.id

    await queue.add_bulk([{"type": "x", "job_id": f"job {n}"} for n in range(12)])
    async with working(queue, process, concurrency=2):
        await all_come_to(backend, S.COMPLETED, count=12)
    assert lost == 3
    assert most_at_once(await log_of(backend)) <= 2
    for job in await all_jobs(backend):
        assert (job.executions, job.crashes) == (1, 0)


async def test_an_exchange_whose_claim_failed_after_the_settle_continues_from_there(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # M-WRK-09 M-WRK-11
    settle = backend.settle_and_dequeue
    lost = 0

    async def half_heard(*args: Any, **more: Any) -> Any:
        nonlocal lost
        report, jobs = await settle(*args, **more)
        if report.settled and jobs and lost < 3:
            lost += 1
            raise ClaimFailed(report, BackendUnavailable("connection reset"))
        return report, jobs

    monkeypatch.setattr(backend, "settle_and_dequeue", half_heard)

    async def process(job: RunningJob) -> str:
        return job.id

    await queue.add_bulk([{"type": "x", "job_id": f"job {n}"} for n in range(12)])
    worker = Worker(queue, process, concurrency=2, until_empty=True, autorun=False)
    await worker.run()
    assert lost == 3
    assert "refused" not in caplog.text
    for job in await all_jobs(backend):
        assert (job.status, job.executions, job.crashes) == (S.COMPLETED, 1, 0)


# -- closing from inside a job


@pytest.mark.parametrize("options", [{}, {"grace": 0}, {"grace": 5}, {"force": True}])
@pytest.mark.parametrize("threads", [False, True])
async def test_a_job_may_close_its_own_worker(
    backend: Backend, queue: Queue, threads: bool, options: dict[str, Any]
) -> None:
    # M-WRK-18
    async def on_loop(job: RunningJob) -> str:
        await worker.close(**options)
        return "closed"

    def in_thread(job: RunningJob) -> str:
        asyncio.run(worker.close(**options))
        return "closed"

    worker = Worker(queue, in_thread if threads else on_loop, poll_interval=0.05)
    await queue.add("x", job_id="a")
    await queue.add("x", job_id="b")
    await asyncio.wait_for(worker.run(), 10)
    assert worker.running == 0
    if not options.get("force"):
        assert await status_of(backend, "a") is S.COMPLETED
    assert await status_of(backend, "b") is S.INITIAL_PENDING


async def test_a_worker_whose_loop_has_stopped_is_closed_at_once(backend: Backend, queue: Queue) -> None:
    # M-WRK-18
    loop = asyncio.new_event_loop()
    gate = Gate()

    async def begin() -> Worker:
        worker = Worker(queue, gate, lock_duration=LEASE)
        await gate.has_begun()
        return worker

    await queue.add("x", job_id="a")
    worker = await asyncio.to_thread(loop.run_until_complete, begin())
    await asyncio.wait_for(worker.close(), 5)
    other = Gate()
    other.open.set()
    async with working(queue, other):
        assert (await comes_to(backend, "a", S.COMPLETED)).crashes == 1

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    await asyncio.to_thread(loop.run_until_complete, end())
    loop.close()


async def test_threads_that_do_not_end_are_not_joined_by_ever_more(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-EV-13
    monkeypatch.setattr("longshore.runtime.executors.thread._INTERRUPT_GRACE", 0.01)
    hung: list[str] = []
    lock = threading.Lock()
    lock.acquire()

    def process(job: RunningJob) -> None:
        hung.append(job.id)
        with lock:  # in C: no exception reaches it there
            return

    async with working(queue, process, cancel_grace=0):
        await queue.add_bulk([{"type": "x", "timeout": 0.02} for _ in range(15)])
        error = await happens(backend, "worker.error")
        assert "10 abandoned jobs still run" in error.detail["error"]
        assert len(hung) == 10
        lock.release()
        await until(lambda: len(hung) == 15)
