"""Settling and claiming in one transaction, which the kit cannot require of every store; and the default of the
contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from longshore.backends.base import Backend, Outcome
from longshore.backends.memory import MemoryBackend
from longshore.testing.conformance.claim import TestTurnover as Turnover
from longshore.testing.conformance.fixtures import BreakableClock
from longshore.testing.conformance.scenarios import S, audit, enqueue, job_in, lease_of, refused


async def test_a_turn_is_one_transaction(backend: Backend, clock: BreakableClock) -> None:
    job = await job_in(backend, S.RUNNING)
    await enqueue(backend, "next")
    before = clock.readings
    report, jobs = await backend.settle_and_dequeue([Outcome(job.id, lease_of(job))], "worker-1")
    assert clock.readings == before + 1
    assert (report.settled, [job.id for job in jobs]) == ({job.id: S.COMPLETED}, ["next"])


async def test_a_lease_beyond_the_calendar_is_refused_before_anything_is_settled(backend: Backend) -> None:
    # B-ERR-05
    job = await job_in(backend, S.RUNNING)
    await refused(
        backend,
        backend.settle_and_dequeue([Outcome(job.id, lease_of(job))], "worker-1", lease=timedelta(days=8000 * 365)),
        field="lease",
    )


class InTwoSteps(MemoryBackend):
    """A store with only the default of the contract."""

    settle_and_dequeue = Backend.settle_and_dequeue


class TestInTwoSteps(Turnover):
    """Without one transaction for both, everything else holds."""

    @pytest_asyncio.fixture
    async def backend(self, clock: BreakableClock) -> AsyncIterator[Backend]:
        opened = InTwoSteps(clock)
        yield opened
        await audit(opened)

    @pytest.fixture
    def connect_store(self) -> None:
        """No other backend is opened here."""
