"""A move by hand: `update_job_status` over the whole table, and the little it touches."""

from __future__ import annotations

from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidTransition, JobNotFound
from longshore.core.status import HOLDS_CAPACITY
from longshore.testing.conformance.staging import (
    EVERY_STATUS,
    S,
    claim,
    enqueue,
    history,
    job_in,
    lease_of,
    nothing_changes,
    refused,
    seconds,
    status_of,
    steps,
)

# By hand, from the documents: the union of what the verbs do, less what only its own verb may do.
BY_HAND: dict[S, set[S]] = {
    S.CREATED: {S.UNSCHEDULED},
    S.WAITING_CHILDREN: {S.UNSCHEDULED},
    S.INITIAL_PENDING: {S.RUNNING, S.UNSCHEDULED},
    S.FAILED_RETRY: {S.RUNNING, S.STOPPED, S.DEAD},
    S.UNKNOWN_RETRY: {S.RUNNING, S.COMPLETED, S.FAILED_RETRY, S.STOPPED, S.UNKNOWN_STOPPED, S.DEAD},
    S.RUNNING: {S.COMPLETED, S.FAILED_RETRY, S.STOPPED, S.UNKNOWN_STOPPED, S.CANCELLING, S.UNKNOWN_RETRY},
    S.CANCELLING: {S.COMPLETED, S.STOPPED, S.UNKNOWN_STOPPED},
    S.UNKNOWN_STOPPED: {S.COMPLETED},
    S.COMPLETED: set(),
    S.STOPPED: set(),
    S.UNSCHEDULED: set(),
    S.DEAD: set(),
}
LEGAL = [(source, target) for source, targets in BY_HAND.items() for target in sorted(targets)]


class TestUpdates:
    """`update_job_status`: for edges the verbs do not cover."""

    @pytest.mark.parametrize(("source", "target"), LEGAL, ids=lambda status: status.value)
    async def test_a_move_in_the_table_is_made_and_counts_nothing(
        self, backend: Backend, clock: HeldClock, source: S, target: S
    ) -> None:
        # B-UPD-01 B-UPD-03 B-UPD-04 B-UPD-05 B-UPD-06 B-UPD-07 B-INV-03 X-10 X-15
        job = await job_in(backend, source)
        clock.advance(1)
        freed = await backend.update_job_status(job.id, target)
        after = await backend.get_job(job.id)
        assert after.status is target
        leaves = source in HOLDS_CAPACITY and target not in HOLDS_CAPACITY
        assert freed == ({"worker-1": 1} if leaves else {})
        assert (after.executions, after.retry_count, after.crashes) == (job.executions, job.retry_count, job.crashes)
        assert (after.last_retry_at, after.assignee_id) == (job.last_retry_at, job.assignee_id)
        assert after.assigned_at == job.assigned_at
        started = clock.now() if target is S.RUNNING and job.started_at is None else job.started_at
        assert after.started_at == started
        if target.final:
            assert after.finalized_at == (job.finalized_at or clock.now())
        event = (await history(backend, job.id))[-1]
        assert (event.event, event.from_status, event.to_status) == ("job.updated", source, target)

    @pytest.mark.parametrize("source", EVERY_STATUS)
    async def test_every_move_outside_the_table_is_refused(self, backend: Backend, source: S) -> None:
        # B-UPD-01 B-UPD-08 B-ERR-02 B-INV-03 X-10
        job = await job_in(backend, source)
        for target in EVERY_STATUS:
            if target is not source and target not in BY_HAND[source]:
                async with refused(backend, InvalidTransition) as caught:
                    await backend.update_job_status(job.id, target)
                assert (caught.value.status, caught.value.target) == (source, target)

    @pytest.mark.parametrize("status", EVERY_STATUS)
    async def test_the_status_it_has_already_is_no_change_and_no_error(self, backend: Backend, status: S) -> None:
        #
        job = await job_in(backend, status)
        async with nothing_changes(backend):
            assert await backend.update_job_status(job.id, status) == {}

    async def test_an_unknown_job_is_not_found(self, backend: Backend) -> None:
        # B-UPD-08
        async with refused(backend, JobNotFound):
            await backend.update_job_status("nobody", S.STOPPED)

    async def test_a_result_and_an_error_are_written_only_where_they_are_given(self, backend: Backend) -> None:
        # B-UPD-02
        job = await job_in(backend, S.FAILED_RETRY)
        await backend.update_job_status(job.id, S.RUNNING)
        assert (await backend.get_job(job.id)).error_message == "failed to set the stage"
        await backend.update_job_status(job.id, S.UNKNOWN_STOPPED, result=b"half", error="power cut")
        half = await backend.get_job(job.id)
        assert (half.result, half.error_message) == (b"half", "power cut")
        await backend.update_job_status(job.id, S.COMPLETED)
        done = await backend.get_job(job.id)
        assert (done.result, done.error_message) == (b"half", "power cut")
        job = await job_in(backend, S.RUNNING)
        await backend.update_job_status(job.id, S.COMPLETED, result=b"")
        assert (await backend.get_job(job.id)).result == b""

    async def test_a_job_set_running_has_a_short_lease_a_new_epoch_and_no_owner(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        job = await job_in(backend, S.UNKNOWN_RETRY)
        clock.advance(1)
        assert await backend.update_job_status(job.id, S.RUNNING) == {}
        running = await backend.get_job(job.id)
        lease = lease_of(running)
        assert (lease.epoch, lease.expires_at) == (2, clock.now() + seconds(30))
        assert running.started_at == job.started_at
        # nobody's capacity is freed by its end, for nobody's was taken
        assert await backend.complete_job(job.id) == {}

    async def test_a_job_set_running_is_recovered_by_the_sweep(self, backend: Backend, clock: HeldClock) -> None:
        job = await job_in(backend, S.INITIAL_PENDING)
        await backend.update_job_status(job.id, S.RUNNING)
        clock.advance(30)
        assert [swept.id for swept in await backend.reclaim_expired_leases()] == [job.id]
        assert (await claim(backend)).id == job.id

    async def test_a_job_set_running_is_not_the_worker_s_that_had_it_before(self, backend: Backend) -> None:
        job = await job_in(backend, S.UNKNOWN_RETRY)
        await backend.update_job_status(job.id, S.RUNNING)
        await backend.mark_worker_unresponsive("worker-1")
        assert await status_of(backend, job.id) is S.RUNNING

    async def test_a_move_by_hand_frees_the_room_of_its_queue(self, backend: Backend) -> None:
        await backend.set_limits("default", running=1)
        job = await job_in(backend, S.RUNNING)
        await enqueue(backend, "next")
        assert await backend.dequeue_jobs("worker-2") == []
        await backend.update_job_status(job.id, S.STOPPED)
        assert (await claim(backend, "worker-2")).id == "next"

    @pytest.mark.parametrize("limits", [{"running": 1}, {"per_key": 1}])
    async def test_a_job_is_not_set_running_beyond_a_full_limit(self, backend: Backend, limits: dict[str, Any]) -> None:
        await backend.set_limits("default", **limits)
        running = await job_in(backend, S.RUNNING, concurrency_key="customer-1")
        waiting = await job_in(backend, S.INITIAL_PENDING, concurrency_key="customer-1")
        async with refused(backend, InvalidTransition):
            await backend.update_job_status(waiting.id, S.RUNNING)
        await backend.complete_job(running.id)
        await backend.update_job_status(waiting.id, S.RUNNING)
        assert steps(await history(backend, waiting.id))[-1] == (S.INITIAL_PENDING, S.RUNNING)
