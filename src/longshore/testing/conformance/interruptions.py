"""Calls that do not come to their end: cancelled by their caller, or failed inside the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from longshore.backends.base import Backend
from longshore.core.errors import BackendUnavailable
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.testing.conformance.closing import every_verb
from longshore.testing.conformance.fixtures import BreakableClock
from longshore.testing.conformance.staging import (
    S,
    all_jobs,
    audit,
    claim,
    enqueue,
    job_in,
    new_job,
    picture_of,
    status_of,
)

Call = Callable[[Backend], Awaitable[object]]


class StoreFailure(Exception):
    """What the broken clock raises inside a store."""


async def set_out(backend: Backend) -> None:
    """A job for every verb to work on."""
    await job_in(backend, S.RUNNING, "running")
    await job_in(backend, S.CANCELLING, "cancelling")
    await job_in(backend, S.DEAD, "dead")
    await job_in(backend, S.CREATED, "created")
    await enqueue(backend, "pending")
    await enqueue(backend, "delayed", run_at=3600)
    await backend.put_schedule(Schedule(id="nightly", job=new_job(), repeat=Repeat(every=3600)))


class TestInterruptions:
    """Cancellation of the caller, and errors from within."""

    @every_verb
    async def test_an_error_inside_the_store_reaches_the_caller_and_leaves_no_trace(
        self, backend: Backend, clock: BreakableClock, call: Call
    ) -> None:
        # B-ERR-04 B-ENQ-08 B-ENQ-10 B-ENQS-11 B-DEQ-16 B-COMP-11 B-FAIL-09 B-STOP-09 B-SWR-05 B-MUS-07 B-UPD-08
        # B-CAN-10 B-ACK-06 B-MWU-07 B-RST-06 B-IMP-01 B-INV-02 M-SQL-01
        await set_out(backend)
        before = await picture_of(backend)
        with clock.broken(StoreFailure("no time")):
            try:
                await call(backend)
            except (StoreFailure, BackendUnavailable):
                assert await picture_of(backend) == before
        await enqueue(backend, "afterwards")
        assert await status_of(backend, "afterwards") is S.INITIAL_PENDING

    @pytest.mark.parametrize("verb", ["enqueue", "claim", "complete", "cancel"])
    async def test_no_verb_that_needs_the_time_succeeds_without_it(
        self, backend: Backend, clock: BreakableClock, verb: str
    ) -> None:
        """So that the test above is sure to meet errors."""
        # B-ERR-04 B-ENQ-10 B-DEQ-16
        await set_out(backend)
        calls: dict[str, Call] = {
            "enqueue": lambda b: b.enqueue_jobs([new_job()]),
            "claim": lambda b: b.dequeue_jobs("worker-1"),
            "complete": lambda b: b.complete_job("running"),
            "cancel": lambda b: b.cancel_jobs(job_ids=["pending"]),
        }
        with clock.broken(StoreFailure("no time")), pytest.raises((StoreFailure, BackendUnavailable)):
            await calls[verb](backend)

    @every_verb
    async def test_a_cancelled_call_is_made_whole_or_not_at_all_and_the_store_goes_on(
        self, backend: Backend, call: Call
    ) -> None:
        # B-API-02 B-ERR-01 B-ENQ-10 B-ENQS-11 B-DEQ-16 B-FAIL-09 B-MUS-07 B-UPD-08 X-34 X-117
        await set_out(backend)
        task = asyncio.ensure_future(call(backend))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await audit(backend)
        await enqueue(backend, "afterwards", queue="afterwards")
        assert (await claim(backend, "worker-2", queues=["afterwards"])).id == "afterwards"

    async def test_a_call_cancelled_before_its_answer_came_takes_none_of_its_neighbours_along(
        self, backend: Backend, clock: BreakableClock
    ) -> None:
        # B-ERR-01 X-117
        await backend.count_jobs()
        loop, here, cancelled = asyncio.get_running_loop(), threading.get_ident(), threading.Event()
        tasks = [asyncio.ensure_future(backend.enqueue_job(new_job(f"j{number}"))) for number in range(30)]

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
        task = asyncio.ensure_future(backend.enqueue_job(new_job("")))  # its argument is bad too: who wins is fixed
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await all_jobs(backend) == []

    async def test_a_cancelled_batch_is_there_whole_or_not_at_all(self, backend: Backend) -> None:
        # B-ENQS-07 B-ERR-01
        for number in range(20):
            batch = [new_job(f"{number}.{part}", tags=[f"batch {number}"]) for part in range(10)]
            task = asyncio.ensure_future(backend.enqueue_jobs(batch))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await enqueue(backend, "last")  # whatever was under way has been written before this
        for number in range(20):
            assert (await backend.get_job_stats([f"batch {number}"])).total_jobs in (0, 10)

    async def test_a_claim_whose_caller_vanished_comes_back_with_the_lease(
        self, backend: Backend, clock: BreakableClock
    ) -> None:
        # B-DEQ-16
        await enqueue(backend, "j1")
        task = asyncio.ensure_future(backend.dequeue_jobs("worker-1"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found: list[Job] = []
        while not found:  # the claim may still be made after its caller has gone
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
