"""Flow control by time: how many of a queue or of a key start in each window."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.limits import Rate
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.limits import fill, take
from longshore.testing.conformance.staging import new_job, refused


class TestRates:
    """`set_limits` with `rate` and `rate_per_key`."""

    async def test_a_rate_lets_so_many_start_in_each_window_counted_from_1970(
        self, backend: Backend, clock: HeldClock
    ) -> None:
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

    async def test_whoever_waits_is_told_when_the_next_window_opens(self, backend: Backend, clock: HeldClock) -> None:
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

    async def test_whoever_waits_is_told_when_the_window_of_a_key_opens(
        self, backend: Backend, clock: HeldClock
    ) -> None:
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

    async def test_a_rate_per_key_gives_its_whole_room_in_every_window_however_little_was_used_before(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        clock.set(datetime(2026, 1, 1, tzinfo=UTC))
        await backend.set_limits("default", rate_per_key=Rate(5, 60))
        await fill(backend, 30, "k")
        for limit in (5, 3, 5, 1, 5, 2, 5):
            assert len(await take(backend, limit)) == limit
            clock.advance(60)

    @pytest.mark.parametrize("limit", ["rate", "rate_per_key"])
    async def test_a_rate_is_a_rate(self, backend: Backend, limit: str) -> None:
        async with refused(backend, InvalidArgument, field=limit):
            await backend.set_limits("default", **{limit: 5})  # type: ignore[arg-type]  # a wrong type is the point

    @pytest.mark.parametrize("tags", [(), ("x",)], ids=["all", "by tag"])
    async def test_a_window_of_a_time_that_a_clock_set_back_takes_back_holds_nobody_up(
        self, open_backend: OpenBackend, clock: HeldClock, tags: tuple[str, ...]
    ) -> None:
        """A key that is idle again is forgotten with its window, also if that lies ahead by now."""
        backend = open_backend()  # whose log is not audited: the times in it go back
        await backend.set_limits("default", rate_per_key=Rate(1, 10))
        await backend.enqueue_job(new_job("first", concurrency_key="a", tags=["x"]))
        (first,) = await backend.dequeue_jobs("worker", tags, 5)
        clock.set(clock.now() - timedelta(minutes=10))
        others = [new_job(f"other {n}", concurrency_key="b") for n in range(60)]
        await backend.enqueue_jobs([*others, new_job("second", concurrency_key="a", tags=["x"])])
        assert await take(backend, limit=1) == ["other 0"]
        await backend.settle_jobs([Outcome("first", first.lease)])
        assert [job.id for job in await backend.dequeue_jobs("worker", tags, 5)] == ["second"]
