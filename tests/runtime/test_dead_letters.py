"""Dead letters: listed, and retried one by one, by filter, or all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from longshore import JobFilter, JobStatus, Queue
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidTransition
from longshore.runtime import job_listing
from longshore.testing.conformance.scenarios import (
    EVERY_STATUS,
    claim,
    claimable,
    history,
    job_in,
    nothing_changes,
    refused,
    status_of,
)

S = JobStatus


async def test_a_dead_job_is_retried_with_its_counters_new_and_the_operator_named(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # M-QUE-13 M-JM-06 M-RTY-09 X-94
    job = await job_in(backend, S.DEAD)
    assert (job.retry_count, job.error_message != "", job.finalized_at) == (1, True, clock.now())
    await queue.retry_job(job.id, actor="ada")
    again = await queue.get_job(job.id)
    assert (again.status, again.retry_count, again.crashes) == (S.FAILED_RETRY, 0, 0)
    assert (again.error_message, again.finalized_at, again.executions) == ("", None, 1)
    assert await claimable(backend) == [job.id]
    retried = [event for event in await history(backend, job.id) if event.event == "job.retried"]
    assert [(event.actor, event.from_status, event.to_status) for event in retried] == [("ada", S.DEAD, S.FAILED_RETRY)]


async def test_a_retry_may_keep_the_counters(queue: Queue, backend: Backend) -> None:
    # M-JM-06 X-94
    job = await job_in(backend, S.DEAD)
    await queue.retry_job(job.id, reset=False)
    assert (await queue.get_job(job.id)).retry_count == 1


async def test_only_the_dead_are_retried(queue: Queue, backend: Backend) -> None:
    # M-QUE-13 M-JM-06 X-94
    for status in EVERY_STATUS:
        if status is not S.DEAD:
            job = await job_in(backend, status)
            await refused(backend, queue.retry_job(job.id), InvalidTransition)


async def test_the_dead_letters_are_the_failed_of_bullmq(queue: Queue, backend: Backend) -> None:
    # M-STS-04 M-FUT-13
    dead = await job_in(backend, S.DEAD)
    await job_in(backend, S.FAILED_RETRY)
    assert [job.id for job in await queue.get_jobs("FAILED")] == [dead.id]
    assert (await queue.get_job_counts())["FAILED"] == 1


async def test_all_are_retried_and_a_dry_run_only_counts(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-FUT-13 M-QUE-13
    monkeypatch.setattr(job_listing, "_RETRIED_AT_ONCE", 3)
    jobs = [await job_in(backend, S.DEAD) for _ in range(8)]
    await job_in(backend, S.STOPPED)
    async with nothing_changes(backend):
        assert await queue.retry_jobs(dry_run=True) == 8
    assert await queue.retry_jobs(actor="ada") == 8
    assert await queue.retry_jobs() == 0
    assert sorted(await claimable(backend)) == sorted(job.id for job in jobs)
    actors = {event.actor for event in await backend.read_events() if event.event == "job.retried"}
    assert actors == {"ada"}


async def test_a_filter_selects_the_jobs_to_retry(queue: Queue, backend: Backend) -> None:
    # M-FUT-13
    chosen = await job_in(backend, S.DEAD, type="email", tags=["eu"])
    await job_in(backend, S.DEAD, type="email")
    await job_in(backend, S.DEAD, type="report", tags=["eu"])
    wanted = JobFilter(types=["email"], tags=["eu"], error="buried")
    assert await queue.retry_jobs(wanted, dry_run=True) == 1
    assert await queue.retry_jobs(wanted, reset=False) == 1
    assert await status_of(backend, chosen.id) is S.FAILED_RETRY
    assert (await queue.get_job(chosen.id)).retry_count == 1
    assert await queue.retry_jobs(JobFilter(statuses=[S.DEAD])) == 2


async def test_a_filter_for_others_than_the_dead_is_refused(queue: Queue, backend: Backend) -> None:
    # M-FUT-13
    await job_in(backend, S.DEAD)
    await refused(backend, queue.retry_jobs(JobFilter(statuses=[S.DEAD, S.STOPPED])), field="filter.statuses")
    wrong: Any = "all"
    await refused(backend, queue.retry_jobs(wrong))


async def test_two_operators_at_once_retry_each_job_once(queue: Queue, backend: Backend) -> None:
    # M-FUT-13
    jobs = [await job_in(backend, S.DEAD) for _ in range(6)]
    counts = await asyncio.gather(queue.retry_jobs(actor="ada"), queue.retry_jobs(actor="bob"))
    assert sum(counts) == 6
    for job in jobs:
        assert [event.event for event in await history(backend, job.id)].count("job.retried") == 1
    assert len({(await claim(backend)).id for _ in jobs}) == 6


async def test_a_job_that_is_retried_while_dead_ones_are_removed_stays_and_the_others_go(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-FUT-13
    jobs = [await job_in(backend, S.DEAD) for _ in range(3)]
    remove = backend.delete_jobs

    async def somebody_is_quicker(*, job_ids: list[str]) -> None:
        if len(job_ids) == len(jobs):
            await backend.retry_job(jobs[1].id)
        await remove(job_ids=job_ids)

    monkeypatch.setattr(backend, "delete_jobs", somebody_is_quicker)
    await queue.delete_jobs(where=JobFilter(statuses=[S.DEAD]))
    assert [job.id for job in (await backend.list_jobs(JobFilter())).items] == [jobs[1].id]
    assert await status_of(backend, jobs[1].id) is S.FAILED_RETRY
