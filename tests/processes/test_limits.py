"""Limits hold over all processes, under kill -9 and while they change: shown from the event log alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from longshore import Job, JobStatus, Rate, connect
from longshore.core.limits import Limits
from tests.backends.audit import all_events, audit_at
from tests.backends.limits_audit import InForce, faults_of_limits, most_at_once
from tests.processes.process_group import ProcessGroup
from tests.processes.test_workers import LEASE, TIMEOUT, start_process, until_all_are

KEYS = 6
CHOICES = (
    Limits(running=4, per_key=1),
    Limits(running=8, per_key=2),
    Limits(running=6, per_key=3, rate=Rate(40, 0.5)),
    Limits(per_key=2, rate_per_key=Rate(8, 0.5)),
    Limits(running=3, per_key=1, rate=Rate(30, 1), rate_per_key=Rate(10, 1)),
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A durable store that several processes share."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def key_of(job_id: str) -> str:
    """The key is part of the id, so that the log alone shows it."""
    return job_id.partition(" ")[0]


async def set_limits(url: str, limits: Limits, before: list[InForce]) -> None:
    """Set the limits, and record the interval in which the old and the new ones are certainly in force."""
    async with connect(url) as backend:
        now = await backend.now()
        if before:
            before[-1] = InForce(before[-1].begin, now, before[-1].limits)
        await backend.set_limits(
            "default",
            running=limits.running,
            per_key=limits.per_key,
            rate=limits.rate,
            rate_per_key=limits.rate_per_key,
        )
        now = await backend.now()
        before.append(InForce(now, now, limits))


@pytest.mark.prove
def test_limits_hold_at_every_instant_while_workers_are_killed_and_limits_change(
    url: str, seed: int, proving: bool
) -> None:
    """F45. M-FUT-07, M-FUT-08."""
    kills, changes, jobs = (30, 40, 3_000) if proving else (3, 5, 260)
    chance = Random(seed)
    in_force: list[InForce] = []
    batch = [
        Job(id=f"k{number % KEYS} {number}", type="slow", concurrency_key=f"k{number % KEYS}") for number in range(jobs)
    ]
    chance.shuffle(batch)

    async def enqueue() -> None:
        await set_limits(url, CHOICES[0], in_force)
        async with connect(url) as backend:
            await backend.enqueue_jobs(batch)

    asyncio.run(enqueue())
    with ProcessGroup(url) as processes:
        for number in range(3):
            start_process(processes, f"w{number}", concurrency=6)
        killed = changed = started = 0
        acts = sorted(chance.sample(range(10, jobs - 40), kills + changes))
        began = monotonic()
        while acts:
            started_process, what, _ = processes.next_line()
            started += what == "started"
            assert monotonic() - began < 10 * TIMEOUT, f"{started} started, {len(acts)} acts to come"
            if started < acts[0] or what != "started":
                continue
            acts.pop(0)
            if killed < kills and (changed == changes or chance.random() < kills / (kills + changes)):
                started_process.kill()
                killed += 1
                start_process(processes, f"w{2 + killed}", concurrency=6)
            else:
                asyncio.run(set_limits(url, chance.choice(CHOICES), in_force))
                changed += 1
        until_all_are(url, {JobStatus.COMPLETED}, within=4 * TIMEOUT)

    async def read() -> None:
        async with connect(url) as backend:
            end = await backend.now()
            in_force[-1] = InForce(in_force[-1].begin, end, in_force[-1].limits)
            events = await all_events(backend)
        assert faults_of_limits(events, in_force, key_of) == []
        most = most_at_once(events, key_of)
        assert len(most) == KEYS
        print(f"{killed} kills, {changed} limit changes, {jobs} jobs, {len(events)} events, seed {seed}")

    asyncio.run(read())
    stored, _ = asyncio.run(audit_at(url))
    assert sum(job.crashes for job in stored.values()) >= 1
    assert all(job.retry_count == 0 for job in stored.values()), f"a crash used up an attempt (lease {LEASE})"
