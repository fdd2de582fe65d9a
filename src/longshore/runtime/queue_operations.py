"""The operations of a backend as one queue offers them: on its own jobs and schedules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import Any

from longshore.backends import argument_checks
from longshore.backends.base import UNCHANGED, Backend, Outcome, Page, QueueInfo, SettleReport, Unchanged, WorkerInfo
from longshore.core.errors import BackendUnavailable, InvalidArgument, JobNotFound, QueueClosed, ScheduleNotFound
from longshore.core.explain import Explanation, explanation_of, no_job_but_a_schedule
from longshore.core.filters import JobFilter, check_filter
from longshore.core.job import DEFAULT_QUEUE, Job, JobEvent, JobStats, Lease, LogEntry
from longshore.core.limits import Limits, Rate
from longshore.core.repeat import Repeat, next_times
from longshore.core.schedule import Schedule, preview
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment, to_micros
from longshore.core.validation import check_name, check_names, check_number
from longshore.runtime import job_listing
from longshore.runtime.events import Follower
from longshore.runtime.process_registry import registry_of
from longshore.runtime.streams import ALL_WORKERS, disowns, end_in_log

_LOOKED_UP_AT_ONCE = 1_000


class Scope:
    """The view of one queue on a backend. Without a name it costs nothing; with one, a job named by id is looked up."""

    def __init__(self, backend: Backend, name: str | None) -> None:
        self.backend = backend
        self.name = None if name is None else check_name("name", name)

    def queue(self, given: str | None) -> str | None:
        """The queue a verb is about: this one unless another is named, which only a queue without a name may do."""
        if given is None:
            return self.name
        if self.name is not None and check_name("queue", given) != self.name:
            raise InvalidArgument("queue", f"is {given!r}, but this is the queue {self.name!r}; use Queue(backend)")
        return given

    def one_queue(self, given: str | None) -> str:
        """Like `queue`, for a verb that is about exactly one."""
        queue = self.queue(given)
        if queue is None:
            raise InvalidArgument("queue", "must be named: this Queue was made without a name and sees all of them")
        return queue

    def queues(self, given: Sequence[str] | None) -> Sequence[str] | None:
        """The queues a verb is about."""
        if self.name is None:
            return given
        for queue in () if given is None else check_names("queues", given):
            self.queue(queue)
        return [self.name] if given is None else given

    def filter(self, wanted: JobFilter) -> JobFilter:
        """The filter, narrowed to what this queue sees."""
        if self.name is None:
            return wanted
        queues = self.queues(check_filter(wanted).queues or None)
        return dataclasses.replace(wanted, queues=queues or ())

    def arriving(self, job: Job) -> Job:
        """A job on its way in: one that names no queue takes this one's name."""
        if self.name is None or not isinstance(job, Job):  # what is no job at all is refused by the store
            return job
        if job.queue is DEFAULT_QUEUE:
            return job.replace(queue=self.name)
        self.queue(job.queue)
        return job

    def schedule(self, schedule: Schedule) -> Schedule:
        """A schedule on its way in, with the job it makes."""
        if self.name is None or not isinstance(schedule, Schedule):
            return schedule
        return dataclasses.replace(schedule, job=self.arriving(schedule.job))

    async def check_schedule(self, schedule: Schedule) -> None:
        """Raises if its id is that of a schedule of another queue, which is not to be changed from here."""
        if self.name is None or not isinstance(schedule, Schedule):
            return
        try:
            stored = await self.backend.get_schedule(check_name("schedule.id", schedule.id))
        except ScheduleNotFound:
            return
        if stored.job.queue != self.name:
            raise InvalidArgument("schedule.id", f"{_of_another_queue(stored)}; choose another")

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """The schedule, if this queue sees it."""
        found = await self.backend.get_schedule(schedule_id)
        if self.name is not None and found.job.queue != self.name:
            raise InvalidArgument("schedule_id", f"{_of_another_queue(found)}, not of {self.name!r}")
        return found

    async def has_schedule(self, schedule_id: str) -> bool:
        """Whether there is such a schedule, and this queue sees it."""
        try:
            found = await self.backend.get_schedule(schedule_id)
        except ScheduleNotFound:
            return False
        return self.name in (None, found.job.queue)

    def seen(self, job: Job) -> Job:
        """The job itself, if this queue sees it."""
        if self.name is not None and job.queue != self.name:
            raise InvalidArgument("job_id", self._elsewhere(job))
        return job

    async def check(self, job_id: str) -> None:
        """Raises unless the job is one this queue sees."""
        if self.name is not None:
            self.seen(await self.backend.get_job(job_id))

    async def strangers(self, job_ids: Iterable[str]) -> dict[str, InvalidArgument]:
        """Those of the jobs that are of another queue, each with the words to refuse it."""
        if self.name is None:
            return {}
        ids = list(check_names("job_ids", job_ids))
        found: list[Job] = []
        for first in range(0, len(ids), _LOOKED_UP_AT_ONCE):
            wanted = ids[first : first + _LOOKED_UP_AT_ONCE]
            found += (await self.backend.list_jobs(JobFilter(ids=wanted), limit=len(wanted))).items
        return {job.id: InvalidArgument("job_ids", self._elsewhere(job)) for job in found if job.queue != self.name}

    async def check_all(self, job_ids: Iterable[str]) -> None:
        """Raises unless all of the jobs that exist are ones this queue sees."""
        for refusal in (await self.strangers(job_ids)).values():
            raise refusal

    def _elsewhere(self, job: Job) -> str:
        return f"job {job.id!r} is in the queue {str(job.queue)!r}, not in {self.name!r}"


def _of_another_queue(schedule: Schedule) -> str:
    return f"{schedule.id!r} is a schedule of the queue {str(schedule.job.queue)!r}"


async def explain(backend: Backend, job_id: str) -> Explanation:
    """All that is in the way of the job, as one look at the store finds it; JobNotFound if there is no such job.

    That one says more where the id is a schedule's, or that of a run to come.
    """
    try:
        return explanation_of(await backend.facts_about(job_id))
    except JobNotFound as missing:
        told = await _told_of_schedule(backend, job_id)
        if told:
            missing.args = (told,)
        raise


async def _told_of_schedule(backend: Backend, job_id: str) -> str:
    for schedule_id in dict.fromkeys((job_id, job_id.rpartition("@")[0])):
        if schedule_id:
            try:
                schedule = await backend.get_schedule(schedule_id)
            except ScheduleNotFound:
                continue
            return no_job_but_a_schedule(job_id, schedule, await backend.now())
    return ""


class QueueOperations:
    """What a Queue shares with its backend, verb by verb, without the counts of freed capacity."""

    words_when_closed = "this queue was closed; make a new one: Queue(connect(url))"
    """What every verb says then; whoever is closed as something else says so of itself."""

    def __init__(self, backend: Backend, name: str | None = None) -> None:
        if not isinstance(backend, Backend):
            raise InvalidArgument("backend", f"must be what connect(url) returns, not {type(backend).__name__}")
        self._scope = Scope(backend, name)
        self.backend = backend
        self.name = self._scope.name
        self._ended: Future[None] | None = None
        self._followers: list[Follower] = []
        self._registry = registry_of(backend)
        self._registry.opened(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed: every call is refused from then on."""
        return self._ended is not None

    def _refuse_if_closed(self) -> None:
        if self._ended is not None:
            raise QueueClosed(self.words_when_closed)

    async def _open(self) -> Backend:
        """The backend, for a verb that may begin: QueueClosed if this queue was closed."""
        self._refuse_if_closed()
        return self.backend

    async def _open_for(self, job_id: str) -> Backend:
        """The backend, for a verb on one job that this queue sees."""
        backend = await self._open()
        await self._scope.check(job_id)
        return backend

    # -- a job comes in

    async def enqueue_job(self, job: Job) -> str:
        """Stores one new job and returns its id; with an idempotency key in use, the id of the job that has it."""
        return await (await self._open()).enqueue_job(self._scope.arriving(job))

    async def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        """Stores all of them or none, and returns the ids in input order. DuplicateJob names every id in the way."""
        backend = await self._open()
        batch = [self._scope.arriving(job) for job in jobs] if isinstance(jobs, Sequence) else jobs
        return await backend.enqueue_jobs(batch, connection=connection)

    async def accept_jobs(self, job_ids: Sequence[str]) -> None:
        """CREATED jobs become claimable (or wait for their dependencies); all of them or none."""
        backend = await self._open()
        await self._scope.check_all(job_ids)
        await backend.accept_jobs(job_ids)

    # -- a worker takes it and keeps it

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
        """Claims up to `limit` jobs of these types that have all `tags`; None means all types.

        A stream claims by itself, and renews the leases.
        """
        backend = await self._open()
        among = self._scope.queues(queues)
        return await backend.dequeue_jobs(assignee_id, tags, limit, queues=among, lease=lease, types=types)

    async def extend_leases(self, leases: Mapping[str, Lease], duration: Duration) -> dict[str, Lease]:
        """Renews many leases at once, from now. A job absent from the answer is lost; drop it."""
        backend = await self._open()
        await self._scope.check_all(leases)
        return await backend.extend_leases(leases, duration)

    async def release_lease(self, job_id: str, lease: Lease, *, run_at: Moment | None = None, reason: str = "") -> None:
        """Gives a RUNNING job back to the queue with nothing counted."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.release_lease(job_id, lease, run_at=run_at, reason=reason)
        self._registry.freed([job_id], since)

    async def set_progress(self, job_id: str, value: Any, *, lease: Lease | None = None) -> None:
        """Keeps how far the job is: any JSON value."""
        await (await self._open_for(job_id)).set_progress(job_id, value, lease=lease)

    async def append_log(self, job_id: str, message: str, level: str = "info", *, lease: Lease | None = None) -> None:
        """Adds a line to the job's log."""
        await (await self._open_for(job_id)).append_log(job_id, message, level, lease=lease)

    async def save_checkpoint(self, job_id: str, data: Any, *, lease: Lease | None = None) -> None:
        """Keeps what the job needs to go on after a crash: JSON or bytes."""
        await (await self._open_for(job_id)).save_checkpoint(job_id, data, lease=lease)

    # -- it ends

    async def complete_job(self, job_id: str, result: bytes | None = None, *, lease: Lease | None = None) -> None:
        """To COMPLETED, with its result."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.complete_job(job_id, result, lease=lease)
        self._registry.freed([job_id], since)

    async def fail_job(
        self, job_id: str, error: str, *, retry_at: Moment | None = None, lease: Lease | None = None
    ) -> None:
        """To FAILED_RETRY: counted, and eligible again at once or at `retry_at`."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.fail_job(job_id, error, retry_at=retry_at, lease=lease)
        self._registry.freed([job_id], since)

    async def bury_job(self, job_id: str, error: str, *, lease: Lease | None = None) -> None:
        """To DEAD, the dead-letter queue."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.bury_job(job_id, error, lease=lease)
        self._registry.freed([job_id], since)

    async def stop_job(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> None:
        """To STOPPED."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.stop_job(job_id, error, lease=lease)
        self._registry.freed([job_id], since)

    async def stop_job_with_retry(self, job_id: str, error: str, *, lease: Lease | None = None) -> None:
        """CANCELLING to STOPPED for a job that failed while being cancelled; the failure is counted."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.stop_job_with_retry(job_id, error, lease=lease)
        self._registry.freed([job_id], since)

    async def mark_job_unknown_stopped(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> None:
        """To UNKNOWN_STOPPED: over, and nobody knows how far it got."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.mark_job_unknown_stopped(job_id, error, lease=lease)
        self._registry.freed([job_id], since)

    async def update_job_status(
        self, job_id: str, status: JobStatus, result: bytes | None = None, error: str = ""
    ) -> None:
        """A move by hand along the table; touches no counter. The same status again is no change and no error."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.update_job_status(job_id, status, result, error)
        if not JobStatus(status).holds_capacity:
            self._registry.freed([job_id], since)

    async def settle_jobs(self, outcomes: Sequence[Outcome]) -> SettleReport:
        """Many endings in one transaction. An outcome that is stale or malformed is refused alone."""
        backend, since = await self._open(), self._registry.now()
        if self.name is None:
            report = await backend.settle_jobs(outcomes)
        else:
            batch = argument_checks.outcomes(outcomes)
            strangers = await self._scope.strangers([outcome.job_id for outcome in batch])
            report = await backend.settle_jobs([outcome for outcome in batch if outcome.job_id not in strangers])
            report.refused.update(strangers)
        self._registry.freed(report.settled, since)
        return report

    # -- somebody calls it off, or its worker vanishes

    async def cancel_jobs(
        self,
        tags: Sequence[str] = (),
        job_ids: Sequence[str] = (),
        *,
        queue: str | None = None,
        where: JobFilter | None = None,
    ) -> tuple[list[str], list[str]]:
        """Cancels jobs with all `tags`, and jobs by id. Returns the cancelled, and the unknown or already final.

        `where` stands alone: all that match and are not over are cancelled, some hundreds at a time.
        """
        backend = await self._open()
        if where is not None:
            wanted = self._scope.filter(job_listing.alone(where, tags, job_ids, queue))
            cancelled, unknown = [], []
            async for some, others in job_listing.cancel_where(backend, wanted):
                self._registry.cancelled(some)
                cancelled += some
                unknown += others
            return cancelled, unknown
        job_listing.refuse_filter(tags)
        await self._scope.check_all(job_ids)
        cancelled, unknown = await backend.cancel_jobs(tags, job_ids, queue=self._scope.queue(queue))
        self._registry.cancelled(cancelled)
        return cancelled, unknown

    async def acknowledge_cancellation(self, job_id: str, was_executing: bool, *, lease: Lease | None = None) -> None:
        """CANCELLING to STOPPED, or to UNKNOWN_STOPPED if the worker was not executing it, which frees no slot."""
        backend, since = await self._open_for(job_id), self._registry.now()
        await backend.acknowledge_cancellation(job_id, was_executing, lease=lease)
        if was_executing:
            self._registry.freed([job_id], since)
        else:
            self._registry.disowned([job_id])

    async def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """All that this worker holds, in whatever queue, is a crash: back to the queue, or over if being cancelled."""
        backend, since = await self._open(), self._registry.now()
        await backend.mark_worker_unresponsive(assignee_id)
        self._registry.freed_by_worker(assignee_id, since)
        await self._declare_over(assignee_id, "", "unresponsive")

    async def reclaim_expired_leases(self, limit: int = 1000) -> list[Job]:
        """The sweep, over all queues: jobs whose lease ran out crash and are returned. Workers do it by themselves."""
        backend, since = await self._open(), self._registry.now()
        jobs = await backend.reclaim_expired_leases(limit)
        self._registry.freed([job.id for job in jobs], since)
        return jobs

    async def time_out_cancellations(self, timeout: Duration, limit: int = 1000) -> list[Job]:
        """Ends jobs of all queues that are being cancelled for at least this long without an answer, and returns them.

        They become UNKNOWN_STOPPED, even with open leases. A Scheduler with a `cancel_timeout` does this by itself.
        """
        backend, since = await self._open(), self._registry.now()
        jobs = await backend.time_out_cancellations(timeout, limit)
        self._registry.freed([job.id for job in jobs], since)
        return jobs

    async def reset_running_jobs(self, *, queue: str | None = None) -> None:
        """Every job that anybody holds is a crash: for a restart after which no worker can be alive."""
        backend, since = await self._open(), self._registry.now()
        wanted = self._scope.queue(queue)
        await backend.reset_running_jobs(queue=wanted)
        self._registry.freed_in_queue(wanted, since)
        await self._declare_over(ALL_WORKERS, wanted or "", "reset")

    async def _declare_over(self, worker_id: str, queue: str, declared: str) -> None:
        """Records an event if streams of other processes may hold a slot for a disowned job.

        Such a job has no lease, so these streams cannot notice its loss.
        """
        assignee = None if worker_id == ALL_WORKERS else worker_id
        queues = (queue,) if queue else ()
        over = JobFilter(statuses=[JobStatus.UNKNOWN_STOPPED], assignee_id=assignee, queues=queues)
        with suppress(BackendUnavailable):  # the operation itself is done
            for job in (await self.backend.list_jobs(over)).items:
                ended = await end_in_log(self.backend, job.id, job.epoch)
                if ended is not None and disowns(ended):
                    detail = {"error": f"declared over: {declared}", "declared": declared}
                    await self.backend.record_worker_event("worker.error", worker_id, queue=queue, detail=detail)
                    return

    # -- somebody looks

    async def get_job(self, job_id: str) -> Job:
        """The whole record, or JobNotFound."""
        return self._scope.seen(await (await self._open()).get_job(job_id))

    async def explain(self, job_id: str) -> Explanation:
        """Why the job is not running now: who or what is in its way, each reason with its way out.

        Of a schedule, or of a run of it that is not made yet, JobNotFound tells when it fires.
        """
        backend = await self._open()
        explanation = await explain(backend, job_id)
        await self._scope.check(job_id)
        return explanation

    async def list_jobs(self, filter: JobFilter, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Jobs that match, newest first. A cursor stays good whatever comes or goes meanwhile."""
        backend = await self._open()
        return await backend.list_jobs(self._scope.filter(filter), limit=limit, cursor=cursor)

    async def get_job_stats(self, tags: Sequence[str] = (), *, queue: str | None = None) -> JobStats:
        """Counts over jobs that carry all `tags`."""
        return await (await self._open()).get_job_stats(tags, queue=self._scope.queue(queue))

    async def count_jobs(self, queue: str | None = None) -> dict[JobStatus, int]:
        """Exact counts for every status."""
        return await (await self._open()).count_jobs(self._scope.queue(queue))

    async def read_logs(self, job_id: str, after: int = 0) -> list[LogEntry]:
        """The job's log lines after the given number."""
        return await (await self._open_for(job_id)).read_logs(job_id, after)

    async def read_events(
        self, after: str | None = None, limit: int = 1000, *, queue: str | None = None, job_id: str | None = None
    ) -> list[JobEvent]:
        """The log after a cursor (None: from its start); never skips an event that commits late."""
        backend = await self._open()
        return await backend.read_events(after, limit, queue=self._scope.queue(queue), job_id=job_id)

    async def wait_for_change(self, timeout: Duration, after: str | None = None) -> bool:
        """Waits until something changed in the store, or `timeout` passed (False). True may be a false alarm."""
        return await (await self._open()).wait_for_change(timeout, after)

    # -- an operator acts

    async def retry_job(self, job_id: str, *, reset: bool = True, actor: str = "") -> None:
        """DEAD back to the queue, recorded with its actor; counters start anew unless `reset=False`."""
        await (await self._open_for(job_id)).retry_job(job_id, reset=reset, actor=actor)

    async def promote_job(self, job_id: str) -> None:
        """A job that waits for its time may run now."""
        await (await self._open_for(job_id)).promote_job(job_id)

    async def delete_jobs(
        self,
        tags: Sequence[str] = (),
        job_ids: Sequence[str] = (),
        *,
        queue: str | None = None,
        where: JobFilter | None = None,
    ) -> None:
        """Removes final jobs for good; if any target is not final, none is removed. Unknown ids are passed over.

        `where` stands alone: of all that match those that are final are removed, some hundreds at a time.
        """
        backend = await self._open()
        if where is not None:
            await job_listing.delete_where(backend, self._scope.filter(job_listing.alone(where, tags, job_ids, queue)))
            return
        job_listing.refuse_filter(tags)
        await self._scope.check_all(job_ids)
        await backend.delete_jobs(tags, job_ids, queue=self._scope.queue(queue))

    async def pause_queue(self, queue: str | None = None) -> None:
        """Nothing of this queue is claimed until it is resumed; what runs goes on."""
        await (await self._open()).pause_queue(self._scope.one_queue(queue))

    async def resume_queue(self, queue: str | None = None) -> None:
        """Undoes `pause_queue`."""
        await (await self._open()).resume_queue(self._scope.one_queue(queue))

    async def set_limits(
        self,
        queue: str | None = None,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """How many may run at once (in the queue, per concurrency key) and start per window; None is no limit."""
        backend, name = await self._open(), self._scope.one_queue(queue)
        await backend.set_limits(name, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key)

    async def get_limits(self, queue: str | None = None) -> Limits:
        """The limits of the queue as they are now; None is no limit."""
        backend, name = await self._open(), self._scope.one_queue(queue)
        for info in await backend.list_queues():
            if info.name == name:
                return Limits(info.running, info.per_key, info.rate, info.rate_per_key)
        return Limits()

    async def list_queues(self) -> list[QueueInfo]:
        """Every queue that has jobs or settings, by name; a named queue shows itself."""
        found = await (await self._open()).list_queues()
        return [queue for queue in found if self.name in (None, queue.name)]

    # -- time passes

    async def announce_due_jobs(self, limit: int = 1000) -> list[str]:
        """Tells `job.promoted` of delayed jobs of all queues whose time has come; a Scheduler does this by itself."""
        return await (await self._open()).announce_due_jobs(limit)

    async def cleanup_expired_jobs(self, ttl: Duration, *, queue: str | None = None) -> int:
        """Removes COMPLETED jobs that ended at least `ttl` ago; returns how many."""
        return await (await self._open()).cleanup_expired_jobs(ttl, queue=self._scope.queue(queue))

    async def set_retention(
        self,
        queue: str | None = None,
        *,
        finished: Duration | Unchanged | None = UNCHANGED,
        dead: Duration | Unchanged | None = UNCHANGED,
        events: Duration | Unchanged | None = UNCHANGED,
    ) -> None:
        """How long this queue keeps finished jobs (7 days), dead jobs (30) and events (30); None is for ever."""
        backend, name = await self._open(), self._scope.one_queue(queue)
        await backend.set_retention(name, finished=finished, dead=dead, events=events)

    async def apply_retention(self, limit: int = 1000) -> int:
        """Removes up to `limit` of what has outlived its retention, in all queues; a Scheduler does this by itself."""
        return await (await self._open()).apply_retention(limit)

    async def heartbeat_worker(self, worker: WorkerInfo) -> None:
        """Keeps what a worker says of itself, with the time."""
        await (await self._open()).heartbeat_worker(worker)

    async def list_workers(self) -> list[WorkerInfo]:
        """The workers heard of in the last day, of all queues, by id."""
        return await (await self._open()).list_workers()


MOST_PREVIEWED = 1_000


class ScheduleOperations(QueueOperations):
    """What is repeated: stored, looked at, held up, run by hand and taken away. A named queue sees its own."""

    async def put_schedule(self, schedule: Schedule, *, keep_pause: bool = False) -> Schedule:
        """Stores a schedule, or changes the one with its id (its run count and last run stay). Returns it as stored."""
        backend = await self._open()
        arriving = self._scope.schedule(schedule)
        await self._scope.check_schedule(arriving)
        return await backend.put_schedule(arriving, keep_pause=keep_pause)

    async def get_schedules(self) -> list[Schedule]:
        """The schedules that make jobs for this queue, by id."""
        found = await (await self._open()).get_schedules()
        return [schedule for schedule in found if self.name in (None, schedule.job.queue)]

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """The schedule as it stands, or ScheduleNotFound."""
        await self._open()
        return await self._scope.get_schedule(schedule_id)

    async def preview_schedule(self, schedule: str | Repeat, count: int = 10) -> list[datetime]:
        """The next planned times of a schedule, or of one that is not stored yet: up to 1,000, as its limit allows."""
        backend = await self._open()
        wanted = check_number("count", count, least=1)
        if wanted > MOST_PREVIEWED:
            raise InvalidArgument("count", f"must be at most {MOST_PREVIEWED:,}")
        if isinstance(schedule, Repeat):
            most = wanted if schedule.limit is None else min(wanted, schedule.limit)
            return next_times(schedule, most, after=await backend.now())
        return preview(await self._scope.get_schedule(schedule), wanted, to_micros(await backend.now()))

    async def pause_schedule(self, schedule_id: str) -> Schedule:
        """Nothing of it is fired until it is resumed; what it has made stays. Returns it as stored."""
        return await (await self._open_for_schedule(schedule_id)).pause_schedule(schedule_id)

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """Goes on with the next planned time after now; what fell into the pause is not made up for."""
        return await (await self._open_for_schedule(schedule_id)).resume_schedule(schedule_id)

    async def run_schedule(self, schedule_id: str) -> Job:
        """Makes one more of its jobs now, beside its plan, and returns it."""
        return await (await self._open_for_schedule(schedule_id)).run_schedule(schedule_id)

    async def remove_schedule(self, schedule_id: str) -> bool:
        """Removes it; False if there was none. Jobs it made stay."""
        backend = await self._open()
        if self.name is not None and not await self._scope.has_schedule(schedule_id):
            return False
        return await backend.remove_schedule(schedule_id)

    async def fire_due_schedules(self, limit: int = 100) -> list[Job]:
        """Makes the jobs of all queues that are due now; a Scheduler does this by itself."""
        return await (await self._open()).fire_due_schedules(limit)

    async def _open_for_schedule(self, schedule_id: str) -> Backend:
        """The backend, for a verb on one schedule that this queue sees."""
        backend = await self._open()
        if self.name is not None:
            await self._scope.get_schedule(schedule_id)
        return backend
