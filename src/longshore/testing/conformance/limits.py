"""Limits: paused queues, concurrency limits, concurrency keys and rate limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.limits import Rate
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.scenarios import S, claim, enqueue, job_in, lease_of, new_job, refused, status_of


async def fill(backend: Backend, count: int, key: str | None = None, **fields: object) -> list[str]:
    """Enqueue jobs of one concurrency key, named after it."""
    jobs = [new_job(f"{key or 'job'} {number}", concurrency_key=key, **fields) for number in range(count)]
    return await backend.enqueue_jobs(jobs)


async def take(backend: Backend, limit: int = 100, **options: object) -> list[str]:
    """Claim jobs and keep them."""
    return [job.id for job in await backend.dequeue_jobs("worker-1", limit=limit, **options)]  # type: ignore[arg-type]  # options of dequeue_jobs


async def _settle(backend: Backend, job: Job) -> object:
    return await backend.settle_jobs([Outcome(job.id, job.lease, "complete")])


async def _cancel(backend: Backend, job: Job, was_executing: bool) -> None:
    await backend.cancel_jobs(job_ids=[job.id])
    await backend.acknowledge_cancellation(job.id, was_executing)


Release = Callable[[Backend, Job], Awaitable[object]]

RELEASES: dict[str, Release] = {
    "complete": lambda b, job: b.complete_job(job.id, lease=lease_of(job)),
    "fail": lambda b, job: b.fail_job(job.id, "later", retry_at=3600),
    "bury": lambda b, job: b.bury_job(job.id, "hopeless"),
    "stop": lambda b, job: b.stop_job(job.id),
    "unknown stopped": lambda b, job: b.mark_job_unknown_stopped(job.id),
    "release": lambda b, job: b.release_lease(job.id, lease_of(job), run_at=3600),
    "settle": _settle,
    "update": lambda b, job: b.update_job_status(job.id, S.STOPPED),
    "acknowledged": lambda b, job: _cancel(b, job, True),
    "disowned": lambda b, job: _cancel(b, job, False),
}


class TestLimits:
    """`pause_queue`, `resume_queue`, `set_limits`."""

    # -- pause

    async def test_a_paused_queue_takes_jobs_in_and_gives_none_out(self, backend: Backend) -> None:
        #
        running = await job_in(backend, S.RUNNING)
        await backend.pause_queue("default")
        await enqueue(backend, "waiting")
        await enqueue(backend, "elsewhere", queue="mail")
        assert await take(backend) == ["elsewhere"]
        assert await take(backend, queues=["default"]) == []
        await backend.complete_job(running.id, lease=lease_of(running))
        await backend.resume_queue("default")
        assert await take(backend) == ["waiting"]

    async def test_pausing_twice_writes_one_event(self, backend: Backend) -> None:
        #
        for verb in (backend.pause_queue, backend.pause_queue, backend.resume_queue, backend.resume_queue):
            await verb("mail")
        events = await backend.read_events()
        assert [(event.event, event.queue, event.job_id) for event in events] == [
            ("queue.paused", "mail", None),
            ("queue.resumed", "mail", None),
        ]

    # -- concurrency limit of a queue

    async def test_a_queue_never_runs_more_than_its_limit(self, backend: Backend) -> None:
        # B-CON-03
        await backend.set_limits("default", running=3)
        await fill(backend, 10)
        await enqueue(backend, "elsewhere", queue="mail")
        assert await take(backend) == ["job 0", "job 1", "job 2", "elsewhere"]
        assert await take(backend) == []
        await backend.complete_job("job 1")
        assert await take(backend) == ["job 3"]
        [info] = [queue for queue in await backend.list_queues() if queue.name == "default"]
        assert (info.running, info.counts[S.RUNNING]) == (3, 3)

    @pytest.mark.parametrize("release_slot", RELEASES.values(), ids=RELEASES.keys())
    async def test_every_ending_frees_the_slot_of_the_queue(self, backend: Backend, release_slot: Release) -> None:
        # B-ACK-05: queue and key limits are released even by a worker that disowns the job
        await backend.set_limits("default", running=1, per_key=1)
        await fill(backend, 3, "k")
        for expected in ("k 0", "k 1", "k 2"):
            job = await claim(backend)
            assert job.id == expected
            assert await take(backend) == []
            await release_slot(backend, job)

    async def test_a_job_being_cancelled_keeps_its_slot_until_it_is_acknowledged(self, backend: Backend) -> None:
        await backend.set_limits("default", running=1, per_key=1)
        await fill(backend, 2, "k")
        await take(backend)
        await backend.cancel_jobs(job_ids=["k 0"])
        assert await take(backend) == []
        await backend.acknowledge_cancellation("k 0", True)
        assert await take(backend) == ["k 1"]

    # -- concurrency limit of a key

    async def test_a_key_never_runs_more_than_its_limit_and_other_keys_continue(self, backend: Backend) -> None:
        # M-FUT-07
        await backend.set_limits("default", per_key=2)
        await fill(backend, 4, "a")
        await fill(backend, 3, "b")
        await fill(backend, 2)
        assert await take(backend) == ["a 0", "a 1", "b 0", "b 1", "job 0", "job 1"]
        assert await take(backend) == []
        await backend.complete_job("a 0")
        await backend.complete_job("b 1")
        assert await take(backend) == ["a 2", "b 2"]

    async def test_a_key_belongs_to_its_queue(self, backend: Backend) -> None:
        for queue in ("mail", "bills"):
            await backend.set_limits(queue, per_key=1)
            await backend.enqueue_jobs([new_job(f"{queue} {n}", queue=queue, concurrency_key="k") for n in range(2)])
        assert sorted(await take(backend)) == ["bills 0", "mail 0"]

    async def test_a_blocked_job_keeps_its_order(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 3, "k")
        clock.advance(1)
        await enqueue(backend, "newcomer 1")
        await enqueue(backend, "newcomer 2")
        assert await take(backend, limit=1) == ["k 0"]
        assert await take(backend, limit=1) == ["newcomer 1"]
        await backend.complete_job("k 0")
        assert await take(backend, limit=10) == ["k 1", "newcomer 2"]

    async def test_the_first_of_a_key_starts_first(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 3, "k")
        assert await take(backend) == ["k 0"]
        clock.advance(1)
        await enqueue(backend, "urgent", concurrency_key="k", priority=-1)
        await backend.complete_job("k 0")
        assert await take(backend) == ["urgent"]
        await backend.complete_job("urgent")
        assert await take(backend) == ["k 1"]

    async def test_a_blocked_job_can_be_cancelled_or_expire(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 2, "k")
        await enqueue(backend, "short-lived", concurrency_key="k", expires_at=10)
        await enqueue(backend, "last", concurrency_key="k")
        assert await take(backend) == ["k 0"]
        assert await backend.cancel_jobs(job_ids=["k 1"]) == (["k 1"], [])
        clock.advance(10)
        await backend.reclaim_expired_leases()
        assert await status_of(backend, "short-lived") is S.UNSCHEDULED
        await backend.complete_job("k 0")
        assert await take(backend) == ["last"]

    async def test_a_full_key_also_blocks_claims_by_tag(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 3, "k", tags=["eu", "slow"])
        await enqueue(backend, "other", tags=["eu"], concurrency_key="another")
        assert await take(backend, tags=["eu"]) == ["k 0", "other"]
        assert await take(backend, tags=["slow"]) == []
        assert await take(backend, tags=["eu", "slow"]) == []
        clock.advance(1)
        await backend.complete_job("k 0")
        assert await take(backend, tags=["slow", "eu"]) == ["k 1"]
        await backend.complete_job("k 1")
        assert await take(backend) == ["k 2"]

    async def test_a_delayed_job_of_a_key_waits_for_run_at(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 2, "k")
        await enqueue(backend, "later", concurrency_key="k", run_at=10, priority=-1)
        await enqueue(backend, "newest", concurrency_key="k", lifo=True)
        assert await take(backend) == ["newest"]
        await backend.complete_job("newest")
        assert await take(backend) == ["k 0"]
        clock.advance(10)
        assert await take(backend) == []
        await backend.complete_job("k 0")
        assert await take(backend) == ["later"]
        await backend.fail_job("later", "again", retry_at=5)
        assert await take(backend) == ["k 1"]
        await backend.complete_job("k 1")
        assert await take(backend) == []
        clock.advance(5)
        assert await take(backend) == ["later"]

    async def test_a_crash_gives_its_keys_slot_to_the_next_job(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 2, "k")
        assert await take(backend) == ["k 0"]
        clock.advance(30)
        await backend.reclaim_expired_leases()
        assert await take(backend) == ["k 0"]  # it kept its sort key
        await backend.fail_job("k 0", "sorted last")
        assert await take(backend) == ["k 1"]

    async def test_a_dependent_set_free_under_a_full_key_waits_its_turn(self, backend: Backend) -> None:
        await backend.set_limits("default", per_key=1)
        await enqueue(backend, "parent")
        await enqueue(backend, "child", depends_on=["parent"], concurrency_key="k")
        await fill(backend, 1, "k")
        assert sorted(await take(backend)) == ["k 0", "parent"]
        await backend.complete_job("parent")
        assert await take(backend) == []
        await backend.complete_job("k 0")
        assert await take(backend) == ["child"]

    async def test_many_full_keys_do_not_hide_the_few_with_free_slots(self, backend: Backend) -> None:
        await backend.set_limits("default", per_key=1)
        for number in range(60):
            await fill(backend, 3, f"key {number}")
        assert len(await take(backend, limit=50)) == 50
        assert len(await take(backend, limit=50)) == 10
        assert await take(backend) == []
        await enqueue(backend, "fresh", concurrency_key="fresh key")
        assert await take(backend) == ["fresh"]
        await backend.complete_job("key 41 0")
        assert await take(backend) == ["key 41 1"]

    async def test_both_limits_hold_together(self, backend: Backend) -> None:
        await backend.set_limits("default", running=3, per_key=2)
        await fill(backend, 5, "a")
        await fill(backend, 5, "b")
        assert await take(backend) == ["a 0", "a 1", "b 0"]
        await backend.complete_job("a 0")
        assert await take(backend) == ["a 2"]
        await backend.complete_job("a 1")
        await backend.complete_job("a 2")
        assert await take(backend) == ["a 3", "a 4"]

    # -- keys and types

    @pytest.mark.parametrize("limit", [1, 100])
    @pytest.mark.parametrize(
        "limits",
        [{"per_key": 1}, {"per_key": 3}, {"rate_per_key": Rate(1, 3600)}, {"rate_per_key": Rate(3, 3600)}],
        ids=["1 per key", "3 per key", "1 per hour", "3 per hour"],
    )
    async def test_a_freed_key_starts_jobs_of_any_type(
        self, backend: Backend, clock: HeldClock, limits: dict[str, Any], limit: int
    ) -> None:
        # S5, B-DEQ-09: jobs of other types come first in the order of the same key
        count = limits["per_key"] if "per_key" in limits else limits["rate_per_key"].count
        started = min(limit, count)

        async def release_slot() -> None:
            if "per_key" in limits:
                for job in (await backend.list_jobs(JobFilter(statuses=[S.RUNNING]))).items:
                    await backend.complete_job(job.id)
            else:
                clock.advance(3600)

        await backend.set_limits("default", **limits)
        await enqueue(backend, "retried", type="mine", concurrency_key="k")
        assert await take(backend) == ["retried"]
        await backend.fail_job("retried", "later", retry_at=3610)
        clock.advance(3600)
        await fill(backend, count, "k", type="mine")
        assert len(await take(backend, lease=None)) == count
        await backend.enqueue_jobs([new_job(f"other {n}", type="other", concurrency_key="k") for n in range(150)])
        clock.advance(10)
        await backend.enqueue_jobs([new_job(f"third {n}", type="third", concurrency_key="k") for n in range(4)])
        await backend.enqueue_jobs([new_job(f"mine {n}", type="mine", concurrency_key="k") for n in range(4)])
        for types in (None, ["mine"], None, ["third", "mine"], None):
            assert await take(backend, limit=limit, types=types) == []
        for types, expected in (
            (["mine"], ["retried", "mine 0", "mine 1"]),
            (["third"], ["third 0", "third 1", "third 2"]),
            (None, ["other 0", "other 1", "other 2"]),
            (["other", "unheard of"], [f"other {started + n}" for n in range(3)]),
        ):
            await release_slot()
            assert await take(backend, limit=limit, types=types, lease=None) == expected[:started]

    @pytest.mark.parametrize("release_slot", RELEASES.values(), ids=RELEASES.keys())
    async def test_every_ending_frees_a_slot_for_any_type(self, backend: Backend, release_slot: Release) -> None:
        # S5, B-ACK-05
        await backend.set_limits("default", per_key=1)
        await fill(backend, 1, "k")
        first = await claim(backend)
        await backend.enqueue_jobs([new_job(type="other", concurrency_key="k") for _ in range(30)])
        await backend.enqueue_jobs([new_job(f"mine {n}", type="mine", concurrency_key="k") for n in range(3)])
        assert await take(backend, limit=1) == []
        await release_slot(backend, first)
        assert await backend.cancel_jobs(job_ids=["mine 0"]) == (["mine 0"], [])
        assert await take(backend, types=["mine"]) == ["mine 1"]

    # -- changed limits

    async def test_a_raised_limit_takes_hold_at_once(self, backend: Backend) -> None:
        await backend.set_limits("default", running=1, per_key=1)
        await fill(backend, 5, "k")
        assert await take(backend) == ["k 0"]
        await backend.set_limits("default", per_key=3)
        assert await take(backend) == []  # the queue's own limit still applies
        await backend.set_limits("default", running=2)
        assert await take(backend) == ["k 1"]
        await backend.set_limits("default", running=None)
        assert await take(backend) == ["k 2"]
        await backend.set_limits("default", per_key=None)
        assert await take(backend) == ["k 3", "k 4"]

    async def test_a_lowered_limit_stops_no_running_job_and_holds_from_now_on(self, backend: Backend) -> None:
        await fill(backend, 6, "k")
        assert len(await take(backend, limit=4)) == 4
        await backend.set_limits("default", running=2, per_key=2)
        assert (await backend.count_jobs())[S.RUNNING] == 4
        for number in range(2):
            await backend.complete_job(f"k {number}")
            assert await take(backend) == []
        await backend.complete_job("k 2")
        assert await take(backend) == ["k 4"]

    async def test_a_limit_set_while_jobs_run_counts_those_that_run(self, backend: Backend) -> None:
        await fill(backend, 2, "a")
        await fill(backend, 2, "b")
        await take(backend, limit=1)
        await backend.set_limits("default", per_key=1)
        assert await take(backend) == ["b 0"]

    async def test_a_limit_that_is_not_named_stays_as_it_is(self, backend: Backend) -> None:
        rate = Rate(5, 60)
        await backend.set_limits("default", running=4, per_key=3, rate=rate, rate_per_key=rate)
        await backend.set_limits("default", running=2)
        await backend.set_limits("default")
        [info] = await backend.list_queues()
        assert (info.running, info.per_key, info.rate, info.rate_per_key) == (2, 3, rate, rate)
        await backend.set_limits("default", running=None, rate=None)
        [info] = await backend.list_queues()
        assert (info.running, info.per_key, info.rate, info.rate_per_key) == (None, 3, None, rate)

    @pytest.mark.parametrize("limit", ["running", "per_key"])
    @pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
    async def test_a_limit_is_a_whole_number_of_at_least_one(self, backend: Backend, limit: str, value: object) -> None:
        await refused(backend, backend.set_limits("default", **{limit: value}), field=limit)  # type: ignore[arg-type]  # a wrong type on purpose

    # -- random operations

    async def test_no_limit_is_ever_exceeded_whatever_comes_and_goes(self, backend: Backend, clock: HeldClock) -> None:
        """A long seeded walk; after each step the store's counts are compared with the limits."""
        # B-TST-01
        await backend.set_limits("default", running=6, per_key=2)
        for key in ("a", "b", "c", "d"):
            await fill(backend, 10, key)
        verbs = list(RELEASES.values())
        settled = 0
        for step in range(120):
            held = await backend.dequeue_jobs(f"worker-{step % 5}", limit=step % 4 + 1)
            page = await backend.list_jobs(JobFilter(statuses=[S.RUNNING, S.CANCELLING]), limit=500)
            keys = Counter(job.concurrency_key for job in page.items)
            assert len(page.items) <= 6
            assert all(count <= 2 for count in keys.values()), keys
            for job in held[: 1 + step % 3]:
                await verbs[(step + settled) % len(verbs)](backend, job)
                settled += 1
            if step % 7 == 0:
                await backend.mark_worker_unresponsive(f"worker-{step % 5}")
            if step % 11 == 0:
                clock.advance(31)
                await backend.reclaim_expired_leases()
        clock.advance(7200)
        await backend.reclaim_expired_leases()
        while jobs := await backend.dequeue_jobs("last", limit=10):
            for job in jobs:
                await backend.complete_job(job.id)
        left = await backend.count_jobs()
        assert sum(count for status, count in left.items() if not status.final) == 0
        assert settled >= 40

    async def test_an_expired_job_does_not_block_its_key(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        await enqueue(backend, "short", concurrency_key="k", expires_at=10)
        await enqueue(backend, "next", concurrency_key="k")
        clock.advance(60)
        assert await take(backend) == ["next"]

    async def test_a_claim_by_tag_finds_the_first_job_of_a_key_with_free_slots_again(self, backend: Backend) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 1, "k")
        await take(backend)
        for number in range(5):
            await enqueue(backend, f"later {number}", concurrency_key="k", tags=[f"order-{number}"])
        assert await take(backend) == []
        assert await take(backend, tags=["order-3"]) == []
        await backend.complete_job("k 0")
        assert await take(backend, tags=["order-3"]) == ["later 3"]
        assert await take(backend) == []


class TestRates:
    """`set_limits` with `rate` and `rate_per_key`."""

    async def test_a_rate_bounds_the_starts_of_each_window(self, backend: Backend, clock: HeldClock) -> None:
        # M-FUT-08
        clock.set(datetime(2026, 1, 1, 12, 0, 50, tzinfo=UTC))
        await backend.set_limits("default", rate=Rate(3, 60))
        await fill(backend, 10)
        assert len(await take(backend)) == 3
        assert await take(backend) == []
        clock.advance(9)
        assert await take(backend) == []
        clock.advance(1)  # 12:01:00, a new window though only ten seconds have passed
        assert await take(backend, limit=2) == ["job 3", "job 4"]
        assert await take(backend) == ["job 5"]
        clock.advance(59)
        assert await take(backend) == []
        clock.advance(1)
        assert len(await take(backend)) == 3

    async def test_the_next_due_time_includes_the_next_rate_window(self, backend: Backend, clock: HeldClock) -> None:
        clock.set(datetime(2026, 1, 1, 12, 0, 50, tzinfo=UTC))
        await backend.set_limits("default", rate=Rate(2, 60))
        await fill(backend, 4)
        await take(backend, limit=1)
        assert await backend.next_due() is None
        await take(backend, limit=1)
        assert await backend.next_due() == datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
        assert await backend.next_due(["mail"]) is None
        await backend.enqueue_job(new_job("soon", run_at=3))
        assert await backend.next_due() == datetime(2026, 1, 1, 12, 0, 53, tzinfo=UTC)
        clock.advance(10)
        assert await backend.next_due() is None
        opened = datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
        assert await backend.next_due(after=opened - timedelta(seconds=1)) == opened

    async def test_next_due_is_when_the_window_of_a_key_opens(self, backend: Backend, clock: HeldClock) -> None:
        clock.set(datetime(2026, 1, 1, 12, 0, 50, tzinfo=UTC))
        await backend.set_limits("default", rate_per_key=Rate(1, 20))
        await fill(backend, 2, "k")
        assert await backend.next_due() is None
        assert await take(backend) == ["k 0"]
        assert await backend.next_due() == datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
        clock.advance(10)
        assert await take(backend) == ["k 1"]

    async def test_a_rate_counts_starts_not_endings(self, backend: Backend) -> None:
        await backend.set_limits("default", rate=Rate(2, 60), rate_per_key=Rate(1, 60))
        await fill(backend, 3, "k")
        assert await take(backend) == ["k 0"]
        await backend.complete_job("k 0")
        assert await take(backend) == []

    async def test_a_rate_per_key_holds_each_key_by_itself(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", rate_per_key=Rate(2, 60))
        await fill(backend, 5, "a")
        await fill(backend, 1, "b")
        await fill(backend, 3)
        assert await take(backend) == ["a 0", "a 1", "b 0", "job 0", "job 1", "job 2"]
        clock.advance(60)
        assert await take(backend) == ["a 2", "a 3"]
        assert await take(backend) == []
        clock.advance(60)
        assert await take(backend) == ["a 4"]

    async def test_a_rate_and_a_limit_per_key_hold_together(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1, rate_per_key=Rate(2, 60))
        await fill(backend, 6, "k")
        assert await take(backend) == ["k 0"]
        await backend.complete_job("k 0")
        assert await take(backend) == ["k 1"]
        await backend.complete_job("k 1")
        assert await take(backend) == []
        clock.advance(60)
        assert await take(backend) == ["k 2"]
        assert await take(backend) == []

    async def test_a_rate_that_is_lifted_or_raised_lets_the_waiting_go(self, backend: Backend) -> None:
        await backend.set_limits("default", rate=Rate(1, 3600), rate_per_key=Rate(1, 3600))
        await fill(backend, 4, "k")
        assert await take(backend) == ["k 0"]
        await backend.set_limits("default", rate=None)
        assert await take(backend) == []
        await backend.set_limits("default", rate_per_key=Rate(3, 3600))
        assert await take(backend) == ["k 1", "k 2"]
        await backend.set_limits("default", rate_per_key=None)
        assert await take(backend) == ["k 3"]

    async def test_a_rate_per_key_carries_nothing_over(self, backend: Backend, clock: HeldClock) -> None:
        clock.set(datetime(2026, 1, 1, tzinfo=UTC))
        await backend.set_limits("default", rate_per_key=Rate(5, 60))
        await fill(backend, 30, "k")
        for limit in (5, 3, 5, 1, 5, 2, 5):
            assert len(await take(backend, limit)) == limit
            clock.advance(60)

    @pytest.mark.parametrize("limit", ["rate", "rate_per_key"])
    async def test_a_rate_is_a_rate(self, backend: Backend, limit: str) -> None:
        await refused(backend, backend.set_limits("default", **{limit: 5}), field=limit)  # type: ignore[arg-type]  # a wrong type on purpose

    @pytest.mark.parametrize("tags", [(), ("x",)], ids=["all", "by tag"])
    async def test_a_clock_set_back_forgets_later_windows(
        self, open_backend: OpenBackend, clock: HeldClock, tags: tuple[str, ...]
    ) -> None:
        """A key that is idle again is forgotten with its window, even if the window is in the future by now."""
        backend = open_backend()  # its log is not audited: the times in it go back
        await backend.set_limits("default", rate_per_key=Rate(1, 10))
        await backend.enqueue_job(new_job("first", concurrency_key="a", tags=["x"]))
        (first,) = await backend.dequeue_jobs("worker", tags, 5)
        clock.set(clock.now() - timedelta(minutes=10))
        others = [new_job(f"other {n}", concurrency_key="b") for n in range(60)]
        await backend.enqueue_jobs([*others, new_job("second", concurrency_key="a", tags=["x"])])
        assert await take(backend, limit=1) == ["other 0"]
        await backend.settle_jobs([Outcome("first", first.lease)])
        assert [job.id for job in await backend.dequeue_jobs("worker", tags, 5)] == ["second"]
