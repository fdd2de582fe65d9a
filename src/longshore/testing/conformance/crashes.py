"""Lost workers: expired leases, unresponsive workers, and the list of workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome, WorkerInfo
from longshore.core.clock import HeldClock
from longshore.core.errors import JobNotInflight, LeaseLost
from longshore.core.filters import JobFilter
from longshore.core.retry import exponential, fixed
from longshore.core.status import TRANSITIONS, Verb
from longshore.core.validation import LARGEST_DETAIL, LONGEST_DETAIL_TEXT, LONGEST_TEXT
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

Crash = Callable[[Backend, HeldClock], Awaitable[object]]


async def _lease_runs_out(backend: Backend, clock: HeldClock) -> None:
    clock.advance(30)
    await backend.reclaim_expired_leases()


async def _process_dies(backend: Backend, _clock: HeldClock) -> None:
    """Report the crash of each running job under its lease."""
    held = await kit.all_jobs(backend, JobFilter(assignee_id="worker-1"))
    outcomes = [Outcome(job.id, job.lease, "crash", error="killed by signal 9") for job in held if job.lease]
    report = await backend.settle_jobs(outcomes)
    assert set(report.settled) == {job.id for job in held if job.lease}
    assert report.freed == ({"worker-1": len(outcomes)} if outcomes else {})


CRASHES: dict[str, Crash] = {
    "lease ran out": _lease_runs_out,
    "worker unresponsive": lambda backend, _: backend.mark_worker_unresponsive("worker-1"),
    "running jobs reset": lambda backend, _: backend.reset_running_jobs(),
    "process died": _process_dies,
}
every_crash = pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES.keys())


class TestCrashes:
    """The four ways in which a job loses its worker have the same effect."""

    # -- the job after a crash

    @every_crash
    async def test_a_crash_is_counted_and_requeues(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        # B-MWU-02 B-MWU-04 B-RST-01 B-RST-03 T-M4-03 X-14 X-40 X-46 X-62 X-70
        job = await kit.job_in(backend, S.RUNNING, run_at=0)
        await crash(backend, clock)
        back = await backend.get_job(job.id)
        assert (back.status, back.crashes, back.retry_count) == (S.UNKNOWN_RETRY, 1, 0)
        assert (back.run_at, back.last_retry_at, back.finalized_at) == (None, None, None)
        assert (back.assignee_id, back.assigned_at) == ("worker-1", job.assigned_at)
        assert (await kit.story(backend, job.id))[-2:] == ["job.stalled", "job.promoted"]
        assert (await kit.history(backend, job.id))[-2].detail == {"reason": back.error_message, "crashes": 1}
        assert back.error_message
        again = await kit.claim(backend, "worker-2")
        assert (again.id, again.epoch, again.executions) == (job.id, 2, 2)
        assert kit.lease_of(again).token != kit.lease_of(job).token

    @every_crash
    async def test_a_job_being_cancelled_is_over(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        # B-MWU-03 B-RST-02 X-01 X-15
        job = await kit.job_in(backend, S.CANCELLING)
        await crash(backend, clock)
        over = await backend.get_job(job.id)
        assert (over.status, over.finalized_at) == (S.UNKNOWN_STOPPED, clock.now())
        assert (over.assignee_id, over.assigned_at) == ("worker-1", job.assigned_at)
        assert await kit.claimable(backend) == []

    @every_crash
    @pytest.mark.parametrize("status", [s for s in kit.EVERY_STATUS if not s.holds_capacity])
    async def test_an_unheld_job_is_ignored(self, backend: Backend, clock: HeldClock, crash: Crash, status: S) -> None:
        # B-MWU-05 B-RST-04
        await kit.job_in(backend, status)
        async with kit.nothing_changes(backend):
            await crash(backend, clock)

    @every_crash
    async def test_an_empty_store_is_not_an_error(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        # B-MWU-05 B-RST-04
        async with kit.nothing_changes(backend):
            await crash(backend, clock)

    @every_crash
    async def test_the_limit_on_crashes_is_the_jobs_own(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        # X-40 X-62
        job = await kit.job_in(backend, S.INITIAL_PENDING, max_crashes=2, max_attempts=1)
        for crashes in (1, 2):
            await kit.claim(backend)
            await crash(backend, clock)
            back = await backend.get_job(job.id)
            assert (back.status, back.crashes) == (S.UNKNOWN_RETRY, crashes)
        await kit.claim(backend)
        await crash(backend, clock)
        dead = await backend.get_job(job.id)
        assert (dead.status, dead.crashes, dead.retry_count) == (S.DEAD, 3, 0)
        assert (dead.finalized_at, dead.assignee_id) == (clock.now(), "worker-1")
        assert "3 times" in dead.error_message
        stalled, failed, buried = (await kit.history(backend, job.id))[-3:]
        assert [event.event for event in (stalled, failed, buried)] == ["job.stalled", "job.failed", "job.dead"]
        assert failed.detail["final"] is True
        assert kit.steps([stalled, failed, buried]) == [(S.RUNNING, S.UNKNOWN_RETRY), (S.UNKNOWN_RETRY, S.DEAD)]

    @every_crash
    async def test_zero_crashes_allowed_buries_at_once(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        job = await kit.job_in(backend, S.RUNNING, max_crashes=0)
        await crash(backend, clock)
        assert await kit.status_of(backend, job.id) is S.DEAD

    @every_crash
    async def test_no_crash_limit_retries_for_ever(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        job = await kit.job_in(backend, S.INITIAL_PENDING)
        for _ in range(8):
            await kit.claim(backend)
            await crash(backend, clock)
        assert (await backend.get_job(job.id)).crashes == 8
        assert await kit.claimable(backend) == [job.id]

    @every_crash
    async def test_a_crashed_job_waits_for_its_backoff(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        #
        job = await kit.job_in(backend, S.INITIAL_PENDING, options={"backoff": exponential(10).as_options()})
        for wait in (10, 20):
            await kit.claim(backend)
            await crash(backend, clock)
            assert (await kit.story(backend, job.id))[-2:] == ["job.stalled", "job.delayed"]
            assert (await backend.get_job(job.id)).run_at == clock.now() + kit.seconds(wait)
            clock.advance(wait - 1)
            assert await backend.dequeue_jobs("worker-1") == []
            clock.advance(1)

    @every_crash
    async def test_a_buried_job_waits_for_no_backoff(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        job = await kit.job_in(backend, S.RUNNING, max_crashes=0, options={"backoff": fixed(10).as_options()})
        await crash(backend, clock)
        assert (await backend.get_job(job.id)).run_at is None

    @every_crash
    async def test_a_backoff_past_year_9999_is_safe(self, backend: Backend, clock: HeldClock, crash: Crash) -> None:
        longest = {"type": "exponential", "delay": 1e11}
        job = await kit.job_in(backend, S.INITIAL_PENDING, options={"backoff": longest})
        for _ in range(4):
            await kit.claim(backend)
            await crash(backend, clock)
            waiting = await backend.get_job(job.id)
            assert waiting.status is S.UNKNOWN_RETRY
            assert kit.moment(waiting.run_at) > clock.now()
            await backend.promote_job(job.id)

    async def test_the_products_table_has_these_arrows(self) -> None:
        written = {arrow.source: arrow.target for arrow in TRANSITIONS if arrow.verb is Verb.CRASH}
        assert written == {S.RUNNING: S.UNKNOWN_RETRY, S.CANCELLING: S.UNKNOWN_STOPPED}

    # -- a process that died

    async def test_a_crash_report_is_kept_with_the_job_and_shortened_in_the_log(self, backend: Backend) -> None:
        # M-EV-07
        text = "killed by signal 9\n" + "the last lines it wrote\n" * 100
        job = await kit.job_in(backend, S.RUNNING, max_crashes=1)
        await backend.settle_jobs([Outcome(job.id, kit.lease_of(job), "crash", error=text)])
        assert (await backend.get_job(job.id)).error_message == text
        assert (await kit.history(backend, job.id))[-2].detail["reason"] == text[:500]
        again = await kit.claim(backend)
        assert (again.id, again.error_message) == (job.id, text)
        await backend.settle_jobs([Outcome(job.id, kit.lease_of(again), "crash", error=text)])
        dead = await backend.get_job(job.id)
        assert (dead.status, dead.crashes) == (S.DEAD, 2)
        assert dead.error_message.endswith(text)
        assert all(len(event.detail["reason"]) <= 500 for event in (await kit.history(backend, job.id))[-3::2])

    async def test_no_last_words_are_too_odd_or_too_long(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        odd = "\x00 \ud800" + "x" * 2 * LONGEST_TEXT
        report = await backend.settle_jobs([Outcome(job.id, kit.lease_of(job), "crash", error=odd)])
        assert report.settled == {job.id: S.UNKNOWN_RETRY}
        assert LONGEST_TEXT < len((await backend.get_job(job.id)).error_message) < LONGEST_TEXT + 100

    async def test_a_process_may_die_without_a_word(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        report = await backend.settle_jobs([Outcome(job.id, kit.lease_of(job), "crash")])
        assert report.settled == {job.id: S.UNKNOWN_RETRY}
        assert "died" in (await backend.get_job(job.id)).error_message

    async def test_only_the_holder_of_a_job_can_report_its_crash(self, backend: Backend, clock: HeldClock) -> None:
        #
        held = await kit.job_in(backend, S.RUNNING, "held")
        over = await kit.job_in(backend, S.COMPLETED, "over")
        outcomes = [Outcome("held", kit.STALE, "crash"), Outcome("over", kit.lease_of(held), "crash")]
        async with kit.nothing_changes(backend):
            report = await backend.settle_jobs(outcomes)
            without = await backend.settle_jobs([Outcome(over.id, None, "crash")])
        refusals = {name: type(error) for name, error in (report.refused | without.refused).items()}
        assert refusals == {"held": LeaseLost, "over": JobNotInflight}
        clock.advance(30)
        late = await backend.settle_jobs([Outcome("held", kit.lease_of(held), "crash")])
        assert isinstance(late.refused["held"], LeaseLost)

    # -- expired leases

    async def test_the_sweep_takes_a_lease_from_the_instant_it_ends(self, backend: Backend, clock: HeldClock) -> None:
        # T-M4-03 X-45
        job = await kit.job_in(backend, S.RUNNING)
        clock.set(kit.moment(kit.lease_of(job).expires_at) - timedelta(microseconds=1))
        assert await backend.reclaim_expired_leases() == []
        clock.advance(timedelta(microseconds=1))
        [reclaimed] = await backend.reclaim_expired_leases()
        assert reclaimed == await backend.get_job(job.id)
        assert await backend.reclaim_expired_leases() == []

    async def test_the_sweep_reclaims_the_most_overdue_first(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([kit.new_job(f"j{number}") for number in range(4)])
        for lease in (30, 10, 20, 100):
            await kit.claim(backend, lease=lease)
        await kit.enqueue(backend, "short-lived", expires_at=5)
        clock.advance(50)
        assert [job.id for job in await backend.reclaim_expired_leases(limit=2)] == ["j1", "j2"]
        assert [job.id for job in await backend.reclaim_expired_leases(limit=2)] == ["j0"]
        assert await kit.status_of(backend, "j3") is S.RUNNING
        assert await kit.status_of(backend, "short-lived") is S.UNSCHEDULED

    async def test_the_sweep_looks_at_the_lease_alone(self, backend: Backend, clock: HeldClock) -> None:
        """It does not matter whether the worker is known or still sends heartbeats."""
        await backend.enqueue_jobs([kit.new_job("a"), kit.new_job("b")])
        await kit.claim(backend, "worker-1", lease=10)
        await kit.claim(backend, "worker-1", lease=60)
        clock.advance(10)
        assert [job.id for job in await backend.reclaim_expired_leases()] == ["a"]

    @pytest.mark.parametrize(
        ("source", "target"),
        [
            (S.INITIAL_PENDING, S.UNSCHEDULED),
            (S.WAITING_CHILDREN, S.UNSCHEDULED),
            (S.FAILED_RETRY, S.STOPPED),
            (S.UNKNOWN_RETRY, S.STOPPED),
        ],
    )
    async def test_the_sweep_ends_expired_jobs(self, backend: Backend, clock: HeldClock, source: S, target: S) -> None:
        job = await kit.job_in(backend, source, expires_at=60)
        clock.advance(59)
        await backend.reclaim_expired_leases()
        assert await kit.status_of(backend, job.id) is source
        clock.advance(1)
        assert await backend.reclaim_expired_leases() == []
        over = await backend.get_job(job.id)
        assert (over.status, over.finalized_at) == (target, clock.now())
        assert "expire" in over.error_message
        event = (await kit.history(backend, job.id))[-1]
        assert (event.event, event.detail["reason"]) == ("job.stopped", "expired")

    @pytest.mark.parametrize("status", [S.RUNNING, S.CANCELLING])
    async def test_a_running_job_may_run_past_its_expiry(self, backend: Backend, clock: HeldClock, status: S) -> None:
        job = await kit.job_in(backend, status, expires_at=10)
        clock.advance(20)
        await backend.reclaim_expired_leases()
        assert await kit.status_of(backend, job.id) is status

    # -- a worker declared unresponsive

    async def test_only_that_workers_jobs_are_affected_in_every_queue(self, backend: Backend) -> None:
        # B-MWU-02 B-MWU-03 B-MWU-07 B-MWU-08 B-INT-04 B-CON-04 X-36
        await backend.enqueue_jobs([kit.new_job(f"j{number}", queue=f"queue {number % 2}") for number in range(6)])
        for worker in ("worker-1", "worker-2"):
            await backend.dequeue_jobs(worker, limit=3)
        await backend.cancel_jobs(job_ids=["j1", "j4"])
        await backend.mark_worker_unresponsive("worker-1")
        found = {f"j{number}": await kit.status_of(backend, f"j{number}") for number in range(6)}
        assert found == {
            "j0": S.UNKNOWN_RETRY,
            "j1": S.UNKNOWN_STOPPED,
            "j2": S.UNKNOWN_RETRY,
            "j3": S.RUNNING,
            "j4": S.CANCELLING,
            "j5": S.RUNNING,
        }

    async def test_a_worker_that_lost_a_job_before_has_no_part_in_it_now(self, backend: Backend) -> None:
        # B-CON-09: the last assignee on the record is history, not ownership
        job = await kit.job_in(backend, S.RUNNING)
        await backend.release_lease(job.id, kit.lease_of(job))
        await kit.claim(backend, "worker-2")
        await backend.mark_worker_unresponsive("worker-1")
        assert await kit.status_of(backend, job.id) is S.RUNNING

    async def test_an_unknown_worker_is_not_an_error(self, backend: Backend) -> None:
        # B-MWU-05
        await kit.job_in(backend, S.RUNNING)
        async with kit.nothing_changes(backend):
            await backend.mark_worker_unresponsive("worker-9")

    async def test_the_capacity_of_a_crashed_worker_is_freed(self, backend: Backend) -> None:
        # B-MWU-06 B-RST-05 X-23 X-24
        await backend.set_limits("default", running=2)
        await backend.enqueue_jobs([kit.new_job() for _ in range(4)])
        for give_back in (backend.mark_worker_unresponsive("worker-1"), backend.reset_running_jobs()):
            held = await backend.dequeue_jobs("worker-1", limit=4)
            assert len(held) == 2
            assert await backend.dequeue_jobs("worker-2") == []
            await backend.cancel_jobs(job_ids=[held[0].id])
            await give_back

    # -- running jobs reset

    async def test_all_that_anybody_holds_is_reset_in_one_go(self, backend: Backend) -> None:
        # B-RST-01 B-RST-06 X-01
        await backend.enqueue_jobs([kit.new_job(queue=f"queue {number % 2}") for number in range(6)])
        for worker in ("worker-1", "worker-2", "worker-3"):
            held = await backend.dequeue_jobs(worker, limit=2)
        await backend.cancel_jobs(job_ids=[held[0].id])
        await backend.reset_running_jobs()
        counts = await backend.count_jobs()
        assert (counts[S.UNKNOWN_RETRY], counts[S.UNKNOWN_STOPPED], counts[S.RUNNING]) == (5, 1, 0)

    async def test_a_queue_can_be_reset_by_itself(self, backend: Backend) -> None:
        mail = await kit.job_in(backend, S.RUNNING, queue="mail")
        bill = await kit.job_in(backend, S.RUNNING, queue="bills")
        await backend.reset_running_jobs(queue="mail")
        assert await kit.status_of(backend, mail.id) is S.UNKNOWN_RETRY
        assert await kit.status_of(backend, bill.id) is S.RUNNING


class TestWorkers:
    """`heartbeat_worker`, `list_workers`, `record_worker_event`."""

    async def test_a_workers_heartbeat_is_stored_with_its_time(self, backend: Backend, clock: HeldClock) -> None:
        worker = WorkerInfo(
            id="w2",
            queues=("mail", "bills"),
            tags=("eu",),
            concurrency=4,
            running=2,
            host="box",
            pid=77,
            version="0.1.0",
            state="draining",
            started_at=clock.now() - timedelta(days=1),
            detail={"threads": [1, 2]},
        )
        await backend.heartbeat_worker(worker)
        await backend.heartbeat_worker(WorkerInfo(id="w1"))
        first, second = await backend.list_workers()
        assert (first.id, first.seen_at) == ("w1", clock.now())
        assert (second.queues, second.tags, second.concurrency, second.running) == (("mail", "bills"), ("eu",), 4, 2)
        assert (second.host, second.pid, second.version, second.state) == ("box", 77, "0.1.0", "draining")
        assert (second.started_at, dict(second.detail)) == (clock.now() - timedelta(days=1), {"threads": [1, 2]})
        clock.advance(10)
        await backend.heartbeat_worker(WorkerInfo(id="w2", running=1))
        [_, second] = await backend.list_workers()
        assert (second.running, second.seen_at) == (1, clock.now())

    async def test_worker_events_are_in_the_log(self, backend: Backend, clock: HeldClock) -> None:
        # M-EV-13 M-EV-14 X-83
        cursor = await backend.end_of_events()
        await backend.record_worker_event("worker.error", "w1", queue="mail", detail={"error": "no route", "tries": 3})
        clock.advance(1)
        await backend.record_worker_event("worker.drained", "w2")
        assert await backend.wait_for_change(0, after=cursor) is True
        failed, drained = await backend.read_events(cursor)
        assert (failed.event, failed.assignee_id, failed.queue) == ("worker.error", "w1", "mail")
        assert failed.detail == {"error": "no route", "tries": 3}
        assert (drained.event, drained.assignee_id, drained.queue) == ("worker.drained", "w2", "")
        assert (drained.detail, drained.occurred_at) == ({}, clock.now())
        for event in (failed, drained):
            assert (event.job_uid, event.job_id, event.type, event.actor) == (None, None, None, "")
            assert (event.job_seq, event.from_status, event.to_status) == (0, None, None)
        assert await backend.read_events(cursor, queue="mail") == [failed]

    async def test_an_error_is_stored_whatever_its_text(self, backend: Backend) -> None:
        # M-EV-13
        odd = "\x00 \ud800" + "x" * 2 * LONGEST_TEXT
        await backend.record_worker_event("worker.error", "w1", detail={"error": odd})
        [event] = await kit.log_of(backend)
        assert event.detail["error"].startswith("\ufffd \ufffdxxx")
        assert len(event.detail["error"]) < LONGEST_DETAIL_TEXT + 100

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("event", value) for value in ("job.completed", "worker.", "", None)),
            *(
                ("detail", value)
                for value in ("text", [1], {1: "one"}, {"n": float("nan")}, {"x": ["x" * LARGEST_DETAIL]})
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else repr(value)[:20],
    )
    async def test_nothing_else_gets_into_the_log_by_this_way(self, backend: Backend, field: str, value: Any) -> None:
        call: dict[str, Any] = {"event": "worker.error", "worker_id": "w1", field: value}
        caught = await kit.refused(backend, backend.record_worker_event(**call))
        assert caught.field.startswith(field)

    @pytest.mark.parametrize("queue", ["", "a queue that never had a job"])
    async def test_worker_events_are_pruned(self, backend: Backend, clock: HeldClock, queue: str) -> None:
        await backend.record_worker_event("worker.drained", "w1", queue=queue)
        assert await backend.list_queues() == []
        assert await backend.dequeue_jobs("w1") == []
        clock.advance(timedelta(days=31))
        await kit.retain(backend)
        assert await kit.log_of(backend) == []
