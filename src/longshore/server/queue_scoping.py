"""The operations of the contract for a caller whose token is limited to some queues.

`RULES` has a rule for each operation. An operation without a special rule is checked by its arguments: a `job_id`, a
`schedule_id` or a `queue` must belong to the caller. All other operations need a token for all queues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from longshore.backends.base import Backend, Outcome, SettleReport, WorkerInfo
from longshore.backends.remote.backend import is_as_sent
from longshore.backends.remote.protocol import OPERATIONS, RemoteOperation
from longshore.backends.remote.records.store import EventPage
from longshore.core import errors
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.explain import HEARTBEAT_WITHIN, Dependency, Facts
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent, JobStats, Lease
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.validation import check_name, check_names
from longshore.server.auth import Caller
from longshore.server.platform import Platform

Arguments = dict[str, Any]
AT_ONCE = 1_000
"""Jobs or events read from the store at once."""
MOST_LOOKS = 20
"""Reads of the event log for one request at most: the log may be long."""


class ScopedCall:
    """One call of an operation by a caller whose token is limited to some queues."""

    def __init__(self, here: Platform, caller: Caller, name: str, arguments: Arguments) -> None:
        self.backend = here.backend
        self.caller = caller
        self.name = name
        self.arguments = arguments
        self._job_sizes = here.job_sizes

    @property
    def queues(self) -> list[str]:
        """The queues of the caller, sorted."""
        return sorted(self.caller.queues or ())

    async def go(self, **changes: Any) -> Any:
        """Call the operation, with these arguments changed."""
        return await getattr(self.backend, self.name)(**{**self.arguments, **changes})

    async def own(self, job_ids: Iterable[str]) -> dict[str, str]:
        """Return those of the jobs that are in the caller's queues, each with its queue."""
        wanted = list(dict.fromkeys(job_ids))
        found: dict[str, str] = {}
        for first in range(0, len(wanted), AT_ONCE):
            theirs = JobFilter(ids=wanted[first : first + AT_ONCE], queues=self.queues)
            look = partial(self.backend.list_jobs, theirs)
            pairs, _ = await self._job_sizes.map_page(
                look, len(theirs.ids), self.queues, lambda job: (job.id, str(job.queue))
            )
            found |= pairs
        return found

    async def check_jobs(self, job_ids: Iterable[str]) -> None:
        """Raise JobNotFound for a job of another queue or an unknown id."""
        wanted = list(job_ids)
        found = await self.own(wanted)
        for job_id in wanted:
            if job_id not in found:
                raise errors.JobNotFound(job_id)


async def for_all_queues(call: ScopedCall) -> Any:
    call.caller.check_everywhere()
    return await call.go()  # pragma: no cover - callers with a rule are limited to some queues


async def of_one_job(call: ScopedCall) -> Any:
    await call.check_jobs([check_name("job_id", call.arguments["job_id"])])
    return await call.go()


async def of_one_queue(call: ScopedCall) -> Any:
    queue = call.arguments.get("queue")
    if queue is None:
        return await for_all_queues(call)
    call.caller.check_queue(check_name("queue", queue))
    return await call.go()


async def of_many_jobs(call: ScopedCall) -> Any:
    await call.check_jobs(check_names("job_ids", call.arguments["job_ids"]))
    return await call.go()


async def check_parents(backend: Backend, caller: Caller, jobs: Iterable[Job]) -> None:
    """Refuse jobs with a `parent_id` or `schedule_id` that belongs to a queue the caller may not see.

    An id belongs to the queue of the first job that used it.
    """
    if caller.queues is None:
        return
    given = list(jobs)
    for name in {check_name("parent_id", job.parent_id) for job in given if job.parent_id is not None}:
        await _check_parent(backend, caller, "parent_id", name, JobFilter(parent_id=name))
    for name in {check_name("schedule_id", job.schedule_id) for job in given if job.schedule_id is not None}:
        await check_schedule_id(backend, caller, name)
        await _check_parent(backend, caller, "schedule_id", name, JobFilter(schedule_id=name))


async def _check_parent(backend: Backend, caller: Caller, field: str, name: str, kin: JobFilter) -> None:
    first = (await backend.list_jobs(kin, limit=1, oldest_first=True)).items
    if first and not caller.sees(first[0].queue):
        raise errors.InvalidArgument(field, f"{name!r} is not available; choose another")


async def check_schedule_id(backend: Backend, caller: Caller, schedule_id: str) -> None:
    """Refuse the id of a schedule that the caller may not see, without naming its queue."""
    if caller.queues is None:
        return
    with suppress(errors.ScheduleNotFound):
        schedule = await backend.get_schedule(check_name("schedule_id", schedule_id))
        if not caller.sees(schedule.job.queue):
            raise errors.InvalidArgument("schedule_id", f"{schedule_id!r} is not available; choose another")


def note_result_queues(caller: Caller, jobs: Sequence[Job]) -> list[Job]:
    """Record on each job with dependencies the queues whose results it may receive.

    A worker reads the results later, with its own rights. The check cannot happen here, because the id of a dependency
    may be unused now, or belong to another job later.
    """
    if caller.queues is None:
        return list(jobs)
    note = {RESULTS_FROM: sorted(caller.queues)}
    return [
        job.replace(options={**job.options, **note}) if job.depends_on and isinstance(job.options, Mapping) else job
        for job in jobs
    ]


async def _to_store(call: ScopedCall, jobs: Sequence[Job]) -> list[Job]:
    for job in jobs:
        call.caller.check_queue(check_name("queue", job.queue))
    await check_parents(call.backend, call.caller, jobs)
    return note_result_queues(call.caller, jobs)


async def enqueue_job(call: ScopedCall) -> Any:
    (job,) = await _to_store(call, [call.arguments["job"]])
    return await call.go(job=job)


async def enqueue_jobs(call: ScopedCall) -> Any:
    return await call.go(jobs=await _to_store(call, call.arguments["jobs"]))


async def add_jobs(call: ScopedCall) -> Any:
    """Refuse a job whose id is in use in a queue that the caller may not see."""
    jobs = await _to_store(call, call.arguments["jobs"])
    known = [job.id for job in jobs]
    elsewhere = await call.backend.list_jobs(JobFilter(ids=known), limit=max(1, len(known))) if known else None
    hidden = {job.id for job in (elsewhere.items if elsewhere else ()) if not call.caller.sees(job.queue)}
    if hidden:
        raise errors.DuplicateJob([job_id for job_id in dict.fromkeys(known) if job_id in hidden])
    return await call.go(jobs=jobs)


def claimed_queues(call: ScopedCall) -> list[str]:
    wanted = call.arguments.get("queues")
    return (
        call.queues if wanted is None else [call.caller.check_queue(queue) for queue in check_names("queues", wanted)]
    )


async def dequeue(call: ScopedCall) -> Any:
    return await call.go(queues=claimed_queues(call))


async def extend(call: ScopedCall) -> dict[str, Lease]:
    found = await call.own(check_names("leases", call.arguments["leases"]))
    held = {job_id: lease for job_id, lease in call.arguments["leases"].items() if job_id in found}
    answer: dict[str, Lease] = await call.go(leases=held)
    return answer


async def _own_outcomes(call: ScopedCall) -> tuple[list[Outcome], dict[str, errors.LongshoreError]]:
    outcomes: Sequence[Outcome] = call.arguments["outcomes"]
    found = await call.own(check_name("job_id", outcome.job_id) for outcome in outcomes)
    refused: dict[str, errors.LongshoreError] = {
        outcome.job_id: errors.JobNotFound(outcome.job_id) for outcome in outcomes if outcome.job_id not in found
    }
    return [outcome for outcome in outcomes if outcome.job_id in found], refused


async def settle(call: ScopedCall) -> SettleReport:
    outcomes, refused = await _own_outcomes(call)
    report: SettleReport = await call.go(outcomes=outcomes)
    return dataclasses.replace(report, refused={**report.refused, **refused})


async def settle_and_dequeue(call: ScopedCall) -> tuple[SettleReport, list[Job]]:
    queues = claimed_queues(call)
    outcomes, refused = await _own_outcomes(call)
    report, jobs = await call.go(outcomes=outcomes, queues=queues)
    return dataclasses.replace(report, refused={**report.refused, **refused}), jobs


async def heartbeat(call: ScopedCall) -> Any:
    worker: WorkerInfo = call.arguments["worker"]
    named = check_names("worker.queues", worker.queues)
    queues = tuple(call.caller.check_queue(queue) for queue in named) or tuple(call.queues)
    await _check_worker_id(call, check_name("worker.id", worker.id))
    return await call.go(worker=dataclasses.replace(worker, queues=queues))


async def _check_worker_id(call: ScopedCall, worker_id: str) -> None:
    """Raise Forbidden if a live worker of other queues has this id."""
    known = next((one for one in await call.backend.list_workers() if one.id == worker_id), None)
    if known is None or known.seen_at is None or known.state == "stopped":
        return
    if not call.caller.owns(known.queues) and await call.backend.now() - known.seen_at <= HEARTBEAT_WITHIN:
        raise errors.Forbidden(f"the worker id {worker_id!r} is in use by another caller; choose another id")


async def worker_event(call: ScopedCall) -> Any:
    queue = call.arguments.get("queue", "")
    if queue == "" and len(call.queues) == 1:
        queue = call.queues[0]
    return await call.go(queue=call.caller.check_queue(queue) if queue else "")


async def put_schedule(call: ScopedCall) -> Any:
    given: Schedule = call.arguments["schedule"]
    call.caller.check_queue(check_name("queue", given.job.queue))
    await check_schedule_id(call.backend, call.caller, given.id)
    await check_parents(call.backend, call.caller, [given.job])
    return await call.go()


async def of_one_schedule(call: ScopedCall) -> Any:
    schedule_id = check_name("schedule_id", call.arguments["schedule_id"])
    if not call.caller.sees((await call.backend.get_schedule(schedule_id)).job.queue):
        raise errors.ScheduleNotFound(schedule_id)
    return await call.go()


async def remove_schedule(call: ScopedCall) -> Any:
    try:
        return await of_one_schedule(call)
    except errors.ScheduleNotFound:
        return False


async def cancel(call: ScopedCall) -> tuple[list[str], list[str]]:
    named = check_names("job_ids", call.arguments.get("job_ids", ()))
    found = await call.own(named)
    unknown = [job_id for job_id in named if job_id not in found]
    queue = call.arguments.get("queue")
    queues = call.queues if queue is None else [call.caller.check_queue(check_name("queue", queue))]
    cancelled: list[str] = []
    for one in queues:
        ids = [job_id for job_id in named if job_id in found and found[job_id] == one]
        if ids or call.arguments.get("tags"):
            done, others = await call.go(job_ids=ids, queue=one)
            cancelled += done
            unknown += others
    unknown += [job_id for job_id, home in found.items() if home not in queues]
    return cancelled, list(dict.fromkeys(unknown))


async def delete(call: ScopedCall) -> Any:
    named = check_names("job_ids", call.arguments.get("job_ids", ()))
    found = await call.own(named)
    queue = call.arguments.get("queue")
    if call.arguments.get("tags"):
        queue = call.queues[0] if queue is None and len(call.queues) == 1 else queue
        if queue is None:
            raise errors.InvalidArgument("queue", f"is required; use one of {', '.join(call.queues)}")
    if queue is not None:
        call.caller.check_queue(check_name("queue", queue))
    return (
        await call.go(job_ids=[job_id for job_id in named if job_id in found], queue=queue)
        if (found or call.arguments.get("tags"))
        else None
    )


async def retention(call: ScopedCall) -> Any:
    """Set the retention of jobs, but not of events, which record what the caller did."""
    if "events" in call.arguments:
        raise errors.Forbidden("setting the retention of events needs a token for all queues; leave out `events`")
    return await of_one_queue(call)


async def facts(call: ScopedCall) -> Facts:
    found: Facts = await of_one_job(call)
    return await facts_for(call.backend, call.caller, found)


async def facts_for(backend: Backend, caller: Caller, facts: Facts) -> Facts:
    """Remove the workers and jobs of other queues from the facts."""
    if caller.queues is None:
        return facts
    own = [worker for worker in facts.workers if not worker.queues or facts.job.queue in worker.queues]
    seen = [dataclasses.replace(one, queues=tuple(name for name in one.queues if caller.sees(name))) for one in own]
    return dataclasses.replace(facts, workers=tuple(seen), waits_for=await _dependencies_for(backend, caller, facts))


async def _dependencies_for(backend: Backend, caller: Caller, facts: Facts) -> tuple[Dependency, ...]:
    """The dependencies; those in other queues appear as unknown ids."""
    named = [one.job_id for one in facts.waits_for]
    if not named:
        return ()
    page = await backend.list_jobs(JobFilter(ids=named, queues=sorted(caller.queues or ())), limit=len(named))
    own = {job.id for job in page.items}
    return tuple(one if one.job_id in own else Dependency(one.job_id, None) for one in facts.waits_for)


async def job_list(call: ScopedCall) -> Any:
    wanted: JobFilter = call.arguments["filter"]
    queues = call.caller.queues_among(check_names("filter.queues", wanted.queues))
    return await call.go(filter=dataclasses.replace(wanted, queues=queues))


async def _of_each_queue(call: ScopedCall) -> list[Any]:
    """Return the results for the named queue, or for each of the caller's queues."""
    if call.arguments.get("queue") is not None:
        return [await of_one_queue(call)]
    return [await call.go(queue=queue) for queue in call.queues]


async def stats(call: ScopedCall) -> JobStats:
    parts = await _of_each_queue(call)
    names = [field.name for field in dataclasses.fields(JobStats) if field.name != "tags"]
    return JobStats(parts[0].tags, **{name: sum(getattr(part, name) for part in parts) for name in names})


async def counts(call: ScopedCall) -> dict[JobStatus, int]:
    parts = await _of_each_queue(call)
    return {status: sum(part.get(status, 0) for part in parts) for status in JobStatus}


async def delayed(call: ScopedCall) -> int:
    return sum(await _of_each_queue(call))


async def events(call: ScopedCall) -> EventPage:
    """Return up to `limit` events; after many events of other queues, fewer and the cursor it reached."""
    job_id, queue = call.arguments.get("job_id"), call.arguments.get("queue")
    if queue is not None:
        call.caller.check_queue(check_name("queue", queue))
    if job_id is not None:
        await call.check_jobs([check_name("job_id", job_id)])
    if queue is None and len(call.queues) == 1:
        queue = call.queues[0]
    limit, after = call.arguments.get("limit", AT_ONCE), call.arguments.get("after")
    at_once = limit
    mine: list[JobEvent] = []
    for _ in range(MOST_LOOKS):
        events: list[JobEvent] = await call.go(after=after, limit=at_once, queue=queue)
        mine += [event for event in events if call.caller.sees(event.queue)]
        if len(events) < at_once or len(mine) >= limit:
            return EventPage(mine[:limit])
        after, at_once = events[-1].cursor, AT_ONCE  # many events of other queues may follow
    return EventPage(mine, after)


Rule = Callable[[ScopedCall], Awaitable[Any]]


def visible(is_seen: Callable[[Caller, Any], bool]) -> Rule:
    """A rule that calls the operation for all queues and filters the result."""

    async def filtered(call: ScopedCall) -> list[Any]:
        return [one for one in await call.go() if is_seen(call.caller, one)]

    return filtered


_SPECIAL: dict[str, Rule] = {
    **dict.fromkeys(("now", "end_of_events", "wait_for_change"), ScopedCall.go),
    "enqueue_job": enqueue_job,
    "enqueue_jobs": enqueue_jobs,
    "enqueue_new_jobs": enqueue_jobs,
    "add_jobs": add_jobs,
    "accept_jobs": of_many_jobs,
    "dequeue_jobs": dequeue,
    "extend_leases": extend,
    "settle_jobs": settle,
    "settle_and_dequeue": settle_and_dequeue,
    "heartbeat_worker": heartbeat,
    "record_worker_event": worker_event,
    "reclaim_expired_leases": visible(lambda caller, job: caller.sees(job.queue)),
    "cancel_jobs": cancel,
    "delete_jobs": delete,
    "set_retention": retention,
    "facts_about": facts,
    "list_jobs": job_list,
    "next_due": dequeue,
    "get_job_stats": stats,
    "count_jobs": counts,
    "count_delayed": delayed,
    "read_events": events,
    "list_queues": visible(lambda caller, queue: caller.sees(queue.name)),
    "list_workers": visible(lambda caller, worker: caller.owns(worker.queues)),
    "put_schedule": put_schedule,
    "get_schedules": visible(lambda caller, schedule: caller.sees(schedule.job.queue)),
    "remove_schedule": remove_schedule,
}


def _rule_for(operation: RemoteOperation) -> Rule:
    if operation.name in _SPECIAL:
        return _SPECIAL[operation.name]
    if "job_id" in operation.needed:
        return of_one_job
    if "schedule_id" in operation.needed:
        return of_one_schedule
    return of_one_queue if "queue" in operation.takes else for_all_queues


RULES = {operation.name: _rule_for(operation) for operation in OPERATIONS.values()}


async def carry_out(here: Platform, caller: Caller, name: str, arguments: Arguments) -> Any:
    """Call the operation within the caller's queues. Without the scope read, existing jobs are redacted."""
    if caller.queues is None:
        found = await getattr(here.backend, name)(**arguments)
    else:
        found = await RULES[name](ScopedCall(here, caller, name, arguments))
    if name == "add_jobs" and not caller.reads:  # new jobs in full, existing ones redacted
        pairs = zip(arguments["jobs"], found, strict=True)
        return [job if _has_only_what_was_sent(sent, job) else redact(caller, job) for sent, job in pairs]
    return found


def redact(caller: Caller, job: Job) -> Job:
    """Return the job; a caller without the scope read gets its identifying fields only."""
    if caller.reads:
        return job
    kept = ("id", "uid", "queue", "type", "status", "idempotency_key")
    return Job(**{name: getattr(job, name) for name in kept})


def _has_only_what_was_sent(sent: Job, job: Job) -> bool:
    left_by_an_attempt = (job.result, job.checkpoint, job.progress)
    return sent.id == job.id and job.epoch == 0 and left_by_an_attempt == (None, None, None) and is_as_sent(sent, job)
