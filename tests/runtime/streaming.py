"""Helpers for tests of streams: receive jobs, wait for conditions, and show that something did not happen."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from longshore import Job, JobStatus, Queue
from longshore.backends.base import Backend
from longshore.core.status import HOLDS_CAPACITY
from longshore.runtime import streams
from longshore.runtime.process_registry import registry_of
from longshore.runtime.streams import JobStream
from longshore.testing.conformance.scenarios import log_of, new_job

TIMEOUT = 25
"""Seconds to wait for a condition, on a busy machine."""


async def eventually(holds: Callable[[], Any], within: float = TIMEOUT) -> None:
    """Wait until the condition, sync or async, holds."""
    async with asyncio.timeout(within):
        while True:
            answer = holds()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(0.005)


async def add(queue: Queue | Backend, /, *job_ids: str, **fields: Any) -> None:
    """Enqueue new jobs in one call."""
    await queue.enqueue_jobs([new_job(job_id, **fields) for job_id in job_ids])


async def receive(stream: JobStream, count: int = 1, within: float = TIMEOUT) -> list[Job]:
    """Return exactly this many next jobs of the stream, in any number of batches."""
    jobs: list[Job] = []
    async with asyncio.timeout(within):
        while len(jobs) < count:
            jobs += await anext(stream)
    assert len(jobs) == count
    return jobs


async def receive_ids(stream: JobStream, count: int = 1, within: float = TIMEOUT) -> list[str]:
    """Do the same, by id."""
    return [job.id for job in await receive(stream, count, within)]


async def are(backend: Backend | Queue, status: JobStatus, job_ids: Sequence[str]) -> bool:
    """Whether all of them have this status."""
    return all([(await backend.get_job(job_id)).status is status for job_id in job_ids])


async def until_held(queue: Queue, stream: JobStream, *job_ids: str) -> None:
    """Wait until the stream holds these jobs: the store has their claim a moment earlier."""
    registry = registry_of(queue.backend)
    await eventually(lambda: not registry.not_held(stream, job_ids))


async def until_lease_vanished(stream: JobStream, job_id: str) -> None:
    """Wait until the stream has noticed that it lost the lease of this job."""
    await eventually(lambda: not stream._keeper.keeps(job_id), within=8)  # the next renewal is after ten seconds


async def others_get(queue: Queue, *job_ids: str) -> None:
    """A stream with free slots receives exactly these jobs: the other open streams have no free slot.

    Everybody is woken several times in between, so that one who wrongly believes to have free slots would have claimed.
    """
    async with queue.stream_jobs("the others", ["for the others"], 100) as witness:
        for number in range(3):
            await add(queue, f"{job_ids}{number}", tags=["for the others"])
            await queue.complete_job((await receive_ids(witness))[0])
    jobs = await queue.dequeue_jobs("the others", limit=100)
    assert sorted(job.id for job in jobs) == sorted(job_ids)
    for job in jobs:
        await queue.complete_job(job.id)


async def most_held(backend: Backend) -> Counter[str]:
    """Return the most jobs that each assignee held at a time, by the log."""
    holders: dict[str, str] = {}
    held: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for event in await log_of(backend):
        if event.to_status is None or event.job_id is None:
            continue
        holder = holders.pop(event.job_id, None) if event.to_status not in HOLDS_CAPACITY else None
        if holder is not None:
            held[holder] -= 1
        elif event.to_status is JobStatus.RUNNING and event.assignee_id is not None:
            holders[event.job_id] = event.assignee_id
            held[event.assignee_id] += 1
            most[event.assignee_id] = max(most[event.assignee_id], held[event.assignee_id])
    return most


class Claim(NamedTuple):
    """One call of dequeue_jobs, and how much it found."""

    assignee_id: str
    capacity: int
    found: int


def count_claims(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """Record every call of dequeue_jobs from now on."""
    claims: list[Claim] = []
    dequeue = backend.dequeue_jobs

    async def counted(assignee_id: str, tags: Sequence[str] = (), limit: int = 1, **options: Any) -> list[Job]:
        jobs = await dequeue(assignee_id, tags, limit, **options)
        claims.append(Claim(assignee_id, limit, len(jobs)))
        return jobs

    monkeypatch.setattr(backend, "dequeue_jobs", counted)
    return claims


def never_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling, so that jobs arrive only by notifications."""
    monkeypatch.setattr(streams, "POLL_SECONDS", 3600)
