"""Many processes do the same at once on PostgreSQL: a crash counts once, a planned time has one job, no deadlocks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from random import Random

import pytest

from longshore.backends.base import Backend, Outcome, OutcomeVerb
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.errors import DuplicateJob, InvalidTransition, JobNotFound, LeaseLost
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from tests.backends.audit import audit

RIVALS = 4


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
async def rivals(postgres_url: str, clock: HeldClock) -> AsyncIterator[list[Backend]]:
    """Backends with separate connections, like separate processes, that share one clock."""
    backends = [connect(postgres_url, clock=clock) for _ in range(RIVALS)]
    yield backends
    for backend in backends:
        await backend.close()


@pytest.mark.prove
async def test_concurrent_sweeps_count_each_crash_once(rivals: list[Backend], clock: HeldClock, proving: bool) -> None:
    rounds, jobs = (200, 60) if proving else (20, 40)
    first = rivals[0]
    ids = [f"j{number}" for number in range(jobs)]
    await first.enqueue_jobs([Job(id=job_id, type="t", max_crashes=None) for job_id in ids])
    for number in range(1, rounds + 1):
        claims = await asyncio.gather(*(rival.dequeue_jobs(f"w{number}", limit=jobs, lease=10) for rival in rivals))
        claimed = [job.id for jobs_of_one in claims for job in jobs_of_one]
        assert sorted(claimed) == sorted(ids)
        clock.advance(11)
        swept = await asyncio.gather(*(rival.reclaim_expired_leases() for rival in rivals))
        # jobs that another process was sweeping are skipped: one more sweep returns them
        swept += await asyncio.gather(*(rival.reclaim_expired_leases() for rival in rivals))
        assert Counter(job.id for jobs_of_one in swept for job in jobs_of_one) == Counter(ids)
    stored, history = await audit(first, clock)
    assert {(job.crashes, job.epoch) for job in stored} == {(rounds, rounds)}
    print(f"{rounds} rounds of {RIVALS} sweepers, {history.events} events")


@pytest.mark.prove
async def test_concurrent_schedulers_create_one_job_per_occurrence(
    rivals: list[Backend], clock: HeldClock, proving: bool
) -> None:
    rounds, schedules = (300, 10) if proving else (20, 5)
    for number in range(schedules):
        pattern = Job(id="pattern", type="t")
        await rivals[0].put_schedule(Schedule(id=f"s{number}", job=pattern, repeat=Repeat(every=60)))
    for _ in range(rounds):
        clock.advance(60)
        made = await asyncio.gather(*(rival.fire_due_schedules() for rival in rivals))
        made += [await rivals[0].fire_due_schedules()]  # those that others had locked
        by_schedule = Counter(job.schedule_id for jobs in made for job in jobs)
        assert by_schedule == {f"s{number}": 1 for number in range(schedules)}
    stored, history = await audit(rivals[0], clock)
    assert len(stored) == rounds * schedules
    print(f"{rounds} rounds of {RIVALS} schedulers, {history.events} events")


async def done_or_refused(verb: Awaitable[object]) -> None:
    """Done or rejected, the answer is about the job."""
    with suppress(InvalidTransition, DuplicateJob, JobNotFound):
        await verb


@pytest.mark.prove
async def test_bulk_operations_claims_and_settlements_on_the_same_jobs_never_report_a_deadlock(
    rivals: list[Backend], clock: HeldClock, seed: int, proving: bool
) -> None:
    """The second caller learns the job's status, and never of a conflict between transactions."""
    rounds, jobs = (400, 60) if proving else (12, 40)
    ids = [f"j{number}" for number in range(jobs)]
    tags = ("even", "odd")
    await rivals[0].enqueue_jobs([Job(id=f"j{number}", type="t", tags=[tags[number % 2]]) for number in range(jobs)])

    async def retries(backend: Backend, chance: Random) -> None:
        for job_id in chance.sample(ids, 10):
            await done_or_refused(backend.retry_job(job_id))

    async def cancels(backend: Backend, chance: Random) -> None:
        if chance.random() < 0.5:
            await backend.cancel_jobs(tags=[chance.choice(tags)])
        else:
            await backend.cancel_jobs(job_ids=chance.sample(ids, 20))

    async def works(backend: Backend, chance: Random) -> None:
        claimed = await backend.dequeue_jobs(f"w{chance.random()}", limit=15)
        verbs: tuple[OutcomeVerb, ...] = ("complete", "fail", "bury", "stop", "release")
        outcomes = [Outcome(job.id, job.lease, chance.choice(verbs), error="no luck") for job in claimed]
        chance.shuffle(outcomes)
        report = await backend.settle_jobs(outcomes)
        assert all(isinstance(error, InvalidTransition | LeaseLost) for error in report.refused.values())

    async def renews(backend: Backend, chance: Random) -> None:
        claimed = await backend.dequeue_jobs(f"w{chance.random()}", limit=5)
        leases = {job.id: job.lease for job in claimed if job.lease}
        await backend.extend_leases(leases, 60)
        if claimed and claimed[0].assignee_id:
            await backend.mark_worker_unresponsive(claimed[0].assignee_id)

    async def tidies(backend: Backend, chance: Random) -> None:
        await backend.reclaim_expired_leases()
        await done_or_refused(backend.delete_jobs(tags=[chance.choice(tags)]))
        for job_id in chance.sample(ids, 15):
            await done_or_refused(backend.delete_jobs(job_ids=[job_id]))
            await done_or_refused(backend.enqueue_job(Job(id=job_id, type="t", tags=[chance.choice(tags)])))

    everything = (retries, cancels, works, works, renews, tidies)
    for number in range(rounds):
        doing = [
            act(rivals[place % RIVALS], Random(seed + 100 * number + place)) for place, act in enumerate(everything * 2)
        ]
        await asyncio.gather(*doing)
        clock.advance(1)
    clock.advance(100)
    await rivals[0].reclaim_expired_leases()
    _, history = await audit(rivals[0], clock)
    print(f"{rounds} rounds of {2 * len(everything)} callers, {history.events} events, seed {seed}")
