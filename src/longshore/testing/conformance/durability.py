"""Durability: what a store keeps when it is opened again; and two backends on one store."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from longshore.backends.base import Backend, WorkerInfo
from longshore.core.clock import HeldClock
from longshore.core.errors import LeaseLost
from longshore.core.limits import Rate
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.concurrency import in_threads
from longshore.testing.conformance.fixtures import BreakableClock, OpenBackend
from longshore.testing.conformance.scenarios import S


class TestDurability:
    """An acknowledged write exists when the store is opened again."""

    @pytest.fixture
    def durable(self, backend: Backend) -> Backend:
        """The backend, if its store is durable."""
        if not backend.capabilities.durable:
            pytest.skip("the store does not declare that it is durable")
        return backend

    async def test_everything_survives_a_close(self, durable: Backend, open_backend: OpenBackend) -> None:
        # B-CON-01 B-CON-03 B-IMP-01 B-TST-01 X-99
        for status in kit.EVERY_STATUS:
            job = await kit.job_in(durable, status, payload=b"\x00\xff", tags=["eu"], options={"k": [1, None]})
            await durable.append_log(job.id, f"a line of {status}")
        running = await kit.job_in(durable, S.RUNNING)
        await durable.set_progress(running.id, {"page": 3})
        await durable.save_checkpoint(running.id, b"\x00raw")
        await durable.pause_queue("paused")
        await durable.set_limits("limited", running=2, per_key=1, rate=Rate(5, 60), rate_per_key=Rate(1, 1))
        await durable.put_schedule(
            Schedule(id="nightly", job=kit.new_job(), repeat=Repeat(cron="0 3 * * *", tz="Asia/Tokyo"))
        )
        await durable.heartbeat_worker(WorkerInfo(id="worker-1", detail={"threads": 4}))
        before = await kit.picture_of(durable)
        await durable.close()
        again = open_backend()
        assert await kit.picture_of(again) == before
        assert [line.number for line in await again.read_logs(running.id)] == []
        for job in await kit.all_jobs(again):
            if job.id != running.id:
                assert [line.message for line in await again.read_logs(job.id)] == [f"a line of {job.status}"]

    async def test_claims_survive_a_close(self, durable: Backend, open_backend: OpenBackend, clock: HeldClock) -> None:
        await durable.enqueue_jobs([kit.new_job("a"), kit.new_job("b")])
        a, b = await durable.dequeue_jobs("worker-1", limit=2)
        await durable.close()
        again = open_backend()
        assert await again.dequeue_jobs("worker-2") == []
        await again.complete_job("a", lease=kit.lease_of(a))
        clock.advance(30)
        assert [job.id for job in await again.reclaim_expired_leases()] == ["b"]
        assert (await kit.claim(again)).epoch == kit.lease_of(b).epoch + 1

    async def test_order_limits_and_dependencies_survive(self, durable: Backend, open_backend: OpenBackend) -> None:
        await durable.set_limits("default", per_key=1)
        await durable.enqueue_jobs(
            [kit.new_job(f"k{n}", concurrency_key="k", idempotency_key=f"key {n}") for n in range(3)]
        )
        await kit.enqueue(durable, "child", depends_on=["k0"], priority=-1)
        assert [job.id for job in await durable.dequeue_jobs("worker-1", limit=5)] == ["k0"]
        await durable.close()
        again = open_backend()
        assert await again.dequeue_jobs("worker-1", limit=5) == []
        assert await again.enqueue_job(kit.new_job(idempotency_key="key 1")) == "k1"
        await again.complete_job("k0")
        assert [job.id for job in await again.dequeue_jobs("worker-1", limit=5)] == ["child", "k1"]
        fresh = await kit.enqueue(again, "fresh")
        assert fresh.uid > max(job.uid for job in await kit.all_jobs(again) if job.id != "fresh")

    async def test_tombstones_survive(self, durable: Backend, open_backend: OpenBackend, clock: HeldClock) -> None:
        removed = await kit.job_in(durable, S.COMPLETED, "done", idempotency_key="k")
        await durable.delete_jobs(job_ids=["done"])
        await durable.close()
        again = open_backend()
        clock.advance(timedelta(hours=23))
        assert await again.enqueue_job(kit.new_job(idempotency_key="k")) == "done"
        assert (await kit.enqueue(again)).uid > removed.uid

    async def test_a_cursor_survives_a_close(self, durable: Backend, open_backend: OpenBackend) -> None:
        await kit.enqueue(durable, "before")
        cursor = await kit.last_cursor(durable)
        await kit.enqueue(durable, "meanwhile")
        await durable.close()
        again = open_backend()
        await kit.enqueue(again, "after")
        assert [event.job_id for event in await again.read_events(cursor)] == ["meanwhile", "after"]


class TestSharing:
    """Two backends on one store see the same jobs."""

    @pytest.fixture
    def shared(self, backend: Backend) -> Backend:
        """The backend, if its store can be opened twice."""
        if not backend.capabilities.shared:
            pytest.skip("the store does not declare that it can be shared")
        return backend

    async def test_two_backends_see_each_others_writes(self, shared: Backend, open_backend: OpenBackend) -> None:
        # B-CON-01
        second = open_backend()
        await kit.enqueue(shared, "j1", tags=["eu"])
        job = await kit.claim(second, "worker-2", tags=["eu"])
        assert await kit.status_of(shared, "j1") is S.RUNNING
        assert await shared.dequeue_jobs("worker-1") == []
        await shared.cancel_jobs(job_ids=["j1"])
        renewed = await second.extend_leases({"j1": kit.lease_of(job)}, 30)
        assert renewed["j1"].cancel_requested
        await second.acknowledge_cancellation("j1", True, lease=kit.lease_of(job))
        assert await kit.picture_of(shared) == await kit.picture_of(second)

    async def test_readers_do_not_wait(self, shared: Backend, open_backend: OpenBackend, clock: BreakableClock) -> None:
        # M-SQL-05
        second = open_backend()
        await kit.enqueue(shared, "j1")
        assert await kit.status_of(second, "j1") is S.INITIAL_PENDING
        seen: list[S] = []
        here = threading.get_ident()

        def check() -> None:
            if threading.get_ident() != here and not seen:  # inside the transaction of the other one
                seen.append(asyncio.run(asyncio.wait_for(kit.status_of(second, "j1"), 10)))

        clock.on_reading = check
        await shared.cancel_jobs(job_ids=["j1"])
        clock.on_reading = None
        assert seen == [S.INITIAL_PENDING]
        assert await kit.status_of(second, "j1") is S.UNSCHEDULED

    async def test_backends_are_fenced(self, shared: Backend, open_backend: OpenBackend, clock: HeldClock) -> None:
        second = open_backend()
        job = await kit.job_in(shared, S.RUNNING)
        clock.advance(30)
        await second.reclaim_expired_leases()
        await kit.claim(second, "worker-2")
        with pytest.raises(LeaseLost):
            await shared.complete_job(job.id, lease=kit.lease_of(job))

    async def test_another_backends_change_ends_the_wait(self, shared: Backend, open_backend: OpenBackend) -> None:
        # B-INT-01
        second = open_backend()
        await second.count_jobs()
        await shared.wait_for_change(0)  # it starts to listen here
        for cursor in (None, await kit.last_cursor(shared)):
            waiting = asyncio.create_task(shared.wait_for_change(30, after=cursor))
            await asyncio.sleep(0)
            await kit.enqueue(second)
            assert await waiting is True

    async def test_closing_one_backend_leaves_the_other(self, shared: Backend, open_backend: OpenBackend) -> None:
        # B-CLO-01
        second = open_backend()
        await kit.enqueue(second, "j1")
        await second.close()
        assert (await kit.claim(shared)).id == "j1"
        await shared.complete_job("j1")

    async def test_several_backends_never_share_a_job(self, shared: Backend, open_backend: OpenBackend) -> None:
        # B-DEQ-12 B-PERF-05
        backends = [shared, *(open_backend() for _ in range(3))]
        await shared.enqueue_jobs([kit.new_job(f"j{number}") for number in range(60)])

        async def work(number: int) -> list[str]:
            backend = backends[number % len(backends)]
            taken = []
            while jobs := await backend.dequeue_jobs(f"worker-{number}", limit=2):
                taken += [job.id for job in jobs]
                await kit.enqueue(backend, run_at=3600)
            return taken

        taken = [job_id for ids in await in_threads(8, work) for job_id in ids]
        assert sorted(taken) == sorted(f"j{number}" for number in range(60))

    async def test_settings_apply_to_every_backend(self, shared: Backend, open_backend: OpenBackend) -> None:
        #
        second = open_backend()
        await second.count_jobs()
        await shared.enqueue_jobs([kit.new_job() for _ in range(3)])
        await shared.pause_queue("default")
        assert await second.dequeue_jobs("worker-2", limit=3) == []
        await shared.resume_queue("default")
        await shared.set_limits("default", running=1)
        assert len(await second.dequeue_jobs("worker-2", limit=3)) == 1
        assert await shared.dequeue_jobs("worker-1", limit=3) == []
