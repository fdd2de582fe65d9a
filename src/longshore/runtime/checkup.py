"""A look at a store, for whoever runs it: the findings of `core/diagnosis.py`, from the facts as they are now."""

from __future__ import annotations

from datetime import datetime

from longshore.backends.contract import TellsItsCondition
from longshore.core.clock import machine_time
from longshore.core.diagnosis import (
    STARVING,
    Finding,
    Silent,
    judge_clock,
    judge_schedules,
    judge_store,
    judge_workers,
)
from longshore.core.explanation import HEARD_WITHIN
from longshore.core.filtering import JobFilter
from longshore.core.lifecycle import ELIGIBLE, HOLDS_CAPACITY
from longshore.runtime.job_queue import Queue
from longshore.runtime.paging import pages
from longshore.runtime.waiting_in_vain import given_back, waiting_for_nobody

_AT_ONCE = 500
_NAMED = 3


async def check_up(queue: Queue) -> list[Finding]:
    """Everything there is to say, the store itself first."""
    findings: list[Finding] = []
    step = newest = None
    if isinstance(queue.backend, TellsItsCondition):
        condition = await queue.backend.condition()
        step, newest = condition.clock_step, condition.newest
        findings += judge_store(condition)
    else:
        findings.append(Finding("store", "ok", "what it stands on cannot be seen from here; ask where it runs"))
    before = machine_time()
    now = await queue.backend.now()
    after = machine_time()
    machine = min(max(now, before), after)  # no skew is seen while the question was under way
    findings.append(judge_clock(machine, now, step, newest))
    findings += await _stuck(queue, now)
    findings += await _starving(queue, now)
    findings += await _workers(queue, now)
    findings += judge_schedules(await queue.get_schedules(), now)
    return findings


async def _stuck(queue: Queue, now: datetime) -> list[Finding]:
    """Jobs whose lease ended long ago, for which somebody should have come."""
    held = JobFilter(statuses=tuple(HOLDS_CAPACITY))
    in_hand, late = 0, []
    async for page in pages(queue.backend, held, at_once=_AT_ONCE, oldest_first=True):
        in_hand += len(page.items)
        late += [
            job.id
            for job in page.items
            if job.lease is not None and job.lease.expires_at is not None and now - job.lease.expires_at > HEARD_WITHIN
        ]
    if not late:
        return [Finding("stuck jobs", "ok", f"{in_hand} jobs in hand, none beyond its lease")]
    found = f"{len(late)} jobs are held beyond their leases: {', '.join(late[:_NAMED])}"
    return [Finding("stuck jobs", "problem", found, "nobody sweeps: start longshore scheduler, or a worker")]


async def _starving(queue: Queue, now: datetime) -> list[Finding]:
    """Of each queue the job that waits longest, if it waits for too long, with the reason; and those in vain."""
    findings = [*await given_back(queue, now), *await waiting_for_nobody(queue, now)]
    for info in await queue.list_queues():
        waiting = JobFilter(statuses=tuple(ELIGIBLE), queues=(info.name,))
        oldest = (await queue.backend.list_jobs(waiting, limit=1, oldest_first=True, due=True)).items
        for job in oldest:
            since = max(filter(None, (job.created_at, job.last_retry_at, _moment(job.run_at))))
            if now - since > STARVING:
                why = await queue.explain(job.id)
                found = f"{job.id} of queue {info.name} waits since {since:%Y-%m-%d %H:%M} UTC"
                findings.append(Finding("starving jobs", "problem", found, " ".join(map(str, why.reasons))))
    return findings or [Finding("starving jobs", "ok", f"no job waits for more than {STARVING.seconds // 60} min")]


def _moment(run_at: object) -> datetime | None:
    return run_at if isinstance(run_at, datetime) else None


async def _workers(queue: Queue, now: datetime) -> list[Finding]:
    alive, silent = 0, []
    for worker in await queue.list_workers():
        if worker.state != "running" or worker.seen_at is None:
            continue
        if now - worker.seen_at <= HEARD_WITHIN:
            alive += 1
        else:
            silent.append(Silent(worker.id, worker.seen_at, worker.running))
    counts = await queue.count_jobs()
    waiting = sum(jobs for status, jobs in counts.items() if status.eligible)
    return list(judge_workers(silent, alive, waiting - await queue.backend.count_delayed(), now))
