"""Locks and uncommitted writes of other transactions lose no job, fail no job and block none needlessly."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from longshore.backends.base import Backend, ClaimFailed, Outcome
from longshore.backends.connect import connect
from longshore.backends.port import Hold
from longshore.backends.postgres.locks import LockSpaces
from longshore.core.job import Job, Lease
from longshore.core.status import JobStatus
from longshore.runtime.queue_operations import explain
from tests.backends.postgres_following import AT_ONCE

S = JobStatus
WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def somebody_waits(url: str) -> None:
    """Wait until a transaction waits for a lock."""
    with psycopg.connect(url, autocommit=True) as watching:
        while watching.execute(WAITING).fetchone() == (0,):  # noqa: ASYNC110 - the server has no event to wait for
            await asyncio.sleep(0)


async def released_slots(url: str) -> list[tuple[object, ...]]:
    """Released slots that no transaction has applied yet."""
    with psycopg.connect(url) as looking:
        return looking.execute("SELECT queue, keys, jobs FROM longshore.released_slots").fetchall()


async def claimed(backend: Backend, **options: object) -> list[str]:
    return [job.id for job in await backend.dequeue_jobs("w", limit=10, **options)]  # type: ignore[arg-type]  # as given


async def test_a_blocked_job_that_is_locked_when_its_key_gets_a_slot_is_unblocked(postgres_url: str) -> None:
    # I8
    async with connect(postgres_url) as backend:
        await backend.set_limits("default", per_key=1)
        names = ["a", "p", *(f"after {number}" for number in range(60))]  # enough that they are blocked
        await backend.enqueue_jobs([Job(id=name, type="t", concurrency_key="k") for name in names])
        assert await claimed(backend) == ["a"]
        with psycopg.connect(postgres_url) as holding:
            holding.execute("SELECT 1 FROM longshore.jobs WHERE id = 'p' FOR UPDATE")
            ending = asyncio.create_task(backend.complete_job("a"))
            await somebody_waits(postgres_url)
        await ending
        assert await claimed(backend) == ["p"]


async def test_settling_jobs_of_limited_keys_does_not_wait_for_claims(postgres_url: str) -> None:
    # I8
    async with connect(postgres_url) as backend:
        await backend.set_limits("default", per_key=1)
        await backend.enqueue_jobs([Job(id=name, type="t", concurrency_key="k") for name in "ab"])
        (a,) = await backend.dequeue_jobs("w", limit=2)
        locks = LockSpaces("longshore")
        with psycopg.connect(postgres_url) as claiming:
            claiming.execute(locks.statements({"default": Hold.SLOTS}))
            async with asyncio.timeout(AT_ONCE):
                assert (await backend.settle_jobs([Outcome("a", a.lease)])).refused == {}
                assert "key_full" not in (await explain(backend, "b")).kinds
            waiting = asyncio.create_task(claimed(backend))
            await somebody_waits(postgres_url)
        assert await waiting == ["b"]
        assert await released_slots(postgres_url) == []


async def test_a_failed_claim_reports_what_was_settled(postgres_url: str) -> None:
    async with connect(postgres_url, wait_seconds=1, answer_seconds=1) as backend:
        await backend.set_limits("default", per_key=1)
        await backend.enqueue_jobs([Job(id=name, type="t", concurrency_key="k") for name in "ab"])
        (a,) = await backend.dequeue_jobs("w", limit=2)
        with psycopg.connect(postgres_url) as claiming:
            claiming.execute(LockSpaces("longshore").statements({"default": Hold.SLOTS}))
            with pytest.raises(ClaimFailed, match="1 jobs are settled, but the claim after them failed") as reported:
                await backend.settle_and_dequeue([Outcome("a", a.lease)], "w", limit=2)
        assert reported.value.report.settled == {"a": S.COMPLETED}
        assert await claimed(backend) == ["b"]


@pytest.mark.parametrize("before", [None, 2])
@pytest.mark.parametrize("after", [None, 1])
async def test_limits_that_change_while_a_completion_is_under_way_count_it_once(
    before: int | None, after: int | None, postgres_url: str
) -> None:
    # I8
    async with connect(postgres_url) as backend:
        await backend.set_limits("default", per_key=before)
        await backend.enqueue_jobs([Job(id=name, type="t", concurrency_key="k") for name in "abc"])
        (a,) = await backend.dequeue_jobs("w", limit=1)
        with psycopg.connect(postgres_url) as holding:
            holding.execute("SELECT 1 FROM longshore.jobs WHERE id = 'a' FOR UPDATE")
            ending = asyncio.create_task(backend.settle_jobs([Outcome("a", a.lease)]))
            await somebody_waits(postgres_url)
            await asyncio.wait_for(backend.set_limits("default", per_key=after), AT_ONCE)
        assert (await ending).refused == {}
        assert await claimed(backend) == (["b", "c"] if after is None else ["b"])
        assert await released_slots(postgres_url) == []


async def test_a_job_let_in_side_by_side_with_its_claim_does_not_start_before_that(postgres_url: str) -> None:
    async with connect(postgres_url) as backend:
        await backend.enqueue_jobs([Job(id=name, type="t") for name in "ab"])
        with psycopg.connect(postgres_url) as letting_in:
            letting_in.execute("UPDATE longshore.jobs SET updated_at = updated_at + 900000 WHERE id = 'a'")
        later = (await backend.get_job("a")).updated_at
        a, b = await backend.dequeue_jobs("w", limit=2)
        assert (a.assigned_at, a.started_at, a.updated_at) == (later, later, later)
        assert b.assigned_at is not None
        assert later is not None
        assert b.assigned_at < later
        assert [a, b] == [await backend.get_job("a"), await backend.get_job("b")]
        reported = {
            event.job_id: event.occurred_at for event in await backend.read_events() if event.event == "job.active"
        }
        assert reported == {"a": later, "b": b.assigned_at}


async def test_storing_a_dependent_of_a_running_job_holds_up_neither_its_renewal_nor_that_of_others(
    postgres_url: str,
) -> None:
    async with connect(postgres_url) as backend:
        await backend.enqueue_jobs([Job(id=name, type="t") for name in "ab"])
        leases = {job.id: job.lease for job in await backend.dequeue_jobs("w", limit=2) if job.lease is not None}
        with psycopg.connect(postgres_url) as frozen:
            frozen.execute("SELECT id FROM longshore.jobs WHERE id = 'a' FOR KEY SHARE")  # as an insert of an edge
            renewed = await asyncio.wait_for(backend.extend_leases(leases, 60), AT_ONCE)
        assert sorted(renewed) == ["a", "b"]


async def test_an_enqueue_repeated_while_its_first_is_being_committed_answers_with_the_keys_job(
    postgres_url: str,
) -> None:
    # I2
    job = Job(id="x", type="t", idempotency_key="once")
    async with connect(postgres_url) as backend:
        with psycopg.connect(postgres_url) as first:
            await backend.enqueue_jobs([job], connection=first)
            again = asyncio.create_task(backend.enqueue_job(job))
            await somebody_waits(postgres_url)
            first.commit()
        assert await again == "x"


async def test_a_job_stopped_in_a_callers_transaction_is_ended_by_the_next_sweep_and_blocks_nothing_before(
    postgres_url: str,
) -> None:
    # I11
    async with connect(postgres_url) as backend:
        await backend.set_limits("default", per_key=1)
        await backend.enqueue_jobs([Job(id="failed", type="t"), Job(id="runs", type="t", concurrency_key="k")])
        assert sorted(await claimed(backend)) == ["failed", "runs"]
        await backend.bury_job("failed", "no use")
        await backend.enqueue_job(Job(id="last", type="t", depends_on=("doomed",), on_dependency_failure="stop"))
        doomed = Job(id="doomed", type="t", concurrency_key="k", depends_on=("failed",), on_dependency_failure="stop")
        with psycopg.connect(postgres_url) as callers:
            await backend.enqueue_jobs([doomed], connection=callers)
            await asyncio.wait_for(backend.complete_job("runs"), AT_ONCE)
            await backend.reclaim_expired_leases()  # it must not take an unseen job for an unknown one
            callers.commit()
        await backend.reclaim_expired_leases()
        assert (await backend.get_job("doomed")).status is S.UNSCHEDULED
        assert (await backend.get_job("last")).status is S.UNSCHEDULED


async def test_the_edges_of_a_flow_enqueued_together_are_verified(postgres_url: str) -> None:
    """Otherwise each sweep would search for cycles along all of them."""
    async with connect(postgres_url) as backend:
        chain = [Job(id=f"j{number}", type="t", depends_on=(f"j{number - 1}",)) for number in range(1, 300)]
        await backend.enqueue_jobs([Job(id="j0", type="t"), *chain])
        with psycopg.connect(postgres_url) as looking:
            assert looking.execute("SELECT count(*) FROM longshore.job_dependencies WHERE unsure").fetchone() == (0,)


@pytest.mark.parametrize("odd", [Lease("t", 2**70, None), Lease("\x00", 1, None), Lease("\ud800", 1, None)])
async def test_one_lease_that_no_job_can_have_is_refused_alone(postgres_url: str, odd: Lease) -> None:
    async with connect(postgres_url) as backend:
        await backend.enqueue_jobs([Job(id=name, type="t") for name in "ab"])
        jobs = {job.id: job for job in await backend.dequeue_jobs("w", limit=2)}
        report = await backend.settle_jobs([Outcome("a", odd), Outcome("b", jobs["b"].lease)])
        assert list(report.refused) == ["a"]
        assert report.settled == {"b": S.COMPLETED}


async def test_a_database_whose_default_is_repeatable_read_is_used_like_any_other(postgres_url: str) -> None:
    # I12
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        (name,) = owner.execute("SELECT current_database()").fetchone() or ("",)
        owner.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    async with connect(postgres_url) as backend, connect(postgres_url) as other:
        await backend.enqueue_job(Job(id="a", type="t"))
        await backend.count_jobs()
        with psycopg.connect(postgres_url) as pausing:
            pausing.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            pausing.execute("LOCK TABLE longshore.queues IN ACCESS EXCLUSIVE MODE")
            claiming = asyncio.create_task(claimed(other, queues=["default"]))
            await somebody_waits(postgres_url)
            pausing.execute(
                "INSERT INTO longshore.queues (name, paused, window_start, window_count) VALUES ('default', true, 0, 0)"
            )
        assert await claiming == []
