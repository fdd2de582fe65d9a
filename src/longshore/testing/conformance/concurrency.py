"""Concurrent calls from several threads and event loops; and every known race as one named test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import DuplicateJob, InvalidTransition, JobNotInflight, LeaseLost
from longshore.core.filters import JobFilter
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

Answer = TypeVar("Answer")


async def in_threads(count: int, work: Callable[[int], Awaitable[Answer]]) -> list[Answer]:
    """Run the work in this many threads at once, each with its own event loop."""

    def one(number: int) -> Answer:
        return asyncio.run(_awaited(work(number)))

    return await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(count)))


async def _awaited(work: Awaitable[Answer]) -> Answer:
    return await work


class TestConcurrency:
    """Guarantees under concurrent calls."""

    # -- many callers

    async def test_many_claimers_never_share_a_job(self, backend: Backend) -> None:
        # B-CON-02 B-DEQ-11 B-DEQ-12 B-INV-01 B-INV-05 B-PERF-05 B-IMP-02 B-IMP-03 T-RES-03 B-TST-01 X-33
        await backend.enqueue_jobs([kit.new_job(f"j{number}", tags=["eu"]) for number in range(120)])

        async def work(number: int) -> list[str]:
            taken = []
            while jobs := await backend.dequeue_jobs(f"worker-{number}", ["eu"] if number % 2 else [], number % 3 + 1):
                taken += [job.id for job in jobs]
                for job in jobs:
                    assert (job.assignee_id, job.epoch) == (f"worker-{number}", 1)
            return taken

        taken = [job_id for ids in await in_threads(12, work) for job_id in ids]
        assert sorted(taken) == sorted(f"j{number}" for number in range(120))

    async def test_many_enqueue_at_once_and_every_job_is_there_once(self, backend: Backend) -> None:
        # B-ENQ-09 B-CON-02 M-SQL-04
        async def work(_: int) -> list[str]:
            singles = [await backend.enqueue_job(kit.new_job()) for _ in range(5)]
            return [*singles, *await backend.enqueue_jobs([kit.new_job() for _ in range(5)])]

        stored = [job_id for ids in await in_threads(8, work) for job_id in ids]
        jobs = await kit.all_jobs(backend)
        assert sorted(stored) == sorted(job.id for job in jobs)
        assert len({job.uid for job in jobs}) == 80

    async def test_two_hundred_parallel_enqueues_with_one_key_make_one_job(self, backend: Backend) -> None:
        # T-M6-01
        async def work(number: int) -> list[str]:
            jobs = [kit.new_job(f"{number}.{part}", idempotency_key="order-7") for part in range(25)]
            return await asyncio.gather(*(backend.enqueue_job(job) for job in jobs))

        answers = {job_id for ids in await in_threads(8, work) for job_id in ids}
        assert answers == {job.id for job in await kit.all_jobs(backend)}
        assert len(answers) == 1

    async def test_of_many_enqueues_with_one_id_one_wins(self, backend: Backend) -> None:
        # B-ENQ-04
        async def work(number: int) -> bool:
            try:
                await backend.enqueue_job(kit.new_job("the one", payload=str(number).encode()))
            except DuplicateJob:
                return False
            return True

        won = await in_threads(10, work)
        assert won.count(True) == 1
        assert (await backend.get_job("the one")).payload == str(won.index(True)).encode()

    async def test_a_batch_is_seen_whole_or_not_at_all(self, backend: Backend) -> None:
        # B-ENQS-07 B-INV-02 B-GET-03 B-STAT-09
        async def work(number: int) -> set[int]:
            if number == 0:
                for _ in range(20):
                    await backend.enqueue_jobs([kit.new_job(tags=["batch"]) for _ in range(10)])
            seen = set()
            for _ in range(40):
                seen.add((await backend.get_job_stats(["batch"])).total_jobs % 10)
                seen.add((await backend.get_job_stats()).total_jobs % 10)
            return seen

        assert {remainder for seen in await in_threads(4, work) for remainder in seen} == {0}

    async def test_the_numbers_add_up_at_every_moment_while_jobs_move(self, backend: Backend) -> None:
        # B-STAT-09 B-GET-03 M-SQL-05
        await backend.enqueue_jobs([kit.new_job(tags=["changing"]) for _ in range(40)])

        async def work(number: int) -> None:
            if number < 3:
                while jobs := await backend.dequeue_jobs(f"worker-{number}", limit=2):
                    await backend.settle_jobs([Outcome(job.id, job.lease) for job in jobs])
                return
            for _ in range(40):
                for tags in ((), ("changing",)):
                    stats = await backend.get_job_stats(tags)
                    assert stats.total_jobs == 40
                    assert stats.pending_jobs + stats.running_jobs + stats.completed_jobs == 40
                assert sum((await backend.count_jobs()).values()) == 40

        await in_threads(5, work)
        assert (await backend.count_jobs())[S.COMPLETED] == 40

    async def test_a_limit_holds_against_many_claimers(self, backend: Backend) -> None:
        await backend.set_limits("default", running=4, per_key=2)
        await backend.enqueue_jobs([kit.new_job(concurrency_key=f"k{number % 3}") for number in range(60)])

        async def work(number: int) -> int:
            done = 0
            for _ in range(200):
                jobs = await backend.dequeue_jobs(f"worker-{number}", limit=2)
                held = (await backend.list_jobs(JobFilter(statuses=[S.RUNNING]))).items
                assert len(held) <= 4
                assert all(count <= 2 for count in Counter(job.concurrency_key for job in held).values())
                for job in jobs:
                    await backend.complete_job(job.id, lease=kit.lease_of(job))
                    done += 1
                if not jobs and not (await backend.get_job_stats()).pending_jobs:
                    break
            return done

        assert sum(await in_threads(6, work)) == 60

    async def test_opposite_orders_of_the_same_jobs_never_lock_one_another(self, backend: Backend) -> None:
        # B-IMP-04
        ids = [f"j{number}" for number in range(30)]
        await backend.enqueue_jobs([kit.new_job(job_id, tags=["all"]) for job_id in ids])
        await backend.dequeue_jobs("worker-1", limit=30)

        async def work(number: int) -> None:
            for _ in range(5):
                order = ids if number % 2 else ids[::-1]
                await backend.settle_jobs([Outcome(job_id, None, "fail", error="again") for job_id in order])
                await backend.dequeue_jobs(f"worker-{number}", limit=30)
                await backend.cancel_jobs(["all"], order[:2])
                await backend.mark_worker_unresponsive(f"worker-{number}")

        await asyncio.wait_for(in_threads(6, work), timeout=50)
        for job_id in ids:
            kit.assert_legal_history(await kit.history(backend, job_id))

    async def test_a_follower_sees_every_event_while_many_write(self, backend: Backend) -> None:
        async def work(number: int) -> list[str]:
            if number < 4:
                for part in range(10):
                    job_id = f"{number}.{part}"
                    await backend.enqueue_job(kit.new_job(job_id, tags=[job_id]))
                    job = await kit.claim(backend, f"worker-{number}", tags=[job_id])
                    await backend.complete_job(job_id, lease=kit.lease_of(job))
                return []
            seen: list[str] = []
            cursor = None
            for _ in range(2000):
                events = await backend.read_events(cursor, 7)
                seen += [f"{event.job_id} {event.job_seq}" for event in events]
                cursor = events[-1].cursor if events else cursor
                if len(seen) >= 120:
                    break
                if not events:
                    await backend.wait_for_change(1, after=cursor)
            return seen

        *_, followed = await in_threads(5, work)
        whole = [f"{event.job_id} {event.job_seq}" for event in await kit.log_of(backend)]
        assert followed == whole
        assert len(whole) == len(set(whole)) == 120

    async def test_many_schedulers_make_one_job_for_each_planned_time(self, backend: Backend, clock: HeldClock) -> None:
        for name in ("a", "b", "c"):
            await backend.put_schedule(Schedule(id=name, job=kit.new_job(), repeat=Repeat(every=60, catch_up="all")))
        clock.advance(300)
        made = [job.id for jobs in await in_threads(6, lambda _: backend.fire_due_schedules()) for job in jobs]
        assert len(made) == len(set(made)) == len(await kit.all_jobs(backend)) == 15

    async def test_many_sweepers_count_a_crash_once(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([kit.new_job() for _ in range(30)])
        await backend.dequeue_jobs("worker-1", limit=30)
        clock.advance(30)
        swept = [j.id for jobs in await in_threads(6, lambda _: backend.reclaim_expired_leases(10)) for j in jobs]
        assert len(swept) == len(set(swept)) == 30
        assert {job.crashes for job in await kit.all_jobs(backend)} == {1}

    # -- known races

    async def test_two_claimers_one_job(self, backend: Backend) -> None:
        # B-DEQ-12 B-INV-05
        for _ in range(20):
            job = await kit.enqueue(backend)
            claims = await asyncio.gather(*(backend.dequeue_jobs(name) for name in ("worker-1", "worker-2")))
            assert sorted(len(jobs) for jobs in claims) == [0, 1]
            await backend.complete_job(job.id)

    async def test_a_late_report_after_a_reclaim_changes_nothing(self, backend: Backend, clock: HeldClock) -> None:
        # T-M4-03
        job = await kit.job_in(backend, S.RUNNING)
        clock.advance(30)
        await backend.reclaim_expired_leases()
        await kit.refused(backend, backend.complete_job(job.id, b"late", lease=kit.lease_of(job)), JobNotInflight)
        again = await kit.claim(backend, "worker-2")
        await kit.refused(backend, backend.complete_job(job.id, b"late", lease=kit.lease_of(job)), LeaseLost)
        await backend.complete_job(job.id, b"in time", lease=kit.lease_of(again))
        assert (await backend.get_job(job.id)).result == b"in time"

    async def test_a_late_report_after_the_same_worker_claims_again_changes_nothing(self, backend: Backend) -> None:
        # T-M4-02
        job = await kit.job_in(backend, S.RUNNING)
        await backend.release_lease(job.id, kit.lease_of(job))
        again = await kit.claim(backend, "worker-1")
        caught = await kit.refused(backend, backend.fail_job(job.id, "late", lease=kit.lease_of(job)), LeaseLost)
        assert caught.reason == "mismatch"
        assert (await backend.get_job(job.id)).lease == kit.lease_of(again)

    async def test_a_late_outcome_without_a_lease_frees_the_current_holder(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.RUNNING)
        await backend.release_lease(job.id, kit.lease_of(job))
        await kit.claim(backend, "worker-2")
        assert await backend.complete_job(job.id, b"late") == {"worker-2": 1}

    async def test_cancel_against_complete(self, backend: Backend) -> None:
        # B-COMP-03
        for number in range(20):
            job = await kit.job_in(backend, S.RUNNING, f"j{number}")
            both = [backend.cancel_jobs(job_ids=[job.id]), backend.complete_job(job.id, lease=kit.lease_of(job))]
            await asyncio.gather(*(both if number % 2 else both[::-1]))
            assert await kit.status_of(backend, job.id) is S.COMPLETED
            moves = kit.steps(await kit.history(backend, job.id))[2:]
            assert moves in ([(S.RUNNING, S.COMPLETED)], [(S.RUNNING, S.CANCELLING), (S.CANCELLING, S.COMPLETED)])

    async def test_sweeper_against_finish(self, backend: Backend, clock: HeldClock) -> None:
        for number in range(20):
            job = await kit.job_in(backend, S.RUNNING, f"j{number}")
            clock.advance(30 if number % 3 else timedelta(seconds=29, microseconds=999_999))
            both = [backend.reclaim_expired_leases(), backend.complete_job(job.id, lease=kit.lease_of(job))]
            outcomes = await asyncio.gather(*(both if number % 2 else both[::-1]), return_exceptions=True)
            refusals = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            after = await backend.get_job(job.id)
            if number % 3 and after.status is S.RUNNING:  # a sweep may skip a job that another call is settling
                await backend.reclaim_expired_leases()
                after = await backend.get_job(job.id)
            if number % 3:
                assert [type(refusal) for refusal in refusals] in ([LeaseLost], [JobNotInflight])
                assert (after.status, after.crashes) == (S.UNKNOWN_RETRY, 1)
                await backend.cancel_jobs(job_ids=[job.id])
            else:
                assert refusals == []
                assert (after.status, after.crashes) == (S.COMPLETED, 0)

    async def test_a_claim_settles_at_most_once(self, backend: Backend) -> None:
        for _ in range(10):
            job = await kit.job_in(backend, S.RUNNING)
            reports = [
                backend.complete_job(job.id, b"1", lease=kit.lease_of(job)),
                backend.fail_job(job.id, "2", retry_at=3600, lease=kit.lease_of(job)),
                backend.bury_job(job.id, "3", lease=kit.lease_of(job)),
                backend.release_lease(job.id, kit.lease_of(job), run_at=3600),
            ]
            outcomes = await asyncio.gather(*reports, return_exceptions=True)
            assert sum(outcome == {"worker-1": 1} for outcome in outcomes) == 1
            assert sum(isinstance(outcome, JobNotInflight) for outcome in outcomes) == 3

    async def test_a_claimer_against_a_canceller(self, backend: Backend) -> None:
        for number in range(20):
            job = await kit.enqueue(backend, f"j{number}")
            both = [backend.dequeue_jobs("worker-1"), backend.cancel_jobs(job_ids=[job.id])]
            await asyncio.gather(*(both if number % 2 else both[::-1]))
            assert await kit.status_of(backend, job.id) in (S.UNSCHEDULED, S.CANCELLING)

    async def test_a_dependency_completing_while_its_dependent_comes_in(self, backend: Backend) -> None:
        for number in range(20):
            parent = await kit.job_in(backend, S.RUNNING)
            child = kit.new_job(f"child {number}", depends_on=(parent.id,))
            both = [backend.complete_job(parent.id), backend.enqueue_job(child)]
            await asyncio.gather(*(both if number % 2 else both[::-1]))
            assert await kit.status_of(backend, child.id) is S.INITIAL_PENDING
            await backend.cancel_jobs(job_ids=[child.id])

    async def test_two_operators_retry_one_dead_job(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.DEAD)
        retried = await asyncio.gather(*(backend.retry_job(job.id) for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(answer, InvalidTransition) for answer in retried) == 4
        assert [event.event for event in await kit.history(backend, job.id)].count("job.retried") == 1

    @pytest.mark.parametrize("threads", [2, 8])
    async def test_one_backend_serves_many_event_loops_and_survives_them(self, backend: Backend, threads: int) -> None:
        # B-CON-02 B-INV-01
        async def work(number: int) -> bool:
            await kit.enqueue(backend, f"{threads} {number}")
            return await backend.wait_for_change(0.001) in (True, False)

        assert all(await in_threads(threads, work))
        assert (await backend.get_job_stats()).total_jobs == threads
