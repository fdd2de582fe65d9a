"""Examines a store: the findings of `core/health.py`, stuck jobs, and the reasons why jobs wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from longshore.backends.base import ReportsHealth, WorkerInfo
from longshore.core.clock import machine_time
from longshore.core.errors import JobNotFound
from longshore.core.explain import HEARTBEAT_WITHIN, NO_TASK_NAMED, Reason, ReasonKind, lacks, state_of_worker
from longshore.core.filters import JobFilter
from longshore.core.health import STARVING, Finding, Silent, judge_clock, judge_schedules, judge_store, judge_workers
from longshore.core.job import Job
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.validation import counted
from longshore.runtime.job_listing import jobs_by_id, pages
from longshore.runtime.queue import Queue

_AT_ONCE = 500
_NAMED = 3
_OLDEST = 10_000
"""The oldest waiting jobs of a queue that are searched for types that no worker claims."""
_MOST_CHECKED = 200
"""The most jobs whose reasons are read, each with its own query."""


async def released_repeatedly(queue: Queue, now: datetime) -> list[Finding]:
    """Find jobs that have been released again and again for a long time, by queue and type.

    A type that no worker knows never runs: a problem. A task may snooze on purpose, so that is only a warning.
    """
    groups: dict[tuple[str, str], list[Job]] = {}
    waiting = JobFilter(statuses=(JobStatus.UNKNOWN_RETRY,))
    async for page in pages(queue.backend, waiting, at_once=_AT_ONCE, oldest_first=True, due=False):
        for job in page.items:
            if now - _claimed_since(job) > STARVING:
                groups.setdefault((str(job.queue), job.type), []).append(job)
    findings = []
    for (name, job_type), jobs in list(groups.items())[:_MOST_CHECKED]:
        for reason in await _reasons(queue, jobs[0], "given_back"):
            unknown = str(reason.details["reason"]).startswith(NO_TASK_NAMED)
            found = (
                f"workers repeatedly release {counted(len(jobs), 'job')} of type {job_type} in queue {name}, the first "
                f"since {_claimed_since(jobs[0]):%Y-%m-%d %H:%M} UTC: {_named([job.id for job in jobs])}"
            )
            findings.append(Finding("starving jobs", "problem" if unknown else "warning", found, str(reason)))
    return findings


def _claimed_since(job: Job) -> datetime:
    """Return when it was claimed first, or first after its last failure."""
    return max(filter(None, (job.created_at, job.started_at, job.last_retry_at)))


async def missing_dependencies(queue: Queue, now: datetime) -> list[Finding]:
    """Find jobs that have waited for long for an id that no job has."""
    waiting, checked = [], 0
    async for job in _with_unknown_dependencies(queue, now):
        reasons = await _reasons(queue, job, "waiting_for_dependencies")
        unknown = [reason for reason in reasons if any(one["status"] is None for one in reason.details["waiting_for"])]
        waiting += [(job.id, str(reason)) for reason in unknown]
        checked += 1
        if len(waiting) > _NAMED or checked >= _MOST_CHECKED:
            break
    if not waiting:
        return []
    found = f"jobs have waited for long for an id that no job has: {_named([job_id for job_id, _ in waiting])}"
    return [Finding("starving jobs", "problem", found, waiting[0][1])]


async def _with_unknown_dependencies(queue: Queue, now: datetime) -> AsyncIterator[Job]:
    """Yield jobs with an unknown id among their dependencies. That job may have completed and been removed."""
    waiting = JobFilter(statuses=(JobStatus.WAITING_CHILDREN,))
    async for page in pages(queue.backend, waiting, at_once=_AT_ONCE, oldest_first=True):
        old = [job for job in page.items if job.created_at is not None and now - job.created_at > STARVING]
        ids = list({job_id: None for job in old for job_id in job.depends_on})
        known = {job.id for job in await jobs_by_id(queue.backend, ids)}
        for job in old:
            if not known.issuperset(job.depends_on):
                yield job


async def _reasons(queue: Queue, job: Job, kind: ReasonKind) -> list[Reason]:
    try:
        return [reason for reason in (await queue.explain(job.id)).reasons if reason.kind == kind]
    except JobNotFound:  # removed meanwhile
        return []


def _named(ids: list[str]) -> str:
    more = " and others" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


async def examine(queue: Queue) -> list[Finding]:
    """Return all findings, those about the store first."""
    findings: list[Finding] = []
    step = newest = None
    if isinstance(queue.backend, ReportsHealth):
        condition = await queue.backend.condition()
        step, newest = condition.clock_step, condition.newest
        findings += judge_store(condition)
    else:
        findings.append(Finding("store", "ok", "this store does not report its health"))
    before = machine_time()
    now = await queue.backend.now()
    after = machine_time()
    machine = min(max(now, before), after)  # ignore the time of the query
    findings.append(judge_clock(machine, now, step, newest))
    stuck, held = await _stuck(queue, now)
    findings += stuck
    findings += await _starving(queue, now)
    workers = await queue.list_workers()
    findings += await _workers(queue, workers, held, now)
    findings += await _unclaimed_types(queue, workers, now)
    findings += judge_schedules(await queue.get_schedules(), now)
    return findings


async def _stuck(queue: Queue, now: datetime) -> tuple[list[Finding], Counter[str | None]]:
    """Find jobs whose lease expired long ago; also return how many jobs each worker holds."""
    running = JobFilter(statuses=tuple(HOLDS_CAPACITY))
    held: Counter[str | None] = Counter()
    late = []
    async for page in pages(queue.backend, running, at_once=_AT_ONCE, oldest_first=True):
        held.update(job.assignee_id for job in page.items)
        leases = {job.id: job.lease.expires_at for job in page.items if job.lease is not None}
        late += [job_id for job_id, ends in leases.items() if ends is not None and now - ends > HEARTBEAT_WITHIN]
    if not late:
        return [Finding("stuck jobs", "ok", f"{counted(held.total(), 'running job')}, no lease expired")], held
    found = f"{counted(len(late), 'running job')} with an expired lease: {', '.join(late[:_NAMED])}"
    return [Finding("stuck jobs", "problem", found, "no process sweeps; start longshore scheduler or a worker")], held


async def _starving(queue: Queue, now: datetime) -> list[Finding]:
    """Find the oldest waiting job of each queue that waits too long, with the reason, and jobs that cannot run."""
    findings = [*await released_repeatedly(queue, now), *await missing_dependencies(queue, now)]
    for info in await queue.list_queues():
        waiting = JobFilter(statuses=tuple(ELIGIBLE), queues=(info.name,))
        oldest = (await queue.backend.list_jobs(waiting, limit=1, oldest_first=True, due=True)).items
        for job in oldest:
            times = (job.created_at, job.last_retry_at, job.run_at)
            since = max(time for time in times if isinstance(time, datetime))
            if now - since > STARVING:
                why = await queue.explain(job.id)
                found = f"{job.id} of queue {info.name} has waited since {since:%Y-%m-%d %H:%M} UTC"
                findings.append(Finding("starving jobs", "problem", found, " ".join(map(str, why.reasons))))
    return findings or [Finding("starving jobs", "ok", f"no job has waited for more than {STARVING.seconds // 60} min")]


async def _workers(
    queue: Queue, workers: Sequence[WorkerInfo], held: Counter[str | None], now: datetime
) -> list[Finding]:
    """Report workers without heartbeats only while they hold a job; then other workers run it."""
    alive, silent = 0, []
    for worker in workers:
        if worker.state != "running" or worker.seen_at is None:
            continue
        if now - worker.seen_at <= HEARTBEAT_WITHIN:
            alive += 1
        elif held[worker.id]:
            silent.append(Silent(worker.id, worker.seen_at, held[worker.id]))
    counts = await queue.count_jobs()
    waiting = sum(jobs for status, jobs in counts.items() if status.eligible)
    return list(judge_workers(silent, alive, waiting - await queue.backend.count_delayed(), now))


async def _unclaimed_types(queue: Queue, workers: Sequence[WorkerInfo], now: datetime) -> list[Finding]:
    """Find types that no live worker claims, among the oldest waiting jobs of each queue."""
    alive = [worker for worker in workers if state_of_worker(worker.state, worker.seen_at, now) == "running"]
    if all(worker.types is None for worker in alive):  # without live workers another check reports it
        return []
    findings = []
    for info in await queue.list_queues():
        waiting = JobFilter(statuses=tuple(ELIGIBLE), queues=(info.name,))
        unclaimed: dict[str, list[str]] = {}
        oldest = pages(queue.backend, waiting, at_once=_AT_ONCE, most=_OLDEST, oldest_first=True, due=True)
        async for page in oldest:
            for job in page.items:
                reasons = [lacks(job, worker.queues, worker.tags, worker.types) for worker in alive]
                if all(reasons) and any(reason.startswith("claims only") for reason in reasons):
                    unclaimed.setdefault(job.type, []).append(job.id)
        for job_type, ids in list(unclaimed.items())[:_NAMED]:
            named = ", ".join(ids[:_NAMED])
            found = f"no live worker claims the type {job_type}; waiting in queue {info.name}: {named}"
            fix = f"start a worker with a harbor that has the task {job_type}: longshore worker --harbor MODULE:NAME"
            findings.append(Finding("types", "problem", found, fix))
    return findings
