"""Many endings in one transaction: `settle_jobs`, where each refusal stands alone."""

from __future__ import annotations

from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome, OutcomeVerb
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, JobNotFound, JobNotInflight, LeaseLost
from longshore.core.validation import LARGEST_PAYLOAD
from longshore.testing.conformance.staging import (
    STALE,
    S,
    claim,
    history,
    job_in,
    lease_of,
    new_job,
    nothing_changes,
    seconds,
    status_of,
    steps,
)


class TestBatches:
    """A worker reports on all it has finished in one call."""

    async def test_a_batch_settles_each_job_by_its_verb(self, backend: Backend, clock: HeldClock) -> None:
        # B-FREE-04 B-FREE-05 B-PERF-04 B-OBS-02
        ids = ["done", "failed", "buried", "stopped", "released"]
        await backend.enqueue_jobs([new_job(job_id) for job_id in ids])
        leases = {job.id: lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=4)}
        leases["released"] = lease_of(await claim(backend, "worker-2"))
        report = await backend.settle_jobs(
            [
                Outcome("done", leases["done"], "complete", result=b"42"),
                Outcome("failed", leases["failed"], "fail", error="busy", retry_at=60),
                Outcome("buried", leases["buried"], "bury", error="hopeless"),
                Outcome("stopped", leases["stopped"], "stop", error="called off"),
                Outcome("released", leases["released"], "release", retry_at=30),
            ]
        )
        assert report.refused == {}
        assert report.settled == {
            "done": S.COMPLETED,
            "failed": S.FAILED_RETRY,
            "buried": S.DEAD,
            "stopped": S.STOPPED,
            "released": S.UNKNOWN_RETRY,
        }
        assert report.freed == {"worker-1": 4, "worker-2": 1}
        jobs = {job_id: await backend.get_job(job_id) for job_id in ids}
        assert {job_id: job.status for job_id, job in jobs.items()} == report.settled
        assert (jobs["done"].result, jobs["buried"].error_message) == (b"42", "hopeless")
        assert (jobs["failed"].error_message, jobs["failed"].run_at) == ("busy", clock.now() + seconds(60))
        assert (jobs["stopped"].error_message, jobs["stopped"].finalized_at) == ("called off", clock.now())
        assert (jobs["released"].run_at, jobs["released"].crashes) == (clock.now() + seconds(30), 0)
        assert [jobs[job_id].retry_count for job_id in ids] == [0, 1, 1, 0, 0]

    async def test_an_empty_batch_settles_nothing(self, backend: Backend) -> None:
        async with nothing_changes(backend):
            report = await backend.settle_jobs([])
        assert (report.settled, report.refused, report.freed) == ({}, {}, {})

    async def test_a_stale_or_malformed_outcome_is_refused_alone_and_the_rest_stand(self, backend: Backend) -> None:
        # X-45 X-81
        ids = ["good", "stale", "wordless", "never", "huge", "verbless", "leaseless"]
        await backend.enqueue_jobs([new_job(job_id) for job_id in ids])
        leases = {job.id: lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=7)}
        wrong: Any = "explode"
        report = await backend.settle_jobs(
            [
                Outcome("stale", STALE, "complete"),
                Outcome("unknown", leases["good"], "complete"),
                Outcome("wordless", leases["wordless"], "fail", error=""),
                Outcome("never", leases["never"], "fail", error="x", retry_at=-1),
                Outcome("huge", leases["huge"], "complete", result=b"x" * (LARGEST_PAYLOAD + 1)),
                Outcome("verbless", leases["verbless"], wrong),
                Outcome("leaseless", wrong),
                Outcome("good", leases["good"], "complete", result=b"ok"),
            ]
        )
        assert report.settled == {"good": S.COMPLETED}
        assert report.freed == {"worker-1": 1}
        kinds = {job_id: type(error) for job_id, error in report.refused.items()}
        assert kinds == {
            "stale": LeaseLost,
            "unknown": JobNotFound,
            "wordless": InvalidArgument,
            "never": InvalidArgument,
            "huge": InvalidArgument,
            "verbless": InvalidArgument,
            "leaseless": InvalidArgument,
        }
        for job_id in ids[1:]:
            assert await status_of(backend, job_id) is S.RUNNING

    @pytest.mark.parametrize(
        ("verb", "target", "failures"),
        [
            ("complete", S.COMPLETED, 0),
            ("fail", S.STOPPED, 1),
            ("bury", S.STOPPED, 0),
            ("stop", S.STOPPED, 0),
            ("release", S.STOPPED, 0),
            ("crash", S.UNKNOWN_STOPPED, 0),
        ],
    )
    async def test_a_job_cancelled_meanwhile_settles_as_its_cancellation_asks(
        self, backend: Backend, clock: HeldClock, verb: OutcomeVerb, target: S, failures: int
    ) -> None:
        job = await job_in(backend, S.CANCELLING)
        clock.advance(1)
        report = await backend.settle_jobs([Outcome(job.id, lease_of(job), verb, error="interrupted", retry_at=5)])
        assert report.settled == {job.id: target}
        assert report.freed == {"worker-1": 1}
        over = await backend.get_job(job.id)
        assert (over.status, over.retry_count, over.finalized_at) == (target, failures, clock.now())
        assert (over.last_retry_at is not None) == bool(failures)

    async def test_two_outcomes_for_one_job_settle_it_once(self, backend: Backend) -> None:
        # B-INV-02
        job = await job_in(backend, S.RUNNING)
        lease = lease_of(job)
        report = await backend.settle_jobs(
            [Outcome(job.id, lease, "complete", result=b"1"), Outcome(job.id, lease, "fail", error="2")]
        )
        assert report.settled == {job.id: S.COMPLETED}
        assert isinstance(report.refused[job.id], JobNotInflight)
        assert report.freed == {"worker-1": 1}
        assert (await backend.get_job(job.id)).result == b"1"

    async def test_two_outcomes_that_may_follow_one_another_do_so_in_order(self, backend: Backend) -> None:
        # B-INV-02: the counts stay exact, which the audit after this test sees
        job = await job_in(backend, S.RUNNING)
        report = await backend.settle_jobs(
            [Outcome(job.id, lease_of(job), "release"), Outcome(job.id, None, "complete", result=b"late")]
        )
        assert report.settled == {job.id: S.COMPLETED}
        assert report.freed == {"worker-1": 1}
        assert steps(await history(backend, job.id))[-2:] == [
            (S.RUNNING, S.UNKNOWN_RETRY),
            (S.UNKNOWN_RETRY, S.COMPLETED),
        ]

    async def test_without_a_lease_an_outcome_is_whoever_calls(self, backend: Backend) -> None:
        #
        job = await job_in(backend, S.UNKNOWN_RETRY)
        report = await backend.settle_jobs([Outcome(job.id, None, "complete")])
        assert (report.settled, report.freed) == ({job.id: S.COMPLETED}, {})
