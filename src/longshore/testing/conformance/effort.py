"""The cost of operations, which must not grow with the number of stored jobs. Work is counted, never timed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter
from longshore.testing.conformance.fixtures import BreakableClock, OpenBackend, WorkDone
from longshore.testing.conformance.scenarios import S, job_in, lease_of, new_job, schedule

FEW = 40
MANY = 1000

Fill = Callable[[Backend, HeldClock, int], Awaitable[object]]
Call = Callable[[Backend], Awaitable[object]]


async def _waiting(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.enqueue_jobs([new_job(f"j{n}", tags=["common"], priority=n % 5) for n in range(count)])
    await backend.enqueue_jobs([new_job(f"rare {n}", tags=["common", "rare"], queue="other") for n in range(5)])
    clock.advance(1)


async def _other_types(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.enqueue_jobs([new_job(type="other", priority=n % 5) for n in range(count)])
    await backend.enqueue_jobs([new_job(type=("mine", "mine too")[n % 2], priority=n % 5) for n in range(10)])
    clock.advance(1)


async def _other_types_with_keys(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.set_limits("default", per_key=1)
    await backend.enqueue_jobs([new_job(type="other", concurrency_key=f"key {n}") for n in range(count)])
    await backend.enqueue_jobs([new_job(type="mine", concurrency_key=f"my key {n}") for n in range(10)])
    clock.advance(1)


async def _future(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.enqueue_jobs([new_job(run_at=3600 + number) for number in range(count)])
    await _waiting(backend, clock, 10)


async def _finished(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.enqueue_jobs([new_job() for _ in range(count)])
    held = await backend.dequeue_jobs("worker-1", limit=count)
    await backend.settle_jobs([Outcome(job.id, job.lease) for job in held])
    await _waiting(backend, clock, 10)


async def _to_be_kept(backend: Backend, clock: HeldClock, count: int) -> None:
    await _finished(backend, clock, count)
    await job_in(backend, S.RUNNING, "running", priority=-9, options={"remove_on_complete": count})


async def _running(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.enqueue_jobs([new_job() for _ in range(count)])
    await backend.dequeue_jobs("somebody else", limit=count, lease=3600)
    await _waiting(backend, clock, 10)
    await job_in(backend, S.RUNNING, "running", priority=-9)


async def _full_keys(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.set_limits("default", per_key=1)
    jobs = [new_job(concurrency_key=f"key {number // 2}") for number in range(count)]
    await backend.enqueue_jobs(jobs)
    await backend.dequeue_jobs("somebody else", limit=count)
    await _waiting(backend, clock, 10)


async def _types_of_a_full_key(backend: Backend, clock: HeldClock, count: int) -> None:
    await backend.set_limits("default", per_key=1)
    await job_in(backend, S.RUNNING, "running", concurrency_key="key")
    kinds = ("other", "third", "mine")
    await backend.enqueue_jobs([new_job(type=kinds[n * 3 // count], concurrency_key="key") for n in range(count)])
    clock.advance(1)
    assert await backend.dequeue_jobs("w", limit=5) == []


async def _complete_and_claim_a_type(backend: Backend) -> None:
    await backend.complete_job("running")
    assert len(await backend.dequeue_jobs("w", limit=5, types=["mine"])) == 1


async def _fan_in(backend: Backend, clock: HeldClock, count: int) -> None:
    names = tuple(f"p{number}" for number in range(count))
    await backend.enqueue_jobs([*(new_job(name) for name in names), new_job("fan-in", depends_on=names)])
    await backend.dequeue_jobs("worker-1", limit=2)
    clock.advance(1)


async def _scheduled(backend: Backend, clock: HeldClock, count: int) -> None:
    await asyncio.gather(*(backend.put_schedule(schedule(f"later {n}", every=7200 + n)) for n in range(count)))
    await asyncio.gather(*(backend.put_schedule(schedule(f"soon {n}", every=1)) for n in range(5)))
    clock.advance(1)


# stored jobs, operation, rows of the specification
BOUNDED: dict[str, tuple[Fill, Call]] = {
    "get_job": (_waiting, lambda b: b.get_job("rare 4")),  # stored last
    "dequeue_jobs among the waiting": (_waiting, lambda b: b.dequeue_jobs("w", limit=5)),
    "dequeue_jobs behind the future": (_future, lambda b: b.dequeue_jobs("w", limit=5)),
    "dequeue_jobs behind the finished": (_finished, lambda b: b.dequeue_jobs("w", limit=5)),
    "dequeue_jobs behind the running": (_running, lambda b: b.dequeue_jobs("w", limit=5)),
    "dequeue_jobs behind full keys": (_full_keys, lambda b: b.dequeue_jobs("w", limit=5)),
    "dequeue_jobs by a rare tag": (_waiting, lambda b: b.dequeue_jobs("w", ["rare"], limit=5)),
    "dequeue_jobs by a rare tag and a common one": (
        _waiting,
        lambda b: b.dequeue_jobs("w", ["common", "rare"], limit=5),
    ),
    "dequeue_jobs of some types behind others": (
        _other_types,
        lambda b: b.dequeue_jobs("w", limit=5, types=["mine", "mine too"]),
    ),
    "dequeue_jobs of a type without jobs": (_other_types, lambda b: b.dequeue_jobs("w", limit=5, types=["unheard of"])),
    "dequeue_jobs of some types with limited keys": (
        _other_types_with_keys,
        lambda b: b.dequeue_jobs("w", limit=5, types=["mine"]),
    ),
    "dequeue_jobs of a type whose key has free slots again": (_types_of_a_full_key, _complete_and_claim_a_type),
    "dequeue_jobs of nothing": (_waiting, lambda b: b.dequeue_jobs("w", ["unheard of"], limit=5)),
    "dequeue_jobs from one queue": (_waiting, lambda b: b.dequeue_jobs("w", limit=5, queues=["other"])),
    "facts_about behind the finished": (_finished, lambda b: b.facts_about("rare 4")),
    "complete_job": (_running, lambda b: b.complete_job("running")),
    "complete_job that is one of many waited for": (_fan_in, lambda b: b.complete_job("p1")),
    "complete_job with remove_on_complete": (_to_be_kept, lambda b: b.complete_job("running")),
    "cancel_jobs by id": (_waiting, lambda b: b.cancel_jobs(job_ids=["j3", "j5"])),
    "cancel_jobs by a rare tag": (_waiting, lambda b: b.cancel_jobs(["rare"])),
    "mark_worker_unresponsive": (_running, lambda b: b.mark_worker_unresponsive("worker-1")),
    "reclaim_expired_leases": (_running, lambda b: b.reclaim_expired_leases()),
    "time_out_cancellations": (_running, lambda b: b.time_out_cancellations(60)),
    "announce_due_jobs before the future": (_future, lambda b: b.announce_due_jobs()),
    "announce_due_jobs among the waiting": (_waiting, lambda b: b.announce_due_jobs()),
    "reset_running_jobs": (_waiting, lambda b: b.reset_running_jobs()),
    "cleanup_expired_jobs": (_finished, lambda b: b.cleanup_expired_jobs(3600)),
    "apply_retention": (_finished, lambda b: b.apply_retention()),
    "count_jobs": (_waiting, lambda b: b.count_jobs()),
    "get_job_stats": (_waiting, lambda b: b.get_job_stats()),
    "get_job_stats by a rare tag": (_waiting, lambda b: b.get_job_stats(["rare"])),
    "enqueue_job": (_waiting, lambda b: b.enqueue_job(new_job())),
    "fire_due_schedules": (_waiting, lambda b: b.fire_due_schedules()),
    "fire_due_schedules among many": (_scheduled, lambda b: b.fire_due_schedules()),
    "put_schedule among many": (_scheduled, lambda b: b.put_schedule(schedule("soon 3", every=2))),
    "pause_schedule among many": (_scheduled, lambda b: b.pause_schedule("soon 4")),
    "run_schedule among many": (_scheduled, lambda b: b.run_schedule("soon 4")),
}


class TestEffort:
    """The cost of an operation, in the store's own unit and in transactions."""

    @pytest.mark.parametrize(("fill", "call"), BOUNDED.values(), ids=BOUNDED.keys())
    async def test_the_work_of_an_operation_does_not_grow_with_the_store(
        self, work_done: WorkDone | None, open_backend: OpenBackend, clock: BreakableClock, fill: Fill, call: Call
    ) -> None:
        # B-PERF-01 B-PERF-02 B-PERF-03 B-GET-04 B-DEQ-14 B-DEQ-15 B-STAT-10 B-CAN-11 B-MWU-08 B-RST-06 B-CLN-03
        # B-IDX-01 B-IDX-02 B-IDX-03 B-IDX-04 B-IDX-05 X-92 M-SCH-04 M-SCH-07 M-SCH-09 M-SCH-11
        backend = open_backend()
        if not backend.capabilities.durable:
            pytest.skip("a store that is not durable may scan all its jobs")
        if work_done is None:
            pytest.skip("the store does not count its work")
        await fill(backend, clock, FEW)
        before = work_done()
        await call(backend)
        among_few = work_done() - before
        # restore the first state as far as possible: jobs removed by the first call must not make the second one cheap
        await fill_up(backend, clock, fill)
        before = work_done()
        await call(backend)
        among_many = work_done() - before
        assert among_few > 0
        assert among_many <= 2 * among_few + 500

    @pytest.mark.parametrize("verb", ["enqueue", "dequeue", "settle", "extend", "cancel", "delete"])
    async def test_a_batch_is_one_transaction(self, backend: Backend, clock: BreakableClock, verb: str) -> None:
        """Every transaction reads the clock once: one time throughout, and a count of the transactions."""
        # B-ENQS-09 B-PERF-04 B-CAN-11 B-DEL-04 B-INV-02
        jobs = [new_job(f"j{number}") for number in range(50)]
        single, batch = jobs[:25], jobs[25:]
        if verb != "enqueue":
            await backend.enqueue_jobs(jobs)
        held = {}
        if verb in ("settle", "extend", "delete"):
            held = {job.id: lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=50)}
        if verb == "delete":
            await backend.settle_jobs([Outcome(job_id, lease) for job_id, lease in held.items()])
        readings = clock.readings
        for job in single:
            if verb == "enqueue":
                await backend.enqueue_job(job)
            elif verb == "dequeue":
                await backend.dequeue_jobs("worker-1")
            elif verb == "settle":
                await backend.complete_job(job.id, lease=held[job.id])
            elif verb == "extend":
                await backend.extend_leases({job.id: held[job.id]}, 60)
            elif verb == "cancel":
                await backend.cancel_jobs(job_ids=[job.id])
            else:
                await backend.delete_jobs(job_ids=[job.id])
        one_by_one, readings = clock.readings - readings, clock.readings
        ids = [job.id for job in batch]
        if verb == "enqueue":
            assert len(await backend.enqueue_jobs(batch)) == 25
        elif verb == "dequeue":
            assert len(await backend.dequeue_jobs("worker-1", limit=25)) == 25
        elif verb == "settle":
            assert len((await backend.settle_jobs([Outcome(job_id, held[job_id]) for job_id in ids])).settled) == 25
        elif verb == "extend":
            assert len(await backend.extend_leases({job_id: held[job_id] for job_id in ids}, 60)) == 25
        elif verb == "cancel":
            assert len((await backend.cancel_jobs(job_ids=ids))[0]) == 25
        else:
            await backend.delete_jobs(job_ids=ids)
        together = clock.readings - readings
        assert 1 <= together <= 3
        assert one_by_one >= 25


async def fill_up(backend: Backend, clock: HeldClock, fill: Fill) -> None:
    """Remove all jobs and fill the store again, with many."""
    while True:
        page = await backend.list_jobs(JobFilter(), limit=500)
        if not page.items:
            break
        ids = [job.id for job in page.items]
        await backend.cancel_jobs(job_ids=ids)
        await backend.settle_jobs([Outcome(job.id, None, "stop") for job in page.items if job.status is S.RUNNING])
        await backend.delete_jobs(job_ids=ids)
    await backend.set_limits("default", per_key=None)
    await fill(backend, clock, MANY)
