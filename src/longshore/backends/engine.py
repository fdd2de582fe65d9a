"""The backend contract on top of any store that has a write transaction and a reader."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

from longshore.backends import argument_checks as checks
from longshore.backends.base import (
    UNCHANGED,
    Backend,
    ClaimFailed,
    Freed,
    Outcome,
    Page,
    QueueInfo,
    SettleReport,
    Unchanged,
    WorkerEvent,
    WorkerInfo,
)
from longshore.backends.change_signal import ChangeSignal
from longshore.backends.operations import admin, cancel, enqueue, job_updates, maintenance, reads, schedules, settle
from longshore.backends.operations import claim as claiming
from longshore.backends.port import Operation, Reader, RunsOperations, Transaction, operation
from longshore.core.errors import DuplicateJob, InvalidArgument, LongshoreError, ScheduleNotFound
from longshore.core.explain import Facts
from longshore.core.filters import JobFilter, check_filter
from longshore.core.job import Job, JobEvent, JobStats, Lease, LogEntry
from longshore.core.limits import Rate, check_limit, check_rate
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, Duration, Moment, check_datetime, check_duration
from longshore.core.transitions import EventRow
from longshore.core.validation import (
    LARGEST_NOTE,
    check_json,
    check_name,
    check_names,
    check_number,
    check_status,
    check_tags,
    clean_text,
    pack,
)
from longshore.safe_logging import logger

P = ParamSpec("P")
R = TypeVar("R")

_log = logger("longshore.schedules")

_QUEUES_AT_ONCE = 20
"""The queues that one retention transaction visits: some milliseconds if there is nothing to remove."""
_CLEANED_AT_ONCE = 1_000
"""The rows that one clean-up transaction removes, so that other writers do not wait long."""


class TransactionalBackend(RunsOperations, Backend):
    """The contract without storage; a store adds `_write`, `_read`, `close`. See docs/write-a-backend.md."""

    _signal: ChangeSignal
    _any_limited: Callable[[Sequence[str] | None], bool] | None = None
    """On a store with many writers: whether one of these queues (None is all) has limits, so that its claims wait for
    each other. Completions are then settled in a separate transaction, which does not wait for claims."""
    _retention_begins = ""
    """The queue where retention stopped last; the next call starts there."""

    @cached_property
    def _clocks(self) -> schedules.Clocks:
        return schedules.Clocks()

    # -- enqueue

    async def enqueue_job(self, job: Job) -> str:
        return await self._write(enqueue.enqueue_job, job)

    async def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        batch = checks.jobs(jobs)
        if connection is not None:
            return await self._store_within(connection, batch, enqueue.enqueue_jobs)
        return await self._write(enqueue.enqueue_jobs, batch)

    async def enqueue_new_jobs(self, jobs: Sequence[Job]) -> list[str]:
        return await self._write(enqueue.enqueue_new_jobs, checks.jobs(jobs))

    async def add_jobs(self, jobs: Sequence[Job], *, connection: object = None, same_only: bool = False) -> list[Job]:
        batch = checks.jobs(jobs)
        checks.flag("same_only", same_only)
        in_use: frozenset[str] = frozenset()
        while True:
            try:
                if connection is not None:
                    return await self._store_within(connection, batch, enqueue.add_jobs, in_use, same_only)
                return await self._write(enqueue.add_jobs, batch, in_use, same_only)
            except DuplicateJob as error:
                if in_use.issuperset(error.job_ids):  # it was removed and added again meanwhile
                    raise
                in_use |= frozenset(error.job_ids)

    async def _store_within(
        self,
        connection: object,
        jobs: Sequence[Job],  # noqa: ARG002 - for stores that can
        operation: Operation[Transaction, Concatenate[Sequence[Job], P], R],  # noqa: ARG002 - as above
        /,
        *args: P.args,  # noqa: ARG002 - as above
        **kwargs: P.kwargs,  # noqa: ARG002 - as above
    ) -> R:
        """Run an operation that stores jobs inside the caller's transaction, if the store can join it."""
        raise InvalidArgument("connection", f"this backend cannot join a transaction of {type(connection).__name__}")

    async def accept_jobs(self, job_ids: Sequence[str]) -> None:
        await self._write(enqueue.accept_jobs, check_names("job_ids", job_ids))

    # -- claim and renew

    async def dequeue_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        queues: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        lease: Duration | None = 30,
    ) -> list[Job]:
        return await self._dequeue(checks.claim_terms(assignee_id, tags, limit, queues, lease, types))

    async def _dequeue(self, terms: checks.ClaimTerms) -> list[Job]:
        while True:
            claim = await self._write(claiming.dequeue_jobs, terms)
            if claim.jobs or not claim.more:
                return claim.jobs

    async def extend_leases(self, leases: Mapping[str, Lease], duration: Duration) -> dict[str, Lease]:
        return await self._write(claiming.extend_leases, checks.leases(leases), check_duration("duration", duration))

    async def release_lease(
        self, job_id: str, lease: Lease, *, run_at: Moment | None = None, reason: str = ""
    ) -> Freed:
        check_name("job_id", job_id)
        text = clean_text("reason", reason)
        return await self._write(settle.release_lease, job_id, checks.lease(lease), run_at, text)

    async def set_progress(self, job_id: str, value: Any, *, lease: Lease | None = None) -> None:
        check_name("job_id", job_id)
        progress = check_json("progress", value, limit=LARGEST_NOTE).decode()
        await self._write(job_updates.set_progress, job_id, progress, checks.lease(lease))

    async def append_log(self, job_id: str, message: str, level: str = "info", *, lease: Lease | None = None) -> None:
        check_name("job_id", job_id)
        text = clean_text("message", message)
        await self._write(job_updates.append_log, job_id, text, checks.level(level), checks.lease(lease))

    async def save_checkpoint(self, job_id: str, data: Any, *, lease: Lease | None = None) -> None:
        check_name("job_id", job_id)
        await self._write(job_updates.save_checkpoint, job_id, pack("checkpoint", data), checks.lease(lease))

    # -- settle

    async def complete_job(self, job_id: str, result: bytes | None = None, *, lease: Lease | None = None) -> Freed:
        check_name("job_id", job_id)
        return await self._write(settle.complete_job, job_id, checks.result(result), checks.lease(lease))

    async def fail_job(
        self, job_id: str, error: str, *, retry_at: Moment | None = None, lease: Lease | None = None
    ) -> Freed:
        check_name("job_id", job_id)
        text = checks.error_text(error, required=True)
        return await self._write(settle.fail_job, job_id, text, retry_at, checks.lease(lease))

    async def bury_job(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        check_name("job_id", job_id)
        return await self._write(settle.bury_job, job_id, checks.error_text(error), checks.lease(lease))

    async def stop_job(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        check_name("job_id", job_id)
        return await self._write(settle.stop_job, job_id, checks.error_text(error), checks.lease(lease))

    async def stop_job_with_retry(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        check_name("job_id", job_id)
        return await self._write(settle.stop_job_with_retry, job_id, checks.error_text(error), checks.lease(lease))

    async def mark_job_unknown_stopped(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        check_name("job_id", job_id)
        return await self._write(settle.mark_job_unknown_stopped, job_id, checks.error_text(error), checks.lease(lease))

    async def update_job_status(
        self, job_id: str, status: JobStatus, result: bytes | None = None, error: str = ""
    ) -> Freed:
        check_name("job_id", job_id)
        target = check_status("status", status)
        text = checks.error_text(error)
        return await self._write(settle.update_job_status, job_id, target, checks.result(result), text)

    async def settle_jobs(self, outcomes: Sequence[Outcome]) -> SettleReport:
        return await self._write(settle.settle_jobs, checks.outcomes(outcomes))

    async def settle_and_dequeue(
        self,
        outcomes: Sequence[Outcome],
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        queues: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        lease: Duration | None = 30,
    ) -> tuple[SettleReport, list[Job]]:
        batch = checks.outcomes(outcomes)
        terms = checks.claim_terms(assignee_id, tags, limit, queues, lease, types, least=0)
        report, left = SettleReport(), batch
        claimed = terms.queues if terms.limit else ()
        if self._any_limited is not None and settle.any_completed(batch) and self._any_limited(claimed):
            report, left = await self._write(settle.complete_first, batch, terms)
        try:
            rest, claim = await self._write(settle.settle_and_dequeue, left, terms)
            report = settle.joined(report, rest) if report.settled else rest
            if claim.jobs or not claim.more:
                return report, claim.jobs
            return report, await self._dequeue(terms)
        except LongshoreError as error:
            if not report.settled and not report.refused:
                raise
            raise ClaimFailed(report, error) from error

    # -- cancel and recover

    async def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, queue: str | None = None, held: bool = True
    ) -> tuple[list[str], list[str]]:
        selection = checks.selection(tags, job_ids, queue)
        return await self._write(cancel.cancel_jobs, *selection, held=checks.flag("held", held))

    async def acknowledge_cancellation(self, job_id: str, was_executing: bool, *, lease: Lease | None = None) -> None:
        check_name("job_id", job_id)
        executing = checks.flag("was_executing", was_executing)
        await self._write(settle.acknowledge_cancellation, job_id, executing, checks.lease(lease))

    async def mark_worker_unresponsive(self, assignee_id: str) -> None:
        await self._write(maintenance.mark_worker_unresponsive, check_name("assignee_id", assignee_id))

    async def reclaim_expired_leases(self, limit: int = 1000) -> list[Job]:
        most = checks.limit(limit)
        reclaimed: list[Job] = []
        while True:
            jobs, more = await self._write(maintenance.reclaim_expired_leases, most)
            reclaimed += jobs
            if not more or len(reclaimed) >= most:
                return reclaimed

    async def time_out_cancellations(self, timeout: Duration, limit: int = 1000) -> list[Job]:
        micros = check_duration("timeout", timeout, positive=False)
        return await self._write(maintenance.time_out_cancellations, micros, checks.limit(limit))

    async def reset_running_jobs(self, *, queue: str | None = None) -> None:
        await self._write(maintenance.reset_running_jobs, checks.optional_queue(queue))

    # -- read

    async def now(self) -> datetime:
        return await self._read(reads.now)

    async def get_job(self, job_id: str) -> Job:
        return await self._read(reads.get_job, check_name("job_id", job_id))

    async def facts_about(self, job_id: str) -> Facts:
        return await self._read(reads.facts_about, check_name("job_id", job_id))

    async def list_jobs(
        self,
        filter: JobFilter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        due: bool | None = None,
    ) -> Page:
        order = checks.flag("oldest_first", oldest_first)
        only = None if due is None else checks.flag("due", due)
        return await self._read(reads.list_jobs, check_filter(filter), checks.limit(limit), cursor, order, only)

    async def get_job_stats(self, tags: Sequence[str] = (), *, queue: str | None = None) -> JobStats:
        return await self._read(reads.job_stats, check_tags("tags", tags), checks.optional_queue(queue))

    async def count_jobs(self, queue: str | None = None) -> dict[JobStatus, int]:
        return await self._read(reads.count_jobs, checks.optional_queue(queue))

    async def count_delayed(self, queue: str | None = None) -> int:
        return await self._read(reads.count_delayed, checks.optional_queue(queue))

    async def next_due(self, queues: Sequence[str] | None = None, *, after: datetime | None = None) -> datetime | None:
        names = None if queues is None else check_names("queues", queues)
        moment = None if after is None else check_datetime("after", after)
        return await self._read(reads.next_due, names, moment)

    async def read_logs(self, job_id: str, after: int = 0) -> list[LogEntry]:
        return await self._read(reads.read_logs, check_name("job_id", job_id), check_number("after", after))

    async def read_events(
        self, after: str | None = None, limit: int = 1000, *, queue: str | None = None, job_id: str | None = None
    ) -> list[JobEvent]:
        name = None if job_id is None else check_name("job_id", job_id)
        return await self._read(reads.read_events, after, checks.limit(limit), checks.optional_queue(queue), name)

    async def end_of_events(self) -> str:
        return await self._read(reads.end_of_events)

    async def wait_for_change(self, timeout: Duration, after: str | None = None) -> bool:
        micros = check_duration("timeout", timeout, positive=False)
        seen = self._signal.count
        await self._listen()
        if after is not None:
            if await self._read(reads.has_events_after, after):
                return True
            if micros == 0:  # the log decides; a hint may belong to an event before the cursor
                return False
        return await self._signal.wait(seen, micros / SECOND)

    async def _listen(self) -> None:
        """Prepare for a wait: raise if closed, and listen for other processes if the store has any."""

    # -- operate

    async def retry_job(self, job_id: str, *, reset: bool = True, actor: str = "") -> None:
        check_name("job_id", job_id)
        await self._write(admin.retry_job, job_id, checks.flag("reset", reset), checks.actor(actor))

    async def promote_job(self, job_id: str) -> None:
        await self._write(admin.promote_job, check_name("job_id", job_id))

    async def delete_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, queue: str | None = None
    ) -> None:
        await self._write(maintenance.delete_jobs, *checks.selection(tags, job_ids, queue))

    async def pause_queue(self, queue: str) -> None:
        await self._write(admin.set_paused, check_name("queue", queue), True)

    async def resume_queue(self, queue: str) -> None:
        await self._write(admin.set_paused, check_name("queue", queue), False)

    async def set_limits(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        await self._write(
            admin.set_limits,
            check_name("queue", queue),
            running if running is UNCHANGED else check_limit("running", running),
            per_key if per_key is UNCHANGED else check_limit("per_key", per_key),
            rate if rate is UNCHANGED else check_rate("rate", rate),
            rate_per_key if rate_per_key is UNCHANGED else check_rate("rate_per_key", rate_per_key),
        )

    async def list_queues(self) -> list[QueueInfo]:
        return await self._read(reads.list_queues)

    # -- schedules, retention and workers

    async def put_schedule(self, schedule: Schedule, *, keep_pause: bool = False) -> Schedule:
        return await self._write(schedules.put_schedule, schedule, checks.flag("keep_pause", keep_pause))

    async def get_schedules(self) -> list[Schedule]:
        return await self._read(_schedules)

    async def get_schedule(self, schedule_id: str) -> Schedule:
        return await self._read(_schedule, check_name("schedule_id", schedule_id))

    async def pause_schedule(self, schedule_id: str) -> Schedule:
        return await self._write(schedules.pause_schedule, check_name("schedule_id", schedule_id))

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        return await self._write(schedules.resume_schedule, check_name("schedule_id", schedule_id))

    async def run_schedule(self, schedule_id: str) -> Job:
        return await self._write(schedules.run_schedule, check_name("schedule_id", schedule_id))

    async def remove_schedule(self, schedule_id: str) -> bool:
        return await self._write(schedules.remove_schedule, check_name("schedule_id", schedule_id))

    async def next_firing(self) -> datetime | None:
        return await self._read(reads.next_firing)

    async def announce_due_jobs(self, limit: int = 1000) -> list[str]:
        return await self._write(maintenance.announce_due_jobs, checks.limit(limit))

    async def fire_due_schedules(self, limit: int = 100) -> list[Job]:
        fired = await self._write(schedules.fire_due_schedules, checks.limit(limit), self._clocks)
        for schedule in fired.planned_back:
            _log.warning(
                "the clock was set back; schedule %r fires next at %s", schedule.id, schedule.next_run_at or "no time"
            )
        for schedule in fired.stopped:
            _log.error("schedule %r is paused because its jobs cannot be created: %s", schedule.id, schedule.error)
        return fired.jobs

    async def cleanup_expired_jobs(self, ttl: Duration, *, queue: str | None = None) -> int:
        micros, name = check_duration("ttl", ttl), checks.optional_queue(queue)
        removed = 0
        while True:
            batch = await self._write(maintenance.cleanup_expired_jobs, micros, name, _CLEANED_AT_ONCE)
            removed += batch
            if batch < _CLEANED_AT_ONCE:
                return removed

    async def set_retention(
        self,
        queue: str,
        *,
        finished: Duration | Unchanged | None = UNCHANGED,
        dead: Duration | Unchanged | None = UNCHANGED,
        events: Duration | Unchanged | None = UNCHANGED,
    ) -> None:
        await self._write(
            admin.set_retention,
            check_name("queue", queue),
            checks.keep("finished", finished),
            checks.keep("dead", dead),
            checks.keep("events", events),
        )

    async def apply_retention(self, limit: int = 1000) -> int:
        """Visit a few queues in each transaction, from where the last call stopped, so that no writer waits long."""
        most = checks.limit(limit)
        names = await self._read(_known_queues)
        begin = bisect_left(names, self._retention_begins)
        names = names[begin:] + names[:begin]
        removed = 0
        for first in range(0, len(names), _QUEUES_AT_ONCE):
            self._retention_begins = names[first]
            removed += await self._write(
                maintenance.apply_retention, names[first : first + _QUEUES_AT_ONCE], most - removed
            )
            if removed >= most:
                return removed
        return removed + await self._write(maintenance.forget, most - removed)

    async def heartbeat_worker(self, worker: WorkerInfo) -> None:
        await self._write(_put_worker, checks.worker(worker))  # not urgent: it must not delay a lease renewal

    async def list_workers(self) -> list[WorkerInfo]:
        return await self._read(_workers)

    async def record_worker_event(
        self, event: WorkerEvent, worker_id: str, *, queue: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        check_name("worker_id", worker_id)
        name = "" if queue == "" else check_name("queue", queue)
        await self._write(_record_worker_event, checks.worker_event(event), worker_id, name, checks.detail(detail))


_known_queues: Operation[Reader, [], list[str]] = Operation(lambda view: sorted(view.known_queues()))
_schedules: Operation[Reader, [], list[Schedule]] = Operation(lambda view: view.schedules(None))
_workers: Operation[Reader, [], list[WorkerInfo]] = Operation(lambda view: view.workers())
_put_worker: Operation[Transaction, [WorkerInfo], None] = Operation(lambda tx, worker: tx.put_worker(worker))


@operation()
def _schedule(view: Reader, schedule_id: str) -> Schedule:
    for found in view.schedules([schedule_id]):
        return found
    raise ScheduleNotFound(schedule_id)


@operation()
def _record_worker_event(tx: Transaction, event: str, worker_id: str, queue: str, detail: str | None) -> None:
    tx.write_event(EventRow(None, None, 0, queue, None, event, None, None, 0, 0, worker_id, "", tx.now, detail))
