"""Settle: every transition by its operation, for one job and in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore.backends.base import Backend, Freed, Outcome, OutcomeVerb
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound, JobNotInflight, LeaseLost
from longshore.core.retry import Ending, decide, exponential
from longshore.core.status import HOLDS_CAPACITY, TRANSITIONS, Verb
from longshore.core.validation import LARGEST_PAYLOAD
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

# Written by hand from the documents: if the product's table loses a row, these tests must still have it.
ENDINGS: dict[Verb, dict[S, S]] = {
    Verb.COMPLETE: {
        S.RUNNING: S.COMPLETED,
        S.CANCELLING: S.COMPLETED,
        S.UNKNOWN_RETRY: S.COMPLETED,
        S.UNKNOWN_STOPPED: S.COMPLETED,
    },
    Verb.FAIL: {S.RUNNING: S.FAILED_RETRY, S.UNKNOWN_RETRY: S.FAILED_RETRY},
    Verb.BURY: {S.RUNNING: S.DEAD, S.FAILED_RETRY: S.DEAD, S.UNKNOWN_RETRY: S.DEAD},
    Verb.STOP: {S.RUNNING: S.STOPPED, S.CANCELLING: S.STOPPED, S.UNKNOWN_RETRY: S.STOPPED},
    Verb.STOP_WITH_RETRY: {S.CANCELLING: S.STOPPED},
    Verb.MARK_UNKNOWN_STOPPED: {
        S.RUNNING: S.UNKNOWN_STOPPED,
        S.CANCELLING: S.UNKNOWN_STOPPED,
        S.UNKNOWN_RETRY: S.UNKNOWN_STOPPED,
    },
    Verb.ACKNOWLEDGE: {S.CANCELLING: S.STOPPED},
    Verb.DISOWN: {S.CANCELLING: S.UNKNOWN_STOPPED},
    Verb.RETRY: {S.DEAD: S.FAILED_RETRY},
}

Ends = Callable[[Backend, str], Awaitable[Freed | None]]

BY_VERB: dict[Verb, Ends] = {
    Verb.COMPLETE: lambda b, job_id: b.complete_job(job_id, b"done"),
    Verb.FAIL: lambda b, job_id: b.fail_job(job_id, "broken"),
    Verb.BURY: lambda b, job_id: b.bury_job(job_id, "permanently broken"),
    Verb.STOP: lambda b, job_id: b.stop_job(job_id, "stopped"),
    Verb.STOP_WITH_RETRY: lambda b, job_id: b.stop_job_with_retry(job_id, "failed while stopping"),
    Verb.MARK_UNKNOWN_STOPPED: lambda b, job_id: b.mark_job_unknown_stopped(job_id, "lost"),
    Verb.ACKNOWLEDGE: lambda b, job_id: b.acknowledge_cancellation(job_id, True),
    Verb.DISOWN: lambda b, job_id: b.acknowledge_cancellation(job_id, False),
    Verb.RETRY: lambda b, job_id: b.retry_job(job_id, actor="ada"),
}
NO_FREED_MAP = (Verb.ACKNOWLEDGE, Verb.DISOWN, Verb.RETRY)

LEGAL = [(verb, source, target) for verb, arrows in ENDINGS.items() for source, target in arrows.items()]
ILLEGAL = [(verb, source) for verb, arrows in ENDINGS.items() for source in kit.EVERY_STATUS if source not in arrows]


class TestSettlement:
    """Every final operation: what it writes and whose slot it frees."""

    # -- the transition table

    @pytest.mark.parametrize(("verb", "source", "target"), LEGAL, ids=lambda value: value.value)
    async def test_every_legal_move(self, backend: Backend, clock: HeldClock, verb: Verb, source: S, target: S) -> None:
        # B-CON-05 B-FREE-01 B-FREE-02 B-FREE-03 B-COMP-02 B-COMP-03 B-COMP-04 B-COMP-05 B-COMP-09 B-FAIL-03 B-FAIL-04
        # B-FAIL-08 B-STOP-02 B-STOP-03 B-STOP-04 B-STOP-07 B-SWR-02 B-SWR-04 B-MUS-02 B-MUS-03 B-MUS-04 B-MUS-06
        # B-ACK-02 B-ACK-03 B-TST-01 B-INT-03 X-05 X-08 X-09 T-ACK-01 T-RTY-01 T-FAIL-01
        job = await kit.job_in(backend, source)
        before = len(await kit.history(backend, job.id))
        clock.advance(1)
        freed = await BY_VERB[verb](backend, job.id)
        after = await backend.get_job(job.id)
        assert after.status is target
        assert after.updated_at == clock.now()
        if verb not in NO_FREED_MAP:
            assert freed == ({"worker-1": 1} if source in HOLDS_CAPACITY else {})
        moves = kit.steps((await kit.history(backend, job.id))[before:])
        buried = [(S.RUNNING, S.FAILED_RETRY), (S.FAILED_RETRY, S.DEAD)]
        assert moves == (buried if (source, target) == (S.RUNNING, S.DEAD) else [(source, target)])

    @pytest.mark.parametrize(("verb", "source"), ILLEGAL, ids=lambda value: value.value)
    async def test_every_other_move_is_refused(self, backend: Backend, verb: Verb, source: S) -> None:
        # B-ERR-02 B-COMP-10 B-FAIL-09 B-STOP-08 B-SWR-01 B-ACK-01 B-ACK-06 B-TST-01 X-07 X-09 T-ERR-02 X-44
        job = await kit.job_in(backend, source)
        caught = await kit.refused(backend, BY_VERB[verb](backend, job.id), InvalidTransition)
        assert (caught.job_id, caught.status) == (job.id, source)
        assert caught.target in ENDINGS[verb].values()
        if source not in HOLDS_CAPACITY and verb is not Verb.RETRY:
            assert isinstance(caught, JobNotInflight)

    @pytest.mark.parametrize("verb", ENDINGS, ids=lambda verb: verb.value)
    async def test_an_unknown_job_cannot_end(self, backend: Backend, verb: Verb) -> None:
        # B-ERR-03 B-COMP-01 B-COMP-10 B-FAIL-01 B-FAIL-09 B-STOP-01 B-STOP-08 B-MUS-01 B-MUS-07 T-ERR-01 X-43
        await kit.refused(backend, BY_VERB[verb](backend, "nobody"), JobNotFound)

    @pytest.mark.parametrize("verb", ENDINGS, ids=lambda verb: verb.value)
    async def test_an_empty_id_is_refused(self, backend: Backend, verb: Verb) -> None:
        # B-COMP-01 B-FAIL-01 B-STOP-01 B-MUS-01 B-ERR-05
        await kit.refused(backend, BY_VERB[verb](backend, ""), field="job_id")

    async def test_the_products_table_has_the_documented_arrows_of_these_verbs(self) -> None:
        # there is no transition RUNNING -> DEAD; burying goes through FAILED_RETRY
        for verb, arrows in ENDINGS.items():
            written = {arrow.source: arrow.target for arrow in TRANSITIONS if arrow.verb is verb}
            assert written == {s: t for s, t in arrows.items() if (s, t) != (S.RUNNING, S.DEAD)}, verb

    # -- what each operation writes

    async def test_a_completed_job_keeps_its_result_and_owner(self, backend: Backend, clock: HeldClock) -> None:
        # B-COMP-06 B-COMP-07 B-COMP-08 B-COMP-11 B-COMP-12 X-49
        job = await kit.job_in(backend, S.RUNNING)
        clock.advance(5)
        await backend.complete_job(job.id, b"\x00\xff result", lease=kit.lease_of(job))
        done = await backend.get_job(job.id)
        assert (done.result, done.finalized_at) == (b"\x00\xff result", clock.now())
        assert (done.started_at, done.assignee_id, done.assigned_at) == (job.started_at, "worker-1", job.assigned_at)
        await backend.reset_running_jobs()
        assert await kit.claimable(backend) == []

    @pytest.mark.parametrize("source", ENDINGS[Verb.COMPLETE])
    async def test_a_completed_job_has_always_been_started(self, backend: Backend, source: S) -> None:
        # B-COMP-07
        job = await kit.job_in(backend, source)
        await backend.complete_job(job.id)
        done = await backend.get_job(job.id)
        assert done.started_at is not None
        assert done.finalized_at is not None
        assert done.result is None

    async def test_a_late_result_completes_an_unknown_stopped_job(self, backend: Backend, clock: HeldClock) -> None:
        #
        job = await kit.job_in(backend, S.UNKNOWN_STOPPED)
        clock.advance(5)
        assert await backend.complete_job(job.id, b"after all") == {}
        done = await backend.get_job(job.id)
        assert (done.result, done.finalized_at) == (b"after all", clock.now())

    async def test_a_completed_job_does_not_look_failed(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.FAILED_RETRY)
        await kit.run_next(backend, job.id)
        done = await backend.get_job(job.id)
        assert (done.error_message, done.retry_count) == ("", 1)

    async def test_a_failure_is_counted_and_the_job_eligible(self, backend: Backend, clock: HeldClock) -> None:
        # B-FAIL-05 B-FAIL-06 B-FAIL-07 T-RTY-02 T-REC-07 T-REC-09 T-REC-10 X-04
        job = await kit.job_in(backend, S.RUNNING)
        clock.advance(5)
        await backend.fail_job(job.id, "no route to host", lease=kit.lease_of(job))
        failed = await backend.get_job(job.id)
        assert (failed.status, failed.error_message, failed.retry_count) == (S.FAILED_RETRY, "no route to host", 1)
        assert (failed.last_retry_at, failed.finalized_at) == (clock.now(), None)
        assert (failed.assignee_id, failed.assigned_at) == ("worker-1", job.assigned_at)
        again = await kit.claim(backend, "worker-2")
        assert (again.id, again.retry_count, again.error_message) == (job.id, 1, "no route to host")
        await backend.fail_job(job.id, "still none")
        assert await kit.status_of(backend, job.id) is S.FAILED_RETRY
        assert (await backend.get_job(job.id)).retry_count == 2

    async def test_a_failure_without_words_is_refused(self, backend: Backend) -> None:
        # B-FAIL-02
        job = await kit.job_in(backend, S.RUNNING)
        await kit.refused(backend, backend.fail_job(job.id, ""), field="error")

    async def test_a_failed_job_waits_until_its_retry_at(self, backend: Backend, clock: HeldClock) -> None:
        # T-RTY-01 T-RTY-02
        job = await kit.job_in(backend, S.RUNNING)
        await backend.fail_job(job.id, "busy", retry_at=clock.now() + kit.seconds(60))
        assert (await backend.get_job(job.id)).run_at == clock.now() + kit.seconds(60)
        clock.advance(59)
        await backend.set_progress(job.id, 50)  # another update does not change the backoff
        assert await backend.dequeue_jobs("worker-1") == []
        clock.advance(1)
        again = await kit.claim(backend)
        await backend.fail_job(again.id, "busy", retry_at=30)
        assert (await backend.get_job(job.id)).run_at == clock.now() + kit.seconds(30)

    async def test_a_failure_without_a_time_clears_the_old_one(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "j1", run_at=10)
        clock.advance(10)
        await kit.claim(backend)
        await backend.fail_job("j1", "again")
        assert (await backend.get_job("j1")).run_at is None
        assert await kit.claimable(backend) == ["j1"]

    async def test_a_failure_event_says_what_happens_next(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.RUNNING)
        await backend.fail_job(job.id, "at once")
        await kit.claim(backend)
        await backend.fail_job(job.id, "later", retry_at=10)
        assert await kit.story(backend, job.id) == [
            *("job.added", "job.active", "job.failed", "job.promoted"),
            *("job.active", "job.failed", "job.delayed"),
        ]
        failed = [event for event in await kit.history(backend, job.id) if event.event == "job.failed"]
        assert [event.detail["error"] for event in failed] == ["at once", "later"]
        assert [event.detail["final"] for event in failed] == [False, False]

    async def test_burying_counts_the_last_failure(self, backend: Backend, clock: HeldClock) -> None:
        # T-ST-04 T-FAIL-01 T-FAIL-02 X-41 X-60
        job = await kit.job_in(backend, S.RUNNING, run_at=0)
        clock.advance(5)
        await backend.bury_job(job.id, "unreadable order", lease=kit.lease_of(job))
        dead = await backend.get_job(job.id)
        assert (dead.status, dead.error_message, dead.retry_count) == (S.DEAD, "unreadable order", 1)
        assert dead.finalized_at == dead.last_retry_at == clock.now()
        assert (dead.assignee_id, dead.assigned_at) == ("worker-1", job.assigned_at)
        failed, buried = (await kit.history(backend, job.id))[-2:]
        assert (failed.event, failed.detail["final"]) == ("job.failed", True)
        assert (buried.event, buried.detail["reason"]) == ("job.dead", "unreadable order")
        assert await kit.claimable(backend) == []

    @pytest.mark.parametrize("source", [S.FAILED_RETRY, S.UNKNOWN_RETRY])
    async def test_burying_a_job_that_does_not_run_counts_no_failure(self, backend: Backend, source: S) -> None:
        job = await kit.job_in(backend, source)
        await backend.bury_job(job.id, "given up")
        dead = await backend.get_job(job.id)
        assert (dead.retry_count, dead.error_message) == (job.retry_count, "given up")

    async def test_a_stopped_job_keeps_the_reason_even_an_empty_one(self, backend: Backend, clock: HeldClock) -> None:
        # B-STOP-01 B-STOP-05 B-STOP-06 B-STOP-09
        for reason in ("operator", ""):
            job = await kit.job_in(backend, S.FAILED_RETRY)
            running = await kit.claim(backend, tags=[job.id])
            clock.advance(1)
            await backend.stop_job(job.id, reason)
            stopped = await backend.get_job(job.id)
            assert (stopped.error_message, stopped.finalized_at) == (reason, clock.now())
            assert (stopped.assignee_id, stopped.assigned_at) == ("worker-1", running.assigned_at)
            assert stopped.retry_count == 1
        assert await kit.claimable(backend) == []

    async def test_stop_job_with_retry_counts_the_failure(self, backend: Backend, clock: HeldClock) -> None:
        # B-SWR-02 B-SWR-03 B-SWR-05 B-SWR-06
        for error in ("could not roll back", ""):
            job = await kit.job_in(backend, S.CANCELLING)
            clock.advance(1)
            await backend.stop_job_with_retry(job.id, error, lease=kit.lease_of(job))
            stopped = await backend.get_job(job.id)
            assert (stopped.status, stopped.error_message, stopped.retry_count) == (S.STOPPED, error, 1)
            assert stopped.last_retry_at == stopped.finalized_at == clock.now()
            assert (stopped.assignee_id, stopped.assigned_at) == ("worker-1", job.assigned_at)

    async def test_unknown_stopped_keeps_the_reason(self, backend: Backend, clock: HeldClock) -> None:
        # B-MUS-05 X-35
        job = await kit.job_in(backend, S.CANCELLING)
        clock.advance(1)
        await backend.mark_job_unknown_stopped(job.id, "the worker never answered")
        over = await backend.get_job(job.id)
        assert (over.error_message, over.finalized_at) == ("the worker never answered", clock.now())
        assert (over.assignee_id, over.assigned_at) == ("worker-1", job.assigned_at)
        assert await kit.claimable(backend) == []

    async def test_a_repeated_report_is_refused_for_the_job_is_over(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.RUNNING)
        await backend.complete_job(job.id, b"1", lease=kit.lease_of(job))
        await kit.refused(backend, backend.complete_job(job.id, b"1", lease=kit.lease_of(job)), JobNotInflight)

    # -- the caller decides

    async def test_a_failure_is_never_a_burial_however_many_there_were(self, backend: Backend) -> None:
        # T-PRIN-01 T-PRIN-02 T-PRIN-03 T-RTY-03 T-FAIL-02 B-FAIL-10 X-40 X-110
        job = await kit.job_in(backend, S.INITIAL_PENDING, max_attempts=1)
        for failures in range(1, 5):
            await kit.claim(backend)
            await backend.fail_job(job.id, "again")
            failed = await backend.get_job(job.id)
            assert (failed.status, failed.retry_count) == (S.FAILED_RETRY, failures)

    async def test_a_failure_waits_for_no_backoff_that_the_caller_did_not_ask_for(self, backend: Backend) -> None:
        # T-PRIN-02 B-FAIL-10 X-110
        job = await kit.job_in(backend, S.RUNNING, options={"backoff": exponential(3600).as_options()})
        await backend.fail_job(job.id, "again")
        assert await kit.claimable(backend) == [job.id]

    async def test_the_decided_backoff_is_kept_to_the_second(self, backend: Backend, clock: HeldClock) -> None:
        # T-CORE-01 T-RTY-03
        job = await kit.job_in(backend, S.INITIAL_PENDING)
        for failures, wait in ((1, 10), (2, 20), (3, 40)):
            running = await kit.claim(backend)
            decision = decide(
                Ending("failure", "busy"), failures=failures, max_attempts=4, backoff=exponential(kit.seconds(10))
            )
            assert decision.verb == "fail"
            await backend.fail_job(job.id, "busy", retry_at=decision.delay, lease=kit.lease_of(running))
            clock.advance(wait - 1)
            assert await backend.dequeue_jobs("worker-1") == []
            clock.advance(1)
        assert decide(Ending("failure", "busy"), failures=4, max_attempts=4).verb == "bury"

    async def test_a_job_past_its_timeout_is_its_workers_to_end(self, backend: Backend, clock: HeldClock) -> None:
        # T-CORE-02 T-PRIN-02 X-51
        await kit.enqueue(backend, "j1", timeout=5)
        job = await kit.claim(backend, lease=60)
        clock.advance(30)
        assert await backend.reclaim_expired_leases() == []
        await backend.complete_job("j1", lease=kit.lease_of(job))
        assert (await backend.get_job("j1")).timeout == kit.seconds(5)


class TestBatches:
    """A worker settles all its ended jobs in one call."""

    async def test_a_batch_settles_each_job_by_its_verb(self, backend: Backend, clock: HeldClock) -> None:
        # B-FREE-04 B-FREE-05 B-PERF-04 B-OBS-02
        ids = ["done", "failed", "buried", "stopped", "released"]
        await backend.enqueue_jobs([kit.new_job(job_id) for job_id in ids])
        leases = {job.id: kit.lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=4)}
        leases["released"] = kit.lease_of(await kit.claim(backend, "worker-2"))
        report = await backend.settle_jobs(
            [
                Outcome("done", leases["done"], "complete", result=b"42"),
                Outcome("failed", leases["failed"], "fail", error="busy", retry_at=60),
                Outcome("buried", leases["buried"], "bury", error="hopeless"),
                Outcome("stopped", leases["stopped"], "stop", error="cancelled"),
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
        assert (jobs["failed"].error_message, jobs["failed"].run_at) == ("busy", clock.now() + kit.seconds(60))
        assert (jobs["stopped"].error_message, jobs["stopped"].finalized_at) == ("cancelled", clock.now())
        assert (jobs["released"].run_at, jobs["released"].crashes) == (clock.now() + kit.seconds(30), 0)
        assert [jobs[job_id].retry_count for job_id in ids] == [0, 1, 1, 0, 0]

    async def test_an_empty_batch_settles_nothing(self, backend: Backend) -> None:
        async with kit.nothing_changes(backend):
            report = await backend.settle_jobs([])
        assert (report.settled, report.refused, report.freed) == ({}, {}, {})

    async def test_a_stale_or_malformed_outcome_is_refused_alone_and_the_rest_stand(self, backend: Backend) -> None:
        # X-45 X-81
        ids = ["good", "stale", "wordless", "never", "huge", "verbless", "leaseless"]
        await backend.enqueue_jobs([kit.new_job(job_id) for job_id in ids])
        leases = {job.id: kit.lease_of(job) for job in await backend.dequeue_jobs("worker-1", limit=7)}
        wrong: Any = "explode"
        report = await backend.settle_jobs(
            [
                Outcome("stale", kit.STALE, "complete"),
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
            assert await kit.status_of(backend, job_id) is S.RUNNING

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
    async def test_an_outcome_of_a_cancelled_job_settles_its_cancellation(
        self, backend: Backend, clock: HeldClock, verb: OutcomeVerb, target: S, failures: int
    ) -> None:
        job = await kit.job_in(backend, S.CANCELLING)
        clock.advance(1)
        report = await backend.settle_jobs([Outcome(job.id, kit.lease_of(job), verb, error="interrupted", retry_at=5)])
        assert report.settled == {job.id: target}
        assert report.freed == {"worker-1": 1}
        over = await backend.get_job(job.id)
        assert (over.status, over.retry_count, over.finalized_at) == (target, failures, clock.now())
        assert (over.last_retry_at is not None) == bool(failures)

    async def test_two_outcomes_for_one_job_settle_it_once(self, backend: Backend) -> None:
        # B-INV-02
        job = await kit.job_in(backend, S.RUNNING)
        lease = kit.lease_of(job)
        report = await backend.settle_jobs(
            [Outcome(job.id, lease, "complete", result=b"1"), Outcome(job.id, lease, "fail", error="2")]
        )
        assert report.settled == {job.id: S.COMPLETED}
        assert isinstance(report.refused[job.id], JobNotInflight)
        assert report.freed == {"worker-1": 1}
        assert (await backend.get_job(job.id)).result == b"1"

    async def test_two_outcomes_that_may_follow_one_another_do_so_in_order(self, backend: Backend) -> None:
        # B-INV-02: the counts stay exact, which the audit after this test checks
        job = await kit.job_in(backend, S.RUNNING)
        report = await backend.settle_jobs(
            [Outcome(job.id, kit.lease_of(job), "release"), Outcome(job.id, None, "complete", result=b"late")]
        )
        assert report.settled == {job.id: S.COMPLETED}
        assert report.freed == {"worker-1": 1}
        assert kit.steps(await kit.history(backend, job.id))[-2:] == [
            (S.RUNNING, S.UNKNOWN_RETRY),
            (S.UNKNOWN_RETRY, S.COMPLETED),
        ]

    async def test_without_a_lease_any_caller_may_settle_in_a_batch(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.UNKNOWN_RETRY)
        report = await backend.settle_jobs([Outcome(job.id, None, "complete")])
        assert (report.settled, report.freed) == ({job.id: S.COMPLETED}, {})
