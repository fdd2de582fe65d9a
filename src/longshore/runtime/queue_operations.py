"""The operations of a backend as one queue offers them: on its own jobs and schedules.

`offered` makes a method of a queue from an operation of the contract. `_NARROWED` and `_CHECKED` state what a named
queue does with each argument. To offer another operation, add a line to `QueueOperations` and one to `SyncQueue`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from longshore.backends import argument_checks as checks
from longshore.backends.base import UNCHANGED, Backend, Freed, Outcome, Page, QueueInfo, SettleReport, Unchanged
from longshore.core.errors import BackendUnavailable, InvalidArgument, JobNotFound, QueueClosed, ScheduleNotFound
from longshore.core.explain import Explanation, explanation_of, no_job_but_a_schedule
from longshore.core.filters import JobFilter, check_filter
from longshore.core.job import DEFAULT_QUEUE, Job, Lease
from longshore.core.limits import Limits, Rate
from longshore.core.repeat import Repeat, next_times
from longshore.core.schedule import Schedule, preview
from longshore.core.status import FINAL, JobStatus
from longshore.core.times import Duration, to_micros
from longshore.core.validation import check_name, check_names, check_number
from longshore.runtime import job_listing
from longshore.runtime.events import Follower
from longshore.runtime.process_registry import registry_of
from longshore.runtime.streams import ALL_WORKERS, disowns, end_in_log

P = ParamSpec("P")
R = TypeVar("R")

_MOST_PREVIEWED = 1_000


class Scope:
    """The jobs that one queue sees: its own with a name, all without. A job given by id is read first."""

    def __init__(self, backend: Backend, name: str | None) -> None:
        self.backend = backend
        self.name = None if name is None else check_name("name", name)

    def queue(self, given: str | None) -> str | None:
        """Return the queue of a call; by default this one. Only a queue without a name may name another."""
        if given is None:
            return self.name
        if self.name is not None and check_name("queue", given) != self.name:
            raise InvalidArgument("queue", f"is {given!r}, but this is the Queue {self.name!r}; use Queue(backend)")
        return given

    def one_queue(self, given: str | None) -> str:
        """Like `queue`, for an operation on exactly one queue."""
        queue = self.queue(given)
        if queue is None:
            raise InvalidArgument("queue", "must be given, because this Queue has no name")
        return queue

    def queues(self, given: Sequence[str] | None) -> Sequence[str] | None:
        """Return the queues of a call; by default this one."""
        if self.name is None:
            return given
        for queue in () if given is None else check_names("queues", given):
            self.queue(queue)
        return [self.name] if given is None else given

    def filter(self, wanted: JobFilter) -> JobFilter:
        """Return the filter limited to what this queue sees."""
        if self.name is None:
            return wanted
        queues = self.queues(check_filter(wanted).queues or None)
        return dataclasses.replace(wanted, queues=queues or ())

    def arriving(self, job: Job) -> Job:
        """Return a new job with this queue's name if it names no queue."""
        if self.name is None or not isinstance(job, Job):  # the store refuses other types
            return job
        if job.queue is DEFAULT_QUEUE:
            return job.replace(queue=self.name)
        self.queue(job.queue)
        return job

    def arriving_jobs(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Like `arriving`, for a batch."""
        return [self.arriving(job) for job in jobs] if isinstance(jobs, Sequence) else jobs

    def schedule(self, schedule: Schedule) -> Schedule:
        """Return a new schedule, whose job is for this queue."""
        if not isinstance(schedule, Schedule):
            return schedule
        return dataclasses.replace(schedule, job=self.arriving(schedule.job))

    async def check_schedule(self, schedule: Schedule) -> None:
        """Raise if another queue has a schedule with this id."""
        if not isinstance(schedule, Schedule):
            return
        try:
            stored = await self.backend.get_schedule(check_name("schedule.id", schedule.id))
        except ScheduleNotFound:
            return
        if stored.job.queue != self.name:
            raise InvalidArgument("schedule.id", f"{_of_another_queue(stored)}; choose another id")

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """Return the schedule, if this queue sees it."""
        found = await self.backend.get_schedule(schedule_id)
        if self.name is not None and found.job.queue != self.name:
            raise InvalidArgument("schedule_id", f"{_of_another_queue(found)}, not of {self.name!r}")
        return found

    async def has_schedule(self, schedule_id: str) -> bool:
        """Whether this queue sees such a schedule."""
        try:
            found = await self.backend.get_schedule(schedule_id)
        except ScheduleNotFound:
            return False
        return self.name in (None, found.job.queue)

    def seen(self, job: Job) -> Job:
        """Return the job, if this queue sees it."""
        if self.name is not None and job.queue != self.name:
            raise InvalidArgument("job_id", self._elsewhere(job))
        return job

    async def check(self, job_id: str) -> None:
        """Raise unless this queue sees the job."""
        if self.name is not None:
            self.seen(await self.backend.get_job(job_id))

    async def strangers(self, job_ids: Iterable[str]) -> dict[str, InvalidArgument]:
        """Return the jobs of other queues, each with the error that refuses it."""
        if self.name is None:
            return {}
        found = await job_listing.jobs_by_id(self.backend, check_names("job_ids", job_ids))
        return {job.id: InvalidArgument("job_ids", self._elsewhere(job)) for job in found if job.queue != self.name}

    async def check_all(self, job_ids: Iterable[str]) -> None:
        """Raise if one of the jobs is of another queue."""
        for refusal in (await self.strangers(job_ids)).values():
            raise refusal

    def _elsewhere(self, job: Job) -> str:
        name = str(job.queue)
        hint = f"use harbor.queue({name!r}), or Queue(backend) for all queues"
        return f"job {job.id!r} is in the queue {name!r}, not in {self.name!r}; {hint}"


def _of_another_queue(schedule: Schedule) -> str:
    return f"{schedule.id!r} is a schedule of the queue {str(schedule.job.queue)!r}"


async def explain(backend: Backend, job_id: str) -> Explanation:
    """Explain why the job is not running, from one read of the store; raise JobNotFound for an unknown id.

    The error says more if the id is that of a schedule, or of an occurrence that is not due yet.
    """
    try:
        return explanation_of(await backend.facts_about(job_id))
    except JobNotFound as missing:
        for schedule_id in filter(None, (job_id, job_id.rpartition("@")[0])):
            with suppress(ScheduleNotFound):
                schedule = await backend.get_schedule(schedule_id)
                missing.args = (no_job_but_a_schedule(job_id, schedule, await backend.now()),)
                break
        raise


_NARROWED: dict[str, Callable[[Scope, Any], Any]] = {
    "queue": Scope.queue,
    "queues": Scope.queues,
    "job": Scope.arriving,
    "jobs": Scope.arriving_jobs,
    "schedule": Scope.schedule,
}
"""Arguments that a queue with a name limits to itself."""
_CHECKED: dict[str, Callable[[Scope, Any], Awaitable[object]]] = {
    "job_id": Scope.check,
    "job_ids": Scope.check_all,
    "leases": Scope.check_all,
    "schedule_id": Scope.get_schedule,
    "schedule": Scope.check_schedule,
}
"""Arguments that a named queue refuses if they belong to another queue. One with a default only filters."""


def offered(
    operation: Callable[Concatenate[Backend, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[QueueOperations, P], Coroutine[Any, Any, R]]:
    """Return the method of a queue that calls this operation of its backend, limited to what the queue sees."""
    name = operation.__name__
    scoped = [
        (position, each.name, each.default, _NARROWED.get(each.name), _CHECKED.get(each.name))
        for position, each in enumerate(inspect.signature(operation).parameters.values(), -1)
        if each.name in _NARROWED or (each.name in _CHECKED and each.default is each.empty)
    ]

    @wraps(operation, updated=())  # not its __dict__, which marks it as abstract
    async def call(self: QueueOperations, /, *args: Any, **kwargs: Any) -> Any:
        if self._ended is not None:
            raise QueueClosed(self.words_when_closed)
        if self.name is None:
            return await getattr(self.backend, name)(*args, **kwargs)
        positional = list(args)
        for position, argument, default, narrow, check in scoped:
            value = args[position] if position < len(args) else kwargs.get(argument, default)
            if value is inspect.Parameter.empty:  # it is missing, and the backend reports that
                continue
            if narrow is not None:
                value = narrow(self._scope, value)
                if position < len(args):
                    positional[position] = value
                else:
                    kwargs[argument] = value
            if check is not None:
                await check(self._scope, value)
        return await getattr(self.backend, name)(*positional, **kwargs)

    _show_as(name, call)
    return call


def settling(
    operation: Callable[Concatenate[Backend, P], Coroutine[Any, Any, Freed]],
) -> Callable[Concatenate[QueueOperations, P], Coroutine[Any, Any, None]]:
    """Return the method of a queue that settles one job by this operation and frees the slot of its holder."""
    name = operation.__name__

    @wraps(operation, updated=())
    async def call(self: QueueOperations, /, *args: Any, **kwargs: Any) -> None:
        if self._ended is not None:
            raise QueueClosed(self.words_when_closed)
        job_id = args[0] if args else kwargs.get("job_id", "")
        if self.name is not None:
            await self._scope.check(job_id)
        since = self._registry.now()
        await getattr(self.backend, name)(*args, **kwargs)
        self._registry.freed([job_id], since)

    described: Any = call
    described.__signature__ = inspect.signature(operation).replace(return_annotation="None")
    _show_as(name, call)
    return call


def _show_as(name: str, call: Any) -> None:
    """Show the method in tracebacks and profiles by the name of its operation."""
    call.__code__ = call.__code__.replace(co_name=name, co_qualname=f"QueueOperations.{name}")


class QueueOperations:
    """The operations that a Queue shares with its backend, without the counts of freed capacity."""

    words_when_closed = "this queue was closed; create a new one with Queue(connect(url))"
    """The message of every call after the close; a subclass may replace it."""

    def __init__(self, backend: Backend, name: str | None = None) -> None:
        if not isinstance(backend, Backend):
            raise InvalidArgument("backend", f"must be a Backend (see connect), not {type(backend).__name__}")
        self._scope = Scope(backend, name)
        self.backend = backend
        self.name = self._scope.name
        self._ended: Future[None] | None = None
        self._followers: list[Follower] = []
        self._registry = registry_of(backend)
        self._registry.opened(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed; then every call is refused."""
        return self._ended is not None

    def _open(self) -> Backend:
        """Return the backend, or raise QueueClosed if this queue was closed."""
        if self._ended is not None:
            raise QueueClosed(self.words_when_closed)
        return self.backend

    # -- enqueue

    enqueue_job = offered(Backend.enqueue_job)
    enqueue_jobs = offered(Backend.enqueue_jobs)
    accept_jobs = offered(Backend.accept_jobs)

    # -- claim and renew

    dequeue_jobs = offered(Backend.dequeue_jobs)
    extend_leases = offered(Backend.extend_leases)
    set_progress = offered(Backend.set_progress)
    append_log = offered(Backend.append_log)
    save_checkpoint = offered(Backend.save_checkpoint)

    # -- settle

    release_lease = settling(Backend.release_lease)
    complete_job = settling(Backend.complete_job)
    fail_job = settling(Backend.fail_job)
    bury_job = settling(Backend.bury_job)
    stop_job = settling(Backend.stop_job)
    stop_job_with_retry = settling(Backend.stop_job_with_retry)
    mark_job_unknown_stopped = settling(Backend.mark_job_unknown_stopped)

    async def update_job_status(
        self, job_id: str, status: JobStatus, result: bytes | None = None, error: str = ""
    ) -> None:
        """Change the job's status by hand, as the transition table allows. Counters do not change."""
        backend = self._open()
        await self._scope.check(job_id)
        since = self._registry.now()
        await backend.update_job_status(job_id, status, result, error)
        if not JobStatus(status).holds_capacity:
            self._registry.freed([job_id], since)

    async def settle_jobs(self, outcomes: Sequence[Outcome]) -> SettleReport:
        """Settle many jobs in one transaction. A stale or malformed outcome is refused alone."""
        backend, since = self._open(), self._registry.now()
        if self.name is None:
            report = await backend.settle_jobs(outcomes)
        else:
            batch = checks.outcomes(outcomes)
            strangers = await self._scope.strangers([outcome.job_id for outcome in batch])
            report = await backend.settle_jobs([outcome for outcome in batch if outcome.job_id not in strangers])
            report.refused.update(strangers)
        self._registry.freed(report.settled, since)
        return report

    # -- cancel and recover

    async def cancel_jobs(
        self,
        tags: Sequence[str] = (),
        job_ids: Sequence[str] = (),
        *,
        queue: str | None = None,
        where: JobFilter | None = None,
    ) -> tuple[list[str], list[str]]:
        """Cancel jobs that have all `tags`, and jobs by id. Return the cancelled ids, and the unknown or final ones.

        `where` cancels all matching jobs that are not final, some hundreds at a time; it must be the only argument.
        """
        backend = self._open()
        if where is not None:
            wanted = self._scope.filter(job_listing.alone(where, tags, job_ids, queue))
            cancelled, unknown = [], []
            async for ids in job_listing.ids_of(backend, wanted, job_listing.UNFINISHED):
                some, others = await backend.cancel_jobs(job_ids=ids)
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
        """Move a CANCELLING job to STOPPED, or to UNKNOWN_STOPPED if it was not executed; the latter frees no slot."""
        backend = self._open()
        await self._scope.check(job_id)
        since = self._registry.now()
        await backend.acknowledge_cancellation(job_id, was_executing, lease=lease)
        if was_executing:
            self._registry.freed([job_id], since)
        else:
            self._registry.disowned([job_id])

    async def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """Count every job that this worker holds, in any queue, as crashed; jobs being cancelled are ended."""
        backend, since = self._open(), self._registry.now()
        await backend.mark_worker_unresponsive(assignee_id)
        self._registry.freed(lambda hold: hold.holder.assignee_id == assignee_id, since)
        await self._declare_over(assignee_id, "", "unresponsive")

    async def reclaim_expired_leases(self, limit: int = 1000) -> list[Job]:
        """Reclaim jobs of all queues whose lease expired, and return them. Workers and streams do so periodically."""
        backend, since = self._open(), self._registry.now()
        jobs = await backend.reclaim_expired_leases(limit)
        self._registry.freed([job.id for job in jobs], since)
        return jobs

    async def time_out_cancellations(self, timeout: Duration, limit: int = 1000) -> list[Job]:
        """End jobs of all queues whose cancellation was not acknowledged for at least this long, and return them.

        They become UNKNOWN_STOPPED, even with valid leases. A Scheduler with a `cancel_timeout` does this periodically.
        """
        backend, since = self._open(), self._registry.now()
        jobs = await backend.time_out_cancellations(timeout, limit)
        self._registry.freed([job.id for job in jobs], since)
        return jobs

    async def reset_running_jobs(self, *, queue: str | None = None) -> None:
        """Count every running job as crashed. Use it after a restart, when no worker can be alive."""
        backend, since = self._open(), self._registry.now()
        wanted = self._scope.queue(queue)
        await backend.reset_running_jobs(queue=wanted)
        self._registry.freed(lambda hold: wanted in (None, hold.queue), since)
        await self._declare_over(ALL_WORKERS, wanted or "", "reset")

    async def _declare_over(self, worker_id: str, queue: str, declared: str) -> None:
        """Record an event if streams of other processes may hold a slot for a disowned job.

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

    # -- read

    async def get_job(self, job_id: str) -> Job:
        """Return the whole record, or raise JobNotFound."""
        return self._scope.seen(await self._open().get_job(job_id))

    async def explain(self, job_id: str) -> Explanation:
        """Explain why the job is not running: every reason, each with a remedy.

        For the id of a schedule, or of an occurrence that is not due yet, JobNotFound says when it fires.
        """
        backend = self._open()
        explanation = await explain(backend, job_id)
        await self._scope.check(job_id)
        return explanation

    async def list_jobs(self, filter: JobFilter, *, limit: int = 100, cursor: str | None = None) -> Page:
        """List matching jobs, newest first. A cursor stays valid while jobs are added and removed."""
        backend = self._open()
        return await backend.list_jobs(self._scope.filter(filter), limit=limit, cursor=cursor)

    get_job_stats = offered(Backend.get_job_stats)
    count_jobs = offered(Backend.count_jobs)
    read_logs = offered(Backend.read_logs)
    read_events = offered(Backend.read_events)
    wait_for_change = offered(Backend.wait_for_change)

    # -- operate

    retry_job = offered(Backend.retry_job)
    promote_job = offered(Backend.promote_job)

    async def delete_jobs(
        self,
        tags: Sequence[str] = (),
        job_ids: Sequence[str] = (),
        *,
        queue: str | None = None,
        where: JobFilter | None = None,
    ) -> None:
        """Remove final jobs permanently. If any target is not final, none is removed; unknown ids are ignored.

        `where` removes the matching jobs that are final, some hundreds at a time; it must be the only argument.
        """
        backend = self._open()
        if where is not None:
            wanted = self._scope.filter(job_listing.alone(where, tags, job_ids, queue))
            async for ids in job_listing.ids_of(backend, wanted, FINAL):
                await job_listing.delete_final(backend, ids)
            return
        job_listing.refuse_filter(tags)
        await self._scope.check_all(job_ids)
        await backend.delete_jobs(tags, job_ids, queue=self._scope.queue(queue))

    async def pause_queue(self, queue: str | None = None) -> None:
        """Stop claims from this queue until it is resumed. Running jobs continue."""
        await self._open().pause_queue(self._scope.one_queue(queue))

    async def resume_queue(self, queue: str | None = None) -> None:
        """Undo `pause_queue`."""
        await self._open().resume_queue(self._scope.one_queue(queue))

    async def set_limits(
        self,
        queue: str | None = None,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """Limit how many jobs run at once (per queue, per concurrency key) or start per window; None: no limit."""
        backend, name = self._open(), self._scope.one_queue(queue)
        await backend.set_limits(name, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key)

    async def get_limits(self, queue: str | None = None) -> Limits:
        """Return the limits of the queue; None means unlimited."""
        backend, name = self._open(), self._scope.one_queue(queue)
        for info in await backend.list_queues():
            if info.name == name:
                return Limits(info.running, info.per_key, info.rate, info.rate_per_key)
        return Limits()

    async def list_queues(self) -> list[QueueInfo]:
        """List every queue that has jobs or settings, by name; a queue with a name lists itself."""
        found = await self._open().list_queues()
        return [queue for queue in found if self.name in (None, queue.name)]

    # -- schedules, retention and workers

    announce_due_jobs = offered(Backend.announce_due_jobs)
    cleanup_expired_jobs = offered(Backend.cleanup_expired_jobs)
    apply_retention = offered(Backend.apply_retention)
    heartbeat_worker = offered(Backend.heartbeat_worker)
    list_workers = offered(Backend.list_workers)
    put_schedule = offered(Backend.put_schedule)
    pause_schedule = offered(Backend.pause_schedule)
    resume_schedule = offered(Backend.resume_schedule)
    run_schedule = offered(Backend.run_schedule)
    fire_due_schedules = offered(Backend.fire_due_schedules)

    async def set_retention(
        self,
        queue: str | None = None,
        *,
        finished: Duration | Unchanged | None = UNCHANGED,
        dead: Duration | Unchanged | None = UNCHANGED,
        events: Duration | Unchanged | None = UNCHANGED,
    ) -> None:
        """Set how long this queue keeps finished jobs (7 days), dead jobs (30) and events (30); None means forever."""
        backend, name = self._open(), self._scope.one_queue(queue)
        await backend.set_retention(name, finished=finished, dead=dead, events=events)

    async def get_schedules(self) -> list[Schedule]:
        """List the schedules that create jobs in this queue, by id."""
        found = await self._open().get_schedules()
        return [schedule for schedule in found if self.name in (None, schedule.job.queue)]

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """Return the schedule, or raise ScheduleNotFound."""
        self._open()
        return await self._scope.get_schedule(schedule_id)

    async def preview_schedule(self, schedule: str | Repeat, count: int = 10) -> list[datetime]:
        """Return the next planned times of a stored or new schedule: up to 1,000, within its limit."""
        backend = self._open()
        wanted = check_number("count", count, least=1)
        if wanted > _MOST_PREVIEWED:
            raise InvalidArgument("count", f"must be at most {_MOST_PREVIEWED:,}")
        if isinstance(schedule, Repeat):
            most = wanted if schedule.limit is None else min(wanted, schedule.limit)
            return next_times(schedule, most, after=await backend.now())
        return preview(await self._scope.get_schedule(schedule), wanted, to_micros(await backend.now()))

    async def remove_schedule(self, schedule_id: str) -> bool:
        """Remove the schedule; return False if there was none. Its jobs stay."""
        backend = self._open()
        if self.name is not None and not await self._scope.has_schedule(schedule_id):
            return False
        return await backend.remove_schedule(schedule_id)
