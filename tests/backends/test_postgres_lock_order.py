"""Locks on PostgreSQL are taken in one order, first a queue with limits, then jobs: no deadlocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from random import Random

import psycopg
import pytest

from longshore.backends.base import Backend, Outcome, OutcomeVerb
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.errors import DuplicateJob, InvalidTransition, JobNotFound, LeaseLost
from longshore.core.job import Job
from tests.backends.audit import audit

QUEUES = ("first", "second")
KEYS = 12
TAGS = ("even", "odd")


def deadlocks(url: str) -> int:
    """The deadlocks that the server resolved in this database, after all sessions have left it."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(1_000):
            others = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone()
            if others == (0,):
                break
            connection.execute("SELECT pg_sleep(0.01)")
        found = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


async def done_or_refused(verb: Awaitable[object]) -> None:
    """Done or rejected, the answer is about the job."""
    with suppress(InvalidTransition, DuplicateJob, JobNotFound, LeaseLost):
        await verb


@pytest.mark.prove
async def test_cancelling_retrying_and_sweeping_never_deadlock_with_claims_under_limits(
    postgres_url: str, seed: int, proving: bool
) -> None:
    rounds, jobs = (300, 600) if proving else (12, 400)
    clock = HeldClock()
    rivals = [connect(postgres_url, clock=clock) for _ in range(3)]
    for queue in QUEUES:
        await rivals[0].set_limits(queue, per_key=1)

    def batch(number: int) -> list[Job]:
        """Some chains; keys and queues at random."""
        chance = Random(seed + number)
        made: list[Job] = []
        for place in range(jobs // 4):
            made.append(
                Job(
                    id=f"j{number}.{place}",
                    type="t",
                    queue=chance.choice(QUEUES),
                    concurrency_key=f"k{chance.randrange(KEYS)}",
                    tags=[chance.choice(TAGS)],
                    run_at=chance.choice((None, None, 5)),
                    expires_at=chance.choice((None, None, 3)),
                    depends_on=[made[-1].id] if made and chance.random() < 0.2 else [],
                    on_dependency_failure="stop",
                )
            )
        return made

    ids: list[str] = []

    async def adds(number: int) -> None:
        fresh = batch(number)
        await rivals[number % 3].enqueue_jobs(fresh)
        ids.extend(job.id for job in fresh)

    async def works(backend: Backend, chance: Random) -> None:
        name = f"w{chance.random()}"
        queues = chance.choice((None, ["first"], ["second"], list(QUEUES)))
        verbs: tuple[OutcomeVerb, ...] = ("complete", "complete", "complete", "fail", "bury", "release")
        held: list[Job] = []
        for _ in range(4):
            outcomes = [Outcome(job.id, job.lease, chance.choice(verbs), error="no luck") for job in held]
            chance.shuffle(outcomes)
            _, held = await backend.settle_and_dequeue(outcomes, name, (), 20, queues=queues, lease=10)
        for job in held[::2]:
            await done_or_refused(backend.complete_job(job.id, lease=job.lease))

    async def cancels(backend: Backend, chance: Random) -> None:
        for _ in range(4):
            await backend.cancel_jobs(job_ids=chance.sample(ids, 20))
        if chance.random() < 0.3:
            await backend.cancel_jobs(tags=[chance.choice(TAGS)], queue=chance.choice(QUEUES))

    async def meddles(backend: Backend, chance: Random) -> None:
        for job_id in chance.sample(ids, 8):
            await done_or_refused(backend.retry_job(job_id))
            await done_or_refused(backend.promote_job(job_id))
        for job_id in chance.sample(ids, 4):
            await done_or_refused(backend.delete_jobs(job_ids=[job_id]))

    async def sweeps(backend: Backend, chance: Random) -> None:
        await backend.reclaim_expired_leases()
        await backend.announce_due_jobs()
        await backend.time_out_cancellations(1)
        await backend.set_limits(chance.choice(QUEUES), per_key=chance.choice((1, 1, 2)))

    await adds(0)
    everything = (works, works, cancels, cancels, meddles, sweeps)
    for number in range(1, rounds + 1):
        doing = [act(rivals[n % 3], Random(seed + 100 * number + n)) for n, act in enumerate(everything)]
        await asyncio.gather(*doing, adds(number))
        clock.advance(1)
    clock.advance(100)
    await rivals[0].reclaim_expired_leases()
    _, history = await audit(rivals[0], clock)
    for rival in rivals:
        await rival.close()
    assert deadlocks(postgres_url) == 0
    print(f"{rounds} rounds, {history.events} events, seed {seed}")
