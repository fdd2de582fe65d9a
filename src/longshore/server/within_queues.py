"""The verbs of the contract for a caller who is bound to some queues: nothing of others is touched or even seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from longshore.backends.contract import Backend, Outcome, SettleReport, WorkerInfo
from longshore.core.cron import Schedule
from longshore.core.errors import (
    DuplicateJob,
    Forbidden,
    InvalidArgument,
    JobNotFound,
    LongshoreError,
    ScheduleNotFound,
)
from longshore.core.explanation import HEARD_WITHIN
from longshore.core.facts import Dependency, Facts
from longshore.core.filtering import JobFilter
from longshore.core.job import Job, JobEvent, JobStats, Lease
from longshore.core.lifecycle import JobStatus
from longshore.core.names import check_name, check_names
from longshore.server.access import Caller

Arguments = dict[str, Any]
_AT_ONCE = 1_000


async def carry_out(backend: Backend, caller: Caller, verb: str, arguments: Arguments) -> Any:
    """The verb, within the caller's queues."""
    if caller.queues is None:
        return await getattr(backend, verb)(**arguments)
    return await _GUARDS.get(verb, _for_all_queues)(_Bound(backend, caller, verb, arguments))


class _Bound:
    """One call of such a caller."""

    def __init__(self, backend: Backend, caller: Caller, verb: str, arguments: Arguments) -> None:
        self.backend = backend
        self.caller = caller
        self.verb = verb
        self.arguments = arguments

    @property
    def queues(self) -> list[str]:
        """Theirs."""
        return sorted(self.caller.queues or ())

    async def go(self, **changes: Any) -> Any:
        """Carries it out, with these arguments changed."""
        return await getattr(self.backend, self.verb)(**{**self.arguments, **changes})

    async def own(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Of these jobs those that are in their queues."""
        wanted = list(dict.fromkeys(job_ids))
        found: dict[str, Job] = {}
        for first in range(0, len(wanted), _AT_ONCE):
            ids = wanted[first : first + _AT_ONCE]
            page = await self.backend.list_jobs(JobFilter(ids=ids, queues=self.queues), limit=len(ids))
            found |= {job.id: job for job in page.items}
        return found

    async def check_jobs(self, job_ids: Iterable[str]) -> None:
        """JobNotFound for one that is not theirs, as for one that is not there."""
        wanted = list(job_ids)
        found = await self.own(wanted)
        for job_id in wanted:
            if job_id not in found:
                raise JobNotFound(job_id)


async def _for_all_queues(call: _Bound) -> Any:
    call.caller.check_everywhere()
    return await call.go()  # pragma: no cover - whoever comes here is bound


async def _as_it_is(call: _Bound) -> Any:
    return await call.go()


async def _of_one_job(call: _Bound) -> Any:
    await call.check_jobs([check_name("job_id", call.arguments["job_id"])])
    return await call.go()


async def _of_one_queue(call: _Bound) -> Any:
    queue = call.arguments.get("queue")
    if queue is None:
        return await _for_all_queues(call)
    call.caller.check_queue(check_name("queue", queue))
    return await call.go()


async def _retention(call: _Bound) -> Any:
    """Of what is theirs, but not of the log: it tells what they did."""
    if "events" in call.arguments:
        name = call.caller.name
        raise Forbidden(f"how long events are kept is for whoever may use all queues, and {name} is not; leave it out")
    return await _of_one_queue(call)


async def _facts(call: _Bound) -> Facts:
    found: Facts = await _of_one_job(call)
    return await facts_for(call.backend, call.caller, found)


async def facts_for(backend: Backend, caller: Caller, facts: Facts) -> Facts:
    """The facts without what goes on elsewhere: who works for other queues, and how the jobs there stand."""
    if caller.queues is None:
        return facts
    own = [worker for worker in facts.workers if not worker.queues or facts.job.queue in worker.queues]
    told = [dataclasses.replace(one, queues=tuple(name for name in one.queues if caller.sees(name))) for one in own]
    return dataclasses.replace(facts, workers=tuple(told), waits_for=await _dependencies_for(backend, caller, facts))


async def _dependencies_for(backend: Backend, caller: Caller, facts: Facts) -> tuple[Dependency, ...]:
    """Those in other queues as if no job had their ids."""
    named = [one.job_id for one in facts.waits_for]
    if not named:
        return ()
    page = await backend.list_jobs(JobFilter(ids=named, queues=sorted(caller.queues or ())), limit=len(named))
    own = {job.id for job in page.items}
    return tuple(one if one.job_id in own else Dependency(one.job_id, None) for one in facts.waits_for)


# -- jobs come in


async def _check_new(call: _Bound, jobs: Sequence[Job]) -> None:
    for job in jobs:
        call.caller.check_queue(check_name("queue", job.queue))
    await check_kinship(call.backend, call.caller, jobs)


async def check_kinship(backend: Backend, caller: Caller, jobs: Iterable[Job]) -> None:
    """Refuses jobs that name the flow, group or schedule of a queue that the caller may not see as their own.

    What goes by one parent, or one schedule, is theirs who began it.
    """
    if caller.queues is None:
        return
    given = list(jobs)
    for name in {check_name("parent_id", job.parent_id) for job in given if job.parent_id is not None}:
        await _check_kin(backend, caller, "parent_id", name, JobFilter(parent_id=name))
    for name in {check_name("schedule_id", job.schedule_id) for job in given if job.schedule_id is not None}:
        await check_schedule_id(backend, caller, name)
        await _check_kin(backend, caller, "schedule_id", name, JobFilter(schedule_id=name))


async def _check_kin(backend: Backend, caller: Caller, field: str, name: str, kin: JobFilter) -> None:
    first = (await backend.list_jobs(kin, limit=1, oldest_first=True)).items
    if first and not caller.sees(first[0].queue):
        raise InvalidArgument(field, f"{name!r} cannot be used here; choose another")


async def _enqueue_job(call: _Bound) -> Any:
    await _check_new(call, [call.arguments["job"]])
    return await call.go()


async def _enqueue_jobs(call: _Bound) -> Any:
    await _check_new(call, call.arguments["jobs"])
    return await call.go()


async def _add_jobs(call: _Bound) -> Any:
    """One that is known by its id may be in another queue, and is then none of theirs."""
    await _check_new(call, call.arguments["jobs"])
    known = [job.id for job in call.arguments["jobs"]]
    elsewhere = await call.backend.list_jobs(JobFilter(ids=known), limit=max(1, len(known))) if known else None
    taken = [job.id for job in (elsewhere.items if elsewhere else ()) if not call.caller.sees(job.queue)]
    if taken:
        raise DuplicateJob(taken)
    return await call.go()


async def _of_many_jobs(call: _Bound) -> Any:
    await call.check_jobs(check_names("job_ids", call.arguments["job_ids"]))
    return await call.go()


# -- a worker


def _claimed_queues(call: _Bound) -> list[str]:
    wanted = call.arguments.get("queues")
    return (
        call.queues if wanted is None else [call.caller.check_queue(queue) for queue in check_names("queues", wanted)]
    )


async def _dequeue(call: _Bound) -> Any:
    return await call.go(queues=_claimed_queues(call))


async def _extend(call: _Bound) -> dict[str, Lease]:
    found = await call.own(check_names("leases", call.arguments["leases"]))
    held = {job_id: lease for job_id, lease in call.arguments["leases"].items() if job_id in found}
    answer: dict[str, Lease] = await call.go(leases=held)
    return answer


async def _own_outcomes(call: _Bound) -> tuple[list[Outcome], dict[str, LongshoreError]]:
    outcomes: Sequence[Outcome] = call.arguments["outcomes"]
    found = await call.own(check_name("job_id", outcome.job_id) for outcome in outcomes)
    refused: dict[str, LongshoreError] = {
        outcome.job_id: JobNotFound(outcome.job_id) for outcome in outcomes if outcome.job_id not in found
    }
    return [outcome for outcome in outcomes if outcome.job_id in found], refused


async def _settle(call: _Bound) -> SettleReport:
    outcomes, refused = await _own_outcomes(call)
    report: SettleReport = await call.go(outcomes=outcomes)
    return dataclasses.replace(report, refused={**report.refused, **refused})


async def _turn(call: _Bound) -> tuple[SettleReport, list[Job]]:
    queues = _claimed_queues(call)
    outcomes, refused = await _own_outcomes(call)
    report, jobs = await call.go(outcomes=outcomes, queues=queues)
    return dataclasses.replace(report, refused={**report.refused, **refused}), jobs


async def _heartbeat(call: _Bound) -> Any:
    worker: WorkerInfo = call.arguments["worker"]
    named = check_names("worker.queues", worker.queues)
    queues = tuple(call.caller.check_queue(queue) for queue in named) or tuple(call.queues)
    await _check_worker_id(call, check_name("worker.id", worker.id))
    return await call.go(worker=dataclasses.replace(worker, queues=queues))


async def _check_worker_id(call: _Bound, worker_id: str) -> None:
    """Forbidden if somebody who works for other queues goes by this id, and is alive."""
    known = next((one for one in await call.backend.list_workers() if one.id == worker_id), None)
    if known is None or known.seen_at is None or known.state == "stopped":
        return
    if not call.caller.owns(known.queues) and await call.backend.now() - known.seen_at <= HEARD_WITHIN:
        raise Forbidden(f"a worker that is not {call.caller.name}'s has the id {worker_id!r}; choose another for yours")


async def _worker_event(call: _Bound) -> Any:
    queue = call.arguments.get("queue", "")
    if queue == "" and len(call.queues) == 1:
        queue = call.queues[0]
    return await call.go(queue=call.caller.check_queue(queue) if queue else "")


async def _visible_jobs(call: _Bound) -> list[Job]:
    """What is done for all, because it is due; told are only their own."""
    return [job for job in await call.go() if call.caller.sees(job.queue)]


# -- somebody calls it off, or removes it


async def _cancel(call: _Bound) -> tuple[list[str], list[str]]:
    named = check_names("job_ids", call.arguments.get("job_ids", ()))
    found = await call.own(named)
    unknown = [job_id for job_id in named if job_id not in found]
    queue = call.arguments.get("queue")
    queues = call.queues if queue is None else [call.caller.check_queue(check_name("queue", queue))]
    cancelled: list[str] = []
    for one in queues:
        ids = [job_id for job_id in named if job_id in found and found[job_id].queue == one]
        if ids or call.arguments.get("tags"):
            done, others = await call.go(job_ids=ids, queue=one)
            cancelled += done
            unknown += others
    unknown += [job_id for job_id, job in found.items() if job.queue not in queues]
    return cancelled, list(dict.fromkeys(unknown))


async def _delete(call: _Bound) -> Any:
    named = check_names("job_ids", call.arguments.get("job_ids", ()))
    found = await call.own(named)
    queue = call.arguments.get("queue")
    if call.arguments.get("tags"):
        queue = call.queues[0] if queue is None and len(call.queues) == 1 else queue
        if queue is None:
            raise InvalidArgument("queue", f"must be named: one of {', '.join(call.queues)}")
    if queue is not None:
        call.caller.check_queue(check_name("queue", queue))
    return (
        await call.go(job_ids=[job_id for job_id in named if job_id in found], queue=queue)
        if (found or call.arguments.get("tags"))
        else None
    )


# -- somebody looks


async def _list(call: _Bound) -> Any:
    wanted: JobFilter = call.arguments["filter"]
    queues = call.caller.queues_among(check_names("filter.queues", wanted.queues))
    return await call.go(filter=dataclasses.replace(wanted, queues=queues))


async def _next_due(call: _Bound) -> Any:
    return await call.go(queues=_claimed_queues(call))


async def _stats(call: _Bound) -> JobStats:
    if call.arguments.get("queue") is not None:
        found: JobStats = await _of_one_queue(call)
        return found
    parts: list[JobStats] = [await call.go(queue=queue) for queue in call.queues]
    names = [field.name for field in dataclasses.fields(JobStats) if field.name != "tags"]
    return JobStats(parts[0].tags, **{name: sum(getattr(part, name) for part in parts) for name in names})


async def _counts(call: _Bound) -> dict[JobStatus, int]:
    if call.arguments.get("queue") is not None:
        found: dict[JobStatus, int] = await _of_one_queue(call)
        return found
    parts: list[dict[JobStatus, int]] = [await call.go(queue=queue) for queue in call.queues]
    return {status: sum(part.get(status, 0) for part in parts) for status in JobStatus}


async def _delayed(call: _Bound) -> int:
    if call.arguments.get("queue") is not None:
        found: int = await _of_one_queue(call)
        return found
    return sum([await call.go(queue=queue) for queue in call.queues])


async def _events(call: _Bound) -> list[JobEvent]:
    """As many as asked for, however many of other queues lie between."""
    job_id, queue = call.arguments.get("job_id"), call.arguments.get("queue")
    if queue is not None:
        call.caller.check_queue(check_name("queue", queue))
    if job_id is not None:
        await call.check_jobs([check_name("job_id", job_id)])
    if queue is None and len(call.queues) == 1:
        queue = call.queues[0]
    limit, after = call.arguments.get("limit", _AT_ONCE), call.arguments.get("after")
    at_once = limit
    mine: list[JobEvent] = []
    while True:
        events: list[JobEvent] = await call.go(after=after, limit=at_once, queue=queue)
        mine += [event for event in events if call.caller.sees(event.queue)]
        if len(events) < at_once or len(mine) >= limit:
            return mine[:limit]
        after, at_once = events[-1].cursor, _AT_ONCE  # much may lie between, however few were asked for


async def _queue_list(call: _Bound) -> Any:
    return [info for info in await call.go() if call.caller.sees(info.name)]


async def _worker_list(call: _Bound) -> Any:
    return [worker for worker in await call.go() if call.caller.owns(worker.queues)]


# -- schedules


async def _put_schedule(call: _Bound) -> Any:
    given: Schedule = call.arguments["schedule"]
    call.caller.check_queue(check_name("queue", given.job.queue))
    await check_schedule_id(call.backend, call.caller, given.id)
    await check_kinship(call.backend, call.caller, [given.job])
    return await call.go()


async def check_schedule_id(backend: Backend, caller: Caller, schedule_id: str) -> None:
    """Refuses the id of a schedule that the caller may not see, without a word of the queue it is for."""
    if caller.queues is None:
        return
    with suppress(ScheduleNotFound):
        schedule = await backend.get_schedule(check_name("schedule_id", schedule_id))
        if not caller.sees(schedule.job.queue):
            raise InvalidArgument("schedule_id", f"{schedule_id!r} cannot be used here; choose another")


async def _of_one_schedule(call: _Bound) -> Any:
    schedule_id = check_name("schedule_id", call.arguments["schedule_id"])
    if not call.caller.sees((await call.backend.get_schedule(schedule_id)).job.queue):
        raise ScheduleNotFound(schedule_id)
    return await call.go()


async def _remove_schedule(call: _Bound) -> Any:
    try:
        return await _of_one_schedule(call)
    except ScheduleNotFound:
        return False


async def _schedule_list(call: _Bound) -> Any:
    return [schedule for schedule in await call.go() if call.caller.sees(schedule.job.queue)]


_ONE_JOB = (
    *("release_lease", "set_progress", "append_log", "save_checkpoint", "complete_job", "fail_job", "bury_job"),
    *("stop_job", "stop_job_with_retry", "mark_job_unknown_stopped", "update_job_status", "acknowledge_cancellation"),
    *("get_job", "read_logs", "retry_job", "promote_job"),
)
_ONE_QUEUE = (*("reset_running_jobs", "pause_queue", "resume_queue", "set_limits", "cleanup_expired_jobs"),)
_GUARDS: dict[str, Callable[[_Bound], Awaitable[Any]]] = {
    **dict.fromkeys(_ONE_JOB, _of_one_job),
    **dict.fromkeys(_ONE_QUEUE, _of_one_queue),
    **dict.fromkeys(("now", "end_of_events", "wait_for_change"), _as_it_is),
    **dict.fromkeys(("get_schedule", "pause_schedule", "resume_schedule", "run_schedule"), _of_one_schedule),
    "set_retention": _retention,
    "facts_about": _facts,
    "enqueue_job": _enqueue_job,
    "enqueue_jobs": _enqueue_jobs,
    "enqueue_new_jobs": _enqueue_jobs,
    "add_jobs": _add_jobs,
    "accept_jobs": _of_many_jobs,
    "dequeue_jobs": _dequeue,
    "extend_leases": _extend,
    "settle_jobs": _settle,
    "settle_and_dequeue": _turn,
    "heartbeat_worker": _heartbeat,
    "record_worker_event": _worker_event,
    "reclaim_expired_leases": _visible_jobs,
    "cancel_jobs": _cancel,
    "delete_jobs": _delete,
    "list_jobs": _list,
    "next_due": _next_due,
    "get_job_stats": _stats,
    "count_jobs": _counts,
    "count_delayed": _delayed,
    "read_events": _events,
    "list_queues": _queue_list,
    "list_workers": _worker_list,
    "put_schedule": _put_schedule,
    "get_schedules": _schedule_list,
    "remove_schedule": _remove_schedule,
}
"""For every verb that such a caller may use; all others are for callers who may use all queues."""
