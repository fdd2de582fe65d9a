"""Claims, completions and acceptances in bulk move a job from the statuses of the transition table, and no others.

The expectations are written out here, so that a row removed from the table (or a status word changed in one SQL file)
fails on every store.
"""

from __future__ import annotations

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.errors import InvalidTransition
from longshore.core.job import Job, Lease
from longshore.core.status import JobStatus

S = JobStatus
WORKER = "worker"


async def held(backend: Backend, job_id: str) -> Lease:
    """The lease of the job, claimed now."""
    (job,) = await backend.dequeue_jobs(WORKER)
    assert job.id == job_id
    assert job.lease is not None
    return job.lease


async def bring_to(backend: Backend, status: JobStatus) -> Lease | None:
    """Store the job `j` and bring it to this status; return the lease of its last claim."""
    depends_on = ("not stored",) if status is S.WAITING_CHILDREN else ()
    given = S.CREATED if status is S.CREATED else S.INITIAL_PENDING
    await backend.enqueue_job(Job(id="j", type="t", status=given, depends_on=depends_on))
    if status in (S.CREATED, S.WAITING_CHILDREN, S.INITIAL_PENDING):
        return None
    if status is S.UNSCHEDULED:
        await backend.cancel_jobs(job_ids=["j"])
        return None
    lease = await held(backend, "j")
    if status is S.CANCELLING:
        await backend.cancel_jobs(job_ids=["j"])
    elif status is S.FAILED_RETRY:
        await backend.fail_job("j", "it failed", lease=lease)
    elif status is S.UNKNOWN_RETRY:
        await backend.release_lease("j", lease)
    elif status is S.COMPLETED:
        await backend.complete_job("j", lease=lease)
    elif status is S.STOPPED:
        await backend.stop_job("j", lease=lease)
    elif status is S.UNKNOWN_STOPPED:
        await backend.mark_job_unknown_stopped("j", lease=lease)
    elif status is S.DEAD:
        await backend.bury_job("j", "it failed", lease=lease)
    return lease


@pytest.mark.parametrize("status", JobStatus)
async def test_a_claim_takes_jobs_from_the_statuses_of_the_table_alone(backend: Backend, status: JobStatus) -> None:
    await bring_to(backend, status)
    claimed = await backend.dequeue_jobs("another", limit=10)
    may_be_claimed = status in (S.INITIAL_PENDING, S.FAILED_RETRY, S.UNKNOWN_RETRY)
    assert [job.id for job in claimed] == (["j"] if may_be_claimed else [])
    assert (await backend.get_job("j")).status is (S.RUNNING if may_be_claimed else status)


@pytest.mark.parametrize("status", JobStatus)
async def test_a_completion_under_a_lease_ends_jobs_that_are_held(backend: Backend, status: JobStatus) -> None:
    lease = await bring_to(backend, status)
    report = await backend.settle_jobs([Outcome("j", lease or Lease("no token", 1, None), result=b"1")])
    completes = status in (S.RUNNING, S.CANCELLING)
    assert report.settled == ({"j": S.COMPLETED} if completes else {})
    assert set(report.refused) == (set() if completes else {"j"})
    assert (await backend.get_job("j")).status is (S.COMPLETED if completes else status)


@pytest.mark.parametrize("status", JobStatus)
async def test_a_completion_without_a_lease_ends_jobs_from_the_statuses_of_the_table(
    backend: Backend, status: JobStatus
) -> None:
    await bring_to(backend, status)
    report = await backend.settle_jobs([Outcome("j", None, result=b"1")])
    completes = status in (S.RUNNING, S.CANCELLING, S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED)
    assert report.settled == ({"j": S.COMPLETED} if completes else {})
    assert (await backend.get_job("j")).status is (S.COMPLETED if completes else status)


@pytest.mark.parametrize("status", JobStatus)
async def test_created_jobs_alone_are_accepted(backend: Backend, status: JobStatus) -> None:
    await bring_to(backend, status)
    if status is S.CREATED:
        await backend.accept_jobs(["j"])
        assert (await backend.get_job("j")).status is S.INITIAL_PENDING
    else:
        with pytest.raises(InvalidTransition):
            await backend.accept_jobs(["j"])
        assert (await backend.get_job("j")).status is status
