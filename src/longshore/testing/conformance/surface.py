"""The seam itself: the verbs are there, they are awaited, and they come with the records every layer shares."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime

from longshore.backends.base import Backend, Capabilities, SettleReport
from longshore.core.clock import HeldClock
from longshore.core.job import Job, JobStats
from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, TABLE, JobStatus
from longshore.testing.conformance.scenarios import S, claim, enqueue, lease_of

DOCUMENTED = {
    "enqueue_job": ("job",),
    "enqueue_jobs": ("jobs", "connection"),
    "dequeue_jobs": ("assignee_id", "tags", "limit", "queues", "types", "lease"),
    "complete_job": ("job_id", "result", "lease"),
    "fail_job": ("job_id", "error", "retry_at", "lease"),
    "stop_job": ("job_id", "error", "lease"),
    "stop_job_with_retry": ("job_id", "error", "lease"),
    "mark_job_unknown_stopped": ("job_id", "error", "lease"),
    "update_job_status": ("job_id", "status", "result", "error"),
    "cancel_jobs": ("tags", "job_ids", "queue", "held"),
    "acknowledge_cancellation": ("job_id", "was_executing", "lease"),
    "mark_worker_unresponsive": ("assignee_id",),
    "get_job": ("job_id",),
    "get_job_stats": ("tags", "queue"),
    "reset_running_jobs": ("queue",),
    "cleanup_expired_jobs": ("ttl", "queue"),
    "delete_jobs": ("tags", "job_ids", "queue"),
    "close": (),
}
"""The verbs of the storage document under their names here; leases, queues and the rest are this contract's own."""

BEYOND_IT = (
    *("accept_jobs", "extend_leases", "release_lease", "bury_job", "settle_jobs", "reclaim_expired_leases"),
    *("list_jobs", "count_jobs", "retry_job", "promote_job", "set_progress", "append_log", "read_logs"),
    *("save_checkpoint", "read_events", "wait_for_change", "pause_queue", "resume_queue", "set_limits", "list_queues"),
    *("put_schedule", "get_schedules", "remove_schedule", "fire_due_schedules", "heartbeat_worker", "list_workers"),
    *("get_schedule", "pause_schedule", "resume_schedule", "run_schedule"),
    *("end_of_events", "record_worker_event", "add_jobs", "enqueue_new_jobs", "now", "count_delayed", "next_due"),
)


class TestSurface:
    """What any caller may take for granted before the first job is stored."""

    async def test_every_documented_verb_is_there_with_its_parameters(self, backend: Backend) -> None:
        # B-API-01 B-UPD-09
        assert isinstance(backend, Backend)
        for name, parameters in DOCUMENTED.items():
            assert tuple(inspect.signature(getattr(backend, name)).parameters) == parameters, name
        assert set(DOCUMENTED) | set(BEYOND_IT) <= Backend.__abstractmethods__

    async def test_every_verb_is_awaited_so_that_every_call_can_be_cancelled(self, backend: Backend) -> None:
        # B-API-02
        for name in sorted(Backend.__abstractmethods__):
            assert inspect.iscoroutinefunction(getattr(backend, name)), name

    async def test_a_store_says_what_it_can_do_beyond_the_contract(self, backend: Backend) -> None:
        assert isinstance(backend.capabilities, Capabilities)

    async def test_the_shared_records_come_back_from_the_verbs(self, backend: Backend, clock: HeldClock) -> None:
        # B-CON-10 B-OBS-01 B-OBS-02 B-OBS-03
        await enqueue(backend, "j1")
        claimed = await claim(backend)
        freed = await backend.fail_job("j1", "no route to host", lease=lease_of(claimed))
        job = await backend.get_job("j1")
        assert isinstance(job, Job)
        assert (job.status, job.assignee_id, job.retry_count) == (S.FAILED_RETRY, "worker-1", 1)
        assert job.created_at == job.assigned_at == job.started_at == job.last_retry_at == clock.now()
        assert freed == {"worker-1": 1}
        stats = await backend.get_job_stats()
        assert isinstance(stats, JobStats)
        assert stats.failed_jobs == 1
        assert isinstance(await backend.settle_jobs([]), SettleReport)

    async def test_times_come_back_in_utc_to_the_microsecond(self, backend: Backend, clock: HeldClock) -> None:
        #
        clock.set(datetime(2026, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC))
        job = await enqueue(backend)
        assert job.created_at == datetime(2026, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC)
        assert job.created_at.utcoffset() == UTC.utcoffset(None)

    async def test_the_statuses_and_what_they_mean_are_the_documented_ones(self) -> None:
        # B-CON-07 B-CON-09 X-06 T-ST-05
        assert {S.INITIAL_PENDING, S.FAILED_RETRY, S.UNKNOWN_RETRY} == ELIGIBLE
        assert {S.RUNNING, S.CANCELLING} == HOLDS_CAPACITY
        assert {S.COMPLETED, S.STOPPED, S.UNSCHEDULED, S.UNKNOWN_STOPPED, S.DEAD} == FINAL
        assert len(JobStatus) == 12

    async def test_no_arrow_leads_back_to_initial_pending_from_a_job_that_was_there(self) -> None:
        # B-INV-03
        assert {arrow.source for arrow in TABLE if arrow.target is S.INITIAL_PENDING} == {S.CREATED, S.WAITING_CHILDREN}
