"""Closed backends, and calls that are cancelled or fail before their end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from longshore.backends.base import Backend, Outcome, WorkerInfo
from longshore.core.errors import BackendUnavailable, QueueClosed
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.fixtures import BreakableClock, OpenBackend
from longshore.testing.conformance.scenarios import S

EVERY_VERB: dict[str, Callable[[Backend], Awaitable[object]]] = {
    "enqueue_job": lambda b: b.enqueue_job(kit.new_job("j1")),
    "enqueue_jobs": lambda b: b.enqueue_jobs([kit.new_job("j1"), kit.new_job("j2")]),
    "enqueue_new_jobs": lambda b: b.enqueue_new_jobs([kit.new_job("j1")]),
    "add_jobs": lambda b: b.add_jobs([kit.new_job("j1"), kit.new_job("j2")]),
    "accept_jobs": lambda b: b.accept_jobs(["created"]),
    "dequeue_jobs": lambda b: b.dequeue_jobs("worker-1", limit=5),
    "extend_leases": lambda b: b.extend_leases({"running": kit.STALE}, 30),
    "release_lease": lambda b: b.release_lease("running", kit.STALE),
    "set_progress": lambda b: b.set_progress("running", 50),
    "append_log": lambda b: b.append_log("running", "a line"),
    "save_checkpoint": lambda b: b.save_checkpoint("running", {"page": 3}),
    "complete_job": lambda b: b.complete_job("running", b"done"),
    "fail_job": lambda b: b.fail_job("running", "broken"),
    "bury_job": lambda b: b.bury_job("running", "broken"),
    "stop_job": lambda b: b.stop_job("running"),
    "stop_job_with_retry": lambda b: b.stop_job_with_retry("cancelling", "broken"),
    "mark_job_unknown_stopped": lambda b: b.mark_job_unknown_stopped("running"),
    "update_job_status": lambda b: b.update_job_status("running", S.STOPPED),
    "settle_jobs": lambda b: b.settle_jobs([Outcome("running", None)]),
    "settle_and_dequeue": lambda b: b.settle_and_dequeue([Outcome("running", None)], "worker-1"),
    "cancel_jobs": lambda b: b.cancel_jobs(job_ids=["pending"]),
    "acknowledge_cancellation": lambda b: b.acknowledge_cancellation("cancelling", True),
    "mark_worker_unresponsive": lambda b: b.mark_worker_unresponsive("worker-1"),
    "reclaim_expired_leases": lambda b: b.reclaim_expired_leases(),
    "time_out_cancellations": lambda b: b.time_out_cancellations(0),
    "reset_running_jobs": lambda b: b.reset_running_jobs(),
    "get_job": lambda b: b.get_job("running"),
    "facts_about": lambda b: b.facts_about("running"),
    "list_jobs": lambda b: b.list_jobs(JobFilter()),
    "get_job_stats": lambda b: b.get_job_stats(["eu"]),
    "count_jobs": lambda b: b.count_jobs(),
    "count_delayed": lambda b: b.count_delayed(),
    "next_due": lambda b: b.next_due(),
    "now": lambda b: b.now(),
    "read_logs": lambda b: b.read_logs("running"),
    "read_events": lambda b: b.read_events(),
    "end_of_events": lambda b: b.end_of_events(),
    "wait_for_change": lambda b: b.wait_for_change(0),
    "retry_job": lambda b: b.retry_job("dead"),
    "promote_job": lambda b: b.promote_job("delayed"),
    "delete_jobs": lambda b: b.delete_jobs(job_ids=["dead"]),
    "pause_queue": lambda b: b.pause_queue("default"),
    "resume_queue": lambda b: b.resume_queue("default"),
    "set_limits": lambda b: b.set_limits("default", running=3),
    "list_queues": lambda b: b.list_queues(),
    "put_schedule": lambda b: b.put_schedule(Schedule(id="s", job=kit.new_job(), repeat=Repeat(every=60))),
    "get_schedules": lambda b: b.get_schedules(),
    "get_schedule": lambda b: b.get_schedule("nightly"),
    "pause_schedule": lambda b: b.pause_schedule("nightly"),
    "resume_schedule": lambda b: b.resume_schedule("nightly"),
    "run_schedule": lambda b: b.run_schedule("nightly"),
    "remove_schedule": lambda b: b.remove_schedule("nightly"),
    "next_firing": lambda b: b.next_firing(),
    "announce_due_jobs": lambda b: b.announce_due_jobs(),
    "fire_due_schedules": lambda b: b.fire_due_schedules(),
    "cleanup_expired_jobs": lambda b: b.cleanup_expired_jobs(60),
    "set_retention": lambda b: b.set_retention("default", finished=60),
    "apply_retention": lambda b: b.apply_retention(),
    "heartbeat_worker": lambda b: b.heartbeat_worker(WorkerInfo(id="worker-1")),
    "list_workers": lambda b: b.list_workers(),
    "record_worker_event": lambda b: b.record_worker_event("worker.error", "worker-1", detail={"error": "no route"}),
}
"""One valid call of each operation, on the jobs that `set_out` stores."""

every_verb = pytest.mark.parametrize("call", EVERY_VERB.values(), ids=EVERY_VERB.keys())


class TestClosing:
    """`close`, and `async with`."""

    async def test_no_verb_is_left_out_here(self) -> None:
        assert set(EVERY_VERB) | {"close"} == Backend.__abstractmethods__ | {"settle_and_dequeue"}

    @every_verb
    async def test_every_operation_on_a_closed_backend_raises(self, backend: Backend, call: Call) -> None:
        # B-CLO-01 B-CLO-02 X-30
        await kit.enqueue(backend)
        await backend.close()
        with pytest.raises(QueueClosed):
            await call(backend)

    async def test_closing_twice_or_before_the_first_use_is_not_an_error(self, open_backend: OpenBackend) -> None:
        # B-CLO-03 X-30
        unused, used = open_backend(), open_backend()
        await used.count_jobs()
        for backend in (unused, used, used, unused):
            await backend.close()

    async def test_leaving_the_block_closes_it_even_by_an_error(self, open_backend: OpenBackend) -> None:
        # B-CLO-01
        async def fail_inside(backend: Backend) -> None:
            async with backend as entered:
                assert entered is backend
                await kit.enqueue(backend)
                raise ZeroDivisionError

        backend = open_backend()
        with pytest.raises(ZeroDivisionError):
            await fail_inside(backend)
        with pytest.raises(QueueClosed):
            await backend.count_jobs()

    async def test_close_ends_waits_for_a_change(self, backend: Backend) -> None:
        # B-CLO-03
        await backend.count_jobs()
        waiting = [asyncio.create_task(backend.wait_for_change(3600)) for _ in range(3)]
        await asyncio.sleep(0)
        await backend.close()
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, bool | QueueClosed)

    async def test_calls_under_way_are_answered_or_refused_and_none_is_left_hanging(self, backend: Backend) -> None:
        # B-CLO-03
        await backend.count_jobs()
        under_way = [asyncio.create_task(backend.enqueue_job(kit.new_job())) for _ in range(50)]
        await asyncio.sleep(0)
        await backend.close()
        for answer in await asyncio.gather(*under_way, return_exceptions=True):
            assert isinstance(answer, str | QueueClosed)


Call = Callable[[Backend], Awaitable[object]]


class StoreFailure(Exception):
    """Raised by the broken clock inside a store."""


async def set_out(backend: Backend) -> None:
    """Store a job for every operation to work on."""
    await kit.job_in(backend, S.RUNNING, "running")
    await kit.job_in(backend, S.CANCELLING, "cancelling")
    await kit.job_in(backend, S.DEAD, "dead")
    await kit.job_in(backend, S.CREATED, "created")
    await kit.enqueue(backend, "pending")
    await kit.enqueue(backend, "delayed", run_at=3600)
    await backend.put_schedule(Schedule(id="nightly", job=kit.new_job(), repeat=Repeat(every=3600)))


class TestInterruptions:
    """Cancellation of the caller, and errors inside the store."""

    @every_verb
    async def test_an_internal_error_rolls_back(self, backend: Backend, clock: BreakableClock, call: Call) -> None:
        # B-ERR-04 B-ENQ-08 B-ENQ-10 B-ENQS-11 B-DEQ-16 B-COMP-11 B-FAIL-09 B-STOP-09 B-SWR-05 B-MUS-07 B-UPD-08
        # B-CAN-10 B-ACK-06 B-MWU-07 B-RST-06 B-IMP-01 B-INV-02 M-SQL-01
        await set_out(backend)
        before = await kit.picture_of(backend)
        with clock.broken(StoreFailure("no time")):
            try:
                await call(backend)
            except (StoreFailure, BackendUnavailable):
                assert await kit.picture_of(backend) == before
        await kit.enqueue(backend, "afterwards")
        assert await kit.status_of(backend, "afterwards") is S.INITIAL_PENDING

    @pytest.mark.parametrize("verb", ["enqueue", "claim", "complete", "cancel"])
    async def test_no_operation_succeeds_without_time(self, backend: Backend, clock: BreakableClock, verb: str) -> None:
        """Makes sure that the test above meets errors."""
        # B-ERR-04 B-ENQ-10 B-DEQ-16
        await set_out(backend)
        calls: dict[str, Call] = {
            "enqueue": lambda b: b.enqueue_jobs([kit.new_job()]),
            "claim": lambda b: b.dequeue_jobs("worker-1"),
            "complete": lambda b: b.complete_job("running"),
            "cancel": lambda b: b.cancel_jobs(job_ids=["pending"]),
        }
        with clock.broken(StoreFailure("no time")), pytest.raises((StoreFailure, BackendUnavailable)):
            await calls[verb](backend)

    @every_verb
    async def test_a_cancelled_call_is_atomic_and_the_store_works_on(self, backend: Backend, call: Call) -> None:
        # B-API-02 B-ERR-01 B-ENQ-10 B-ENQS-11 B-DEQ-16 B-FAIL-09 B-MUS-07 B-UPD-08 X-34 X-117
        await set_out(backend)
        task = asyncio.ensure_future(call(backend))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kit.audit(backend)
        await kit.enqueue(backend, "afterwards", queue="afterwards")
        assert (await kit.claim(backend, "worker-2", queues=["afterwards"])).id == "afterwards"

    async def test_a_cancelled_call_does_not_cancel_others(self, backend: Backend, clock: BreakableClock) -> None:
        # B-ERR-01 X-117
        await backend.count_jobs()
        loop, here, cancelled = asyncio.get_running_loop(), threading.get_ident(), threading.Event()
        tasks = [asyncio.ensure_future(backend.enqueue_job(kit.new_job(f"j{number}"))) for number in range(30)]

        def cancel() -> None:
            for task in tasks[::2]:
                task.cancel()
            cancelled.set()

        def cancel_in_the_midst() -> None:
            if clock.readings < asked + 10 or cancelled.is_set():
                return
            if threading.get_ident() == here:
                cancel()
            else:
                loop.call_soon_threadsafe(cancel)
                cancelled.wait(10)

        asked = clock.readings
        clock.on_reading = cancel_in_the_midst
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=20)
        assert cancelled.is_set()
        assert answers[1::2] == [f"j{number}" for number in range(1, 30, 2)]
        assert all(isinstance(answer, str | asyncio.CancelledError) for answer in answers)

    async def test_a_call_cancelled_before_it_began_does_nothing(self, backend: Backend) -> None:
        # B-ERR-01
        await backend.count_jobs()
        task = asyncio.ensure_future(backend.enqueue_job(kit.new_job("")))  # invalid too: the cancellation must win
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await kit.all_jobs(backend) == []

    async def test_a_cancelled_batch_is_there_whole_or_not_at_all(self, backend: Backend) -> None:
        # B-ENQS-07 B-ERR-01
        for number in range(20):
            batch = [kit.new_job(f"{number}.{part}", tags=[f"batch {number}"]) for part in range(10)]
            task = asyncio.ensure_future(backend.enqueue_jobs(batch))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await kit.enqueue(backend, "last")  # earlier writes are stored before this one
        for number in range(20):
            assert (await backend.get_job_stats([f"batch {number}"])).total_jobs in (0, 10)

    async def test_a_claim_of_a_cancelled_call_expires(self, backend: Backend, clock: BreakableClock) -> None:
        # B-DEQ-16
        await kit.enqueue(backend, "j1")
        task = asyncio.ensure_future(backend.dequeue_jobs("worker-1"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found: list[Job] = []
        while not found:  # the claim may still be made after its caller was cancelled
            clock.advance(30)
            await backend.reclaim_expired_leases()
            found = await backend.dequeue_jobs("worker-2")
        assert [job.id for job in found] == ["j1"]

    async def test_waiting_can_be_cancelled(self, backend: Backend) -> None:
        # B-ERR-01 X-117
        await backend.count_jobs()
        task = asyncio.ensure_future(backend.wait_for_change(3600))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
