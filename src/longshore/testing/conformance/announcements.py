"""A delayed job's time comes: it may be claimed at its instant whoever notices, and one announcement tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.staging import S, claim, claimable, enqueue, history, lease_of, new_job, seconds


async def told(backend: Backend, job_id: str) -> list[str]:
    """What the log tells of the job, in order."""
    return [event.event for event in await history(backend, job_id)]


class TestAnnouncements:
    """`announce_due_jobs`."""

    async def test_a_delayed_job_may_be_claimed_at_its_instant_though_nobody_announced_it(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-TR-05 M-SCHED-02 M-OPT-02
        await enqueue(backend, "later", delay=10)
        clock.advance(9.999999)
        assert await backend.dequeue_jobs("w") == []
        clock.advance(0.000001)
        assert (await claim(backend)).id == "later"
        assert await told(backend, "later") == ["job.added", "job.delayed", "job.active"]

    async def test_what_was_claimed_before_it_was_announced_is_not_announced_any_more(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await enqueue(backend, "later", delay=10)
        clock.advance(10)
        job = await claim(backend)
        assert await backend.announce_due_jobs() == []
        await backend.release_lease(job.id, lease_of(job))
        assert await backend.announce_due_jobs() == []
        await backend.complete_job("later")
        assert await backend.announce_due_jobs() == []
        assert "job.promoted" not in await told(backend, "later")

    async def test_a_delayed_job_is_announced_once_when_its_time_has_come_and_not_before(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-TR-05 M-SCHED-02 M-EV-09
        stored = await enqueue(backend, "later", delay=10)
        clock.advance(9.999999)
        assert await backend.announce_due_jobs() == []
        clock.advance(0.000001)
        assert await backend.announce_due_jobs() == ["later"]
        assert await backend.announce_due_jobs() == []
        *_, event = await history(backend, "later")
        assert (event.event, event.job_seq, event.occurred_at) == ("job.promoted", 3, clock.now())
        assert (event.from_status, event.to_status) == (None, None)
        job = await backend.get_job("later")
        assert (job.status, job.run_at) == (S.INITIAL_PENDING, stored.run_at)
        assert job.updated_at == clock.now()
        assert await claimable(backend) == ["later"]

    async def test_jobs_without_a_delay_or_with_one_long_past_are_never_announced(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        #
        await enqueue(backend, "plain")
        await enqueue(backend, "of yesterday", run_at=clock.now() - seconds(86_400))
        await enqueue(backend, "of now", run_at=clock.now())
        clock.advance(100)
        assert await backend.announce_due_jobs() == []

    async def test_every_further_delay_is_announced_again(self, backend: Backend, clock: HeldClock) -> None:
        # M-TR-08 M-RTY-06
        await enqueue(backend, "again", delay=10)
        clock.advance(10)
        assert await backend.announce_due_jobs() == ["again"]
        job = await claim(backend)
        await backend.fail_job(job.id, "broken", retry_at=5)
        clock.advance(5)
        assert await backend.announce_due_jobs() == ["again"]
        job = await claim(backend)
        await backend.release_lease(job.id, lease_of(job), run_at=5)
        assert await backend.announce_due_jobs() == []
        clock.advance(5)
        assert await backend.announce_due_jobs() == ["again"]
        assert (await told(backend, "again")).count("job.promoted") == 3

    async def test_a_job_promoted_by_hand_or_called_off_is_not_announced(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-JM-05
        for name in ("by hand", "called off", "buried", "removed"):
            await enqueue(backend, name, delay=10)
        await backend.promote_job("by hand")
        await backend.cancel_jobs(job_ids=["called off", "removed"])
        await backend.delete_jobs(job_ids=["removed"])
        await backend.update_job_status("buried", S.RUNNING)
        await backend.bury_job("buried", "broken")
        clock.advance(10)
        assert await backend.announce_due_jobs() == []
        assert (await told(backend, "by hand")).count("job.promoted") == 1

    async def test_only_what_stands_in_line_is_announced(self, backend: Backend, clock: HeldClock) -> None:
        # M-TR-06
        await enqueue(backend, "created", delay=10, status=S.CREATED)
        await enqueue(backend, "first")
        await enqueue(backend, "dependent", delay=10, depends_on=("first",))
        await enqueue(backend, "impatient", delay=30, depends_on=("first",))
        clock.advance(10)
        assert await backend.announce_due_jobs() == []
        await backend.accept_jobs(["created"])
        await backend.complete_job((await claim(backend, limit=1)).id)
        assert await backend.announce_due_jobs() == []
        clock.advance(20)
        assert await backend.announce_due_jobs() == ["impatient"]
        assert (await told(backend, "impatient"))[-3:] == ["job.dependencies_completed", "job.delayed", "job.promoted"]

    async def test_so_many_are_announced_at_once_the_longest_due_first(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-SCHED-02
        await backend.enqueue_jobs([new_job(f"j{after}", delay=after) for after in (5, 3, 1, 4, 2)])
        clock.advance(4)
        assert await backend.announce_due_jobs(limit=3) == ["j1", "j2", "j3"]
        assert await backend.announce_due_jobs(limit=3) == ["j4"]
        assert await backend.announce_due_jobs(limit=3) == []

    async def test_a_job_in_a_paused_queue_or_behind_a_full_key_is_announced_like_any_other(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await backend.pause_queue("quiet")
        await backend.set_limits("default", per_key=1)
        await enqueue(backend, "holder", concurrency_key="k")
        await claim(backend)
        await enqueue(backend, "paused", queue="quiet", delay=1)
        await enqueue(backend, "behind", concurrency_key="k", delay=1)
        clock.advance(1)
        assert await backend.dequeue_jobs("w", limit=5) == []
        assert await backend.announce_due_jobs() == ["paused", "behind"]
        await backend.complete_job("holder")
        assert (await claim(backend)).id == "behind"

    async def test_a_clock_set_back_announces_nothing_twice(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "later", delay=10)
        clock.advance(10)
        assert await backend.announce_due_jobs() == ["later"]
        clock.set(clock.now() - seconds(3600))
        assert await backend.announce_due_jobs() == []
        clock.advance(3700)
        assert await backend.announce_due_jobs() == []

    async def test_an_announcement_changes_neither_the_place_in_line_nor_any_count(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        for name in ("a", "b", "c"):
            await enqueue(backend, name, delay=10, tags=["eu"])
        clock.advance(10)
        before = (await backend.count_jobs(), await backend.get_job_stats(["eu"]))
        assert await backend.announce_due_jobs(limit=2) == ["a", "b"]
        assert (await backend.count_jobs(), await backend.get_job_stats(["eu"])) == before
        assert await claimable(backend, tags=["eu"]) == ["a", "b", "c"]

    async def test_whoever_waits_for_work_is_woken(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "newest first", delay=10, lifo=True)
        clock.advance(10)
        waiting = asyncio.create_task(backend.wait_for_change(30))
        await asyncio.sleep(0.01)
        await backend.announce_due_jobs()
        assert await waiting is True

    @pytest.mark.parametrize("others", ["another who announces", "a worker who claims"])
    async def test_many_at_once_announce_each_job_at_most_once(
        self, open_backend: OpenBackend, clock: HeldClock, others: str
    ) -> None:
        # M-SCHED-13
        backend = open_backend()
        second = open_backend() if backend.capabilities.shared else backend
        await backend.enqueue_jobs([new_job(f"j{number}", delay=1) for number in range(100)])
        clock.advance(1)
        rival: Callable[[], Any] = (
            (lambda: second.announce_due_jobs(7))
            if others == "another who announces"
            else (lambda: second.dequeue_jobs("w", limit=7))
        )
        announced: list[str] = []

        async def announce() -> None:
            while batch := await backend.announce_due_jobs(7):
                announced.extend(batch)

        async def keep_at_it() -> None:
            while found := await rival():
                announced.extend(found if isinstance(found[0], str) else [])

        await asyncio.gather(announce(), keep_at_it())
        announced += await backend.announce_due_jobs()
        assert len(announced) == len(set(announced))
        for number in range(100):
            events = await told(backend, f"j{number}")
            assert events.count("job.promoted") == announced.count(f"j{number}")
            if "job.active" in events and "job.promoted" in events:
                assert events.index("job.promoted") < events.index("job.active")
