"""Leases: their expiry, growing epochs, and the check before every write of a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidTransition, JobNotFound, JobNotInflight, LeaseLost
from longshore.core.job import Lease
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

TICK = timedelta(microseconds=1)

FencedWrite = Callable[[Backend, str, Lease], Awaitable[object]]


async def _settle(backend: Backend, outcome: Outcome) -> None:
    report = await backend.settle_jobs([outcome])
    for refusal in report.refused.values():
        raise refusal


FENCED: dict[str, FencedWrite] = {
    "release_lease": lambda b, job_id, lease: b.release_lease(job_id, lease),
    "set_progress": lambda b, job_id, lease: b.set_progress(job_id, 50, lease=lease),
    "append_log": lambda b, job_id, lease: b.append_log(job_id, "half done", lease=lease),
    "save_checkpoint": lambda b, job_id, lease: b.save_checkpoint(job_id, {"page": 3}, lease=lease),
    "complete_job": lambda b, job_id, lease: b.complete_job(job_id, b"done", lease=lease),
    "fail_job": lambda b, job_id, lease: b.fail_job(job_id, "broken", lease=lease),
    "bury_job": lambda b, job_id, lease: b.bury_job(job_id, "permanently broken", lease=lease),
    "stop_job": lambda b, job_id, lease: b.stop_job(job_id, "stopped", lease=lease),
    "stop_job_with_retry": lambda b, job_id, lease: b.stop_job_with_retry(job_id, "stopped", lease=lease),
    "mark_job_unknown_stopped": lambda b, job_id, lease: b.mark_job_unknown_stopped(job_id, lease=lease),
    "acknowledge_cancellation(True)": lambda b, job_id, lease: b.acknowledge_cancellation(job_id, True, lease=lease),
    "acknowledge_cancellation(False)": lambda b, job_id, lease: b.acknowledge_cancellation(job_id, False, lease=lease),
    "settle complete": lambda b, job_id, lease: _settle(b, Outcome(job_id, lease, "complete")),
    "settle fail": lambda b, job_id, lease: _settle(b, Outcome(job_id, lease, "fail", error="broken")),
    "settle bury": lambda b, job_id, lease: _settle(b, Outcome(job_id, lease, "bury", error="broken")),
    "settle stop": lambda b, job_id, lease: _settle(b, Outcome(job_id, lease, "stop")),
    "settle release": lambda b, job_id, lease: _settle(b, Outcome(job_id, lease, "release")),
}
every_fenced_write = pytest.mark.parametrize("write", FENCED.values(), ids=FENCED.keys())


class TestLeases:
    """The lease of a claim, its expiry, and the writes that it fences."""

    # -- the checks, in the documented order

    @every_fenced_write
    async def test_first_an_unknown_job_is_not_found(self, backend: Backend, write: FencedWrite) -> None:
        # T-ERR-01 B-ERR-03 X-43 X-45
        caught = await kit.refused(backend, write(backend, "nobody", kit.STALE), JobNotFound)
        assert caught.job_id == "nobody"

    @every_fenced_write
    async def test_then_a_job_without_a_holder_is_not_inflight(self, backend: Backend, write: FencedWrite) -> None:
        # T-ERR-02 X-44 X-45
        jobs = [await kit.job_in(backend, status) for status in kit.EVERY_STATUS if not status.holds_capacity]
        async with kit.nothing_changes(backend):
            for job in jobs:
                with pytest.raises(JobNotInflight) as caught:
                    await write(backend, job.id, kit.STALE)
                assert (caught.value.job_id, caught.value.status) == (job.id, job.status)

    @pytest.mark.parametrize("status", [S.RUNNING, S.CANCELLING])
    @every_fenced_write
    async def test_then_an_ended_lease_is_expired_for_every_caller(
        self, backend: Backend, clock: HeldClock, write: FencedWrite, status: S
    ) -> None:
        # T-M4-02 X-45: expired from the instant it ends, and checked before the token
        job = await kit.job_in(backend, status)
        lease = kit.lease_of(job)
        clock.set(kit.moment(lease.expires_at))
        for one in (lease, replace(lease, token="another")):
            caught = await kit.refused(backend, write(backend, job.id, one), LeaseLost)
            assert (caught.job_id, caught.reason) == (job.id, "expired")

    @pytest.mark.parametrize("status", [S.RUNNING, S.CANCELLING])
    @every_fenced_write
    async def test_last_another_claims_is_a_mismatch(self, backend: Backend, write: FencedWrite, status: S) -> None:
        # T-M4-02 X-45 X-61 X-66
        job = await kit.job_in(backend, status)
        lease = kit.lease_of(job)
        for one in (replace(lease, token="another"), replace(lease, epoch=lease.epoch + 1)):
            caught = await kit.refused(backend, write(backend, job.id, one), LeaseLost)
            assert caught.reason == "mismatch"

    @every_fenced_write
    async def test_the_lease_of_an_earlier_claim_is_refused(self, backend: Backend, write: FencedWrite) -> None:
        # T-M4-02 B-INV-05
        await kit.enqueue(backend, "j1")
        old = kit.lease_of(await kit.claim(backend, "worker-1"))
        await backend.release_lease("j1", old)
        new = await kit.claim(backend, "worker-1")
        caught = await kit.refused(backend, write(backend, "j1", old), LeaseLost)
        assert caught.reason == "mismatch"
        await backend.complete_job("j1", lease=kit.lease_of(new))

    @every_fenced_write
    async def test_a_live_lease_lets_writes_pass(self, backend: Backend, clock: HeldClock, write: FencedWrite) -> None:
        # T-M4-01 T-M4-02
        for status in (S.RUNNING, S.CANCELLING):
            job = await kit.job_in(backend, status)
            clock.set(kit.moment(kit.lease_of(job).expires_at) - TICK)
            before = await backend.get_job(job.id), await kit.history(backend, job.id), await backend.read_logs(job.id)
            try:
                await write(backend, job.id, kit.lease_of(job))
            except InvalidTransition:
                continue  # this operation is for the other of the two statuses
            assert before != (
                await backend.get_job(job.id),
                await kit.history(backend, job.id),
                await backend.read_logs(job.id),
            )
            return
        pytest.fail("no lease of a RUNNING or CANCELLING job was accepted")

    # -- the lease of a claim

    async def test_every_claim_raises_the_epoch_and_has_a_new_token(self, backend: Backend, clock: HeldClock) -> None:
        # T-M4-01 X-46
        await kit.enqueue(backend, "j1")
        seen: list[Lease] = []
        for _ in range(4):
            lease = kit.lease_of(await kit.claim(backend, lease=45))
            assert lease.expires_at == clock.now() + kit.seconds(45)
            assert not lease.cancel_requested
            await backend.release_lease("j1", lease)
            seen.append(lease)
        assert [lease.epoch for lease in seen] == [1, 2, 3, 4]
        assert len({lease.token for lease in seen}) == 4

    async def test_a_lease_lasts_thirty_seconds_by_default(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend)
        assert kit.lease_of(await kit.claim(backend)).expires_at == clock.now() + kit.seconds(30)

    async def test_a_record_shows_its_lease_and_its_last_owner(self, backend: Backend, clock: HeldClock) -> None:
        # B-CON-08 B-COMP-08 X-114
        job = await kit.job_in(backend, S.RUNNING)
        assert job.lease is not None
        await backend.complete_job(job.id)
        clock.advance(1000)
        done = await backend.get_job(job.id)
        assert done.lease is None
        assert (done.assignee_id, done.assigned_at) == ("worker-1", job.assigned_at)

    async def test_a_lease_of_none_never_ends(self, backend: Backend, clock: HeldClock) -> None:
        # T-M-00 X-48
        await kit.enqueue(backend, "j1")
        job = await kit.claim(backend, lease=None)
        assert kit.lease_of(job).expires_at is None
        clock.advance(timedelta(days=2000))
        assert await backend.reclaim_expired_leases() == []
        assert await backend.dequeue_jobs("worker-2") == []
        await backend.complete_job("j1", lease=kit.lease_of(job))
        assert await kit.status_of(backend, "j1") is S.COMPLETED

    async def test_without_a_lease_any_caller_may_settle(self, backend: Backend, clock: HeldClock) -> None:
        # a rule of the storage document, even after the lease has expired
        job = await kit.job_in(backend, S.RUNNING)
        clock.advance(3600)
        assert await backend.complete_job(job.id, b"late") == {"worker-1": 1}

    # -- renewed

    async def test_a_renewed_lease_counts_from_now(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        lease = kit.lease_of(job)
        clock.advance(20)
        renewed = await backend.extend_leases({job.id: lease}, 30)
        assert renewed == {job.id: replace(lease, expires_at=clock.now() + kit.seconds(30))}
        clock.advance(29)
        assert await backend.reclaim_expired_leases() == []
        assert (await backend.get_job(job.id)).lease == renewed[job.id]
        await backend.complete_job(job.id, lease=lease)  # the first copy is valid: token and epoch identify the claim

    async def test_renewing_returns_only_the_leases_still_held(self, backend: Backend, clock: HeldClock) -> None:
        # B-ERR-07: no error; lost leases are absent from the answer
        expired = await kit.job_in(backend, S.RUNNING, "expired")
        clock.advance(20)
        held = await kit.job_in(backend, S.RUNNING, "held")
        done = await kit.job_in(backend, S.COMPLETED, "done")
        taken = await kit.job_in(backend, S.RUNNING, "taken")
        clock.advance(10)
        leases = {
            "expired": kit.lease_of(expired),
            "held": kit.lease_of(held),
            "taken": replace(kit.lease_of(taken), epoch=99),
            "done": kit.lease_of(held),
            "nobody": kit.STALE,
        }
        assert list(await backend.extend_leases(leases, 30)) == ["held"]
        for other in ("expired", "taken"):
            assert (await backend.get_job(other)).lease == kit.lease_of(expired if other == "expired" else taken)
        assert await backend.get_job("done") == done

    async def test_renewing_leaves_no_event_and_no_other_mark(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        events = await kit.history(backend, job.id)
        clock.advance(1)
        await backend.extend_leases({job.id: kit.lease_of(job)}, 30)
        assert await kit.history(backend, job.id) == events
        assert (await backend.get_job(job.id)).replace(lease=None) == job.replace(lease=None)

    async def test_renewing_reports_a_requested_cancellation(self, backend: Backend) -> None:
        #
        job = await kit.job_in(backend, S.CANCELLING)
        renewed = await backend.extend_leases({job.id: kit.lease_of(job)}, 30)
        assert renewed[job.id].cancel_requested

    async def test_renewing_a_lease_without_end_leaves_it_without_end(self, backend: Backend) -> None:
        await kit.enqueue(backend, "j1")
        lease = kit.lease_of(await kit.claim(backend, lease=None))
        assert await backend.extend_leases({"j1": lease}, 30) == {"j1": lease}

    async def test_renewing_no_leases_is_not_an_error(self, backend: Backend) -> None:
        async with kit.nothing_changes(backend):
            assert await backend.extend_leases({}, 30) == {}

    # -- released

    async def test_a_released_job_is_eligible_again_and_nothing_is_counted(self, backend: Backend) -> None:
        # B-CON-05
        job = await kit.job_in(backend, S.RUNNING, retry_count=0)
        assert await backend.release_lease(job.id, kit.lease_of(job), reason="shutting down") == {"worker-1": 1}
        back = await backend.get_job(job.id)
        assert back.status is S.UNKNOWN_RETRY
        assert (back.retry_count, back.crashes, back.last_retry_at, back.executions) == (0, 0, None, 1)
        assert back.assignee_id == "worker-1"
        event = (await kit.history(backend, job.id))[-1]
        assert (event.event, event.detail["reason"]) == ("job.released", "shutting down")
        assert (await kit.claim(backend, "worker-2")).epoch == 2

    async def test_a_job_may_be_released_for_later(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await backend.release_lease(job.id, kit.lease_of(job), run_at=60, reason="unknown type")
        assert await kit.claimable(backend) == []
        clock.advance(60)
        assert await kit.claimable(backend) == [job.id]

    async def test_a_job_released_without_a_time_may_run_at_once(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "j1", run_at=10)
        clock.advance(10)
        job = await kit.claim(backend)
        await backend.release_lease("j1", kit.lease_of(job))
        assert (await backend.get_job("j1")).run_at is None

    async def test_a_job_being_cancelled_is_acknowledged_not_released(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.CANCELLING)
        caught = await kit.refused(backend, backend.release_lease(job.id, kit.lease_of(job)), InvalidTransition)
        assert (caught.status, caught.target) == (S.CANCELLING, S.UNKNOWN_RETRY)

    async def test_many_leases_are_renewed_in_one_call(self, backend: Backend, clock: HeldClock) -> None:
        # B-PERF-04
        await backend.enqueue_jobs([kit.new_job() for _ in range(50)])
        jobs = await backend.dequeue_jobs("worker-1", limit=50)
        clock.advance(20)
        renewed = await backend.extend_leases({job.id: kit.lease_of(job) for job in jobs}, 30)
        assert {lease.expires_at for lease in renewed.values()} == {clock.now() + kit.seconds(30)}
        assert len(renewed) == 50
