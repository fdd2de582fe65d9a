"""What a scoped caller may read and write: its own queues, and the jobs, schedules and parents in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from longshore.backends.base import Backend, Outcome, SettleReport, WorkerInfo
from longshore.backends.remote.records import Stretch
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.errors import (
    DuplicateJob,
    Forbidden,
    InvalidArgument,
    JobNotFound,
    LongshoreError,
    ScheduleNotFound,
)
from longshore.core.explain import HEARD_WITHIN, Dependency, Facts
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent, JobStats, Lease
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.validation import check_name, check_names
from longshore.server.auth import Caller
from longshore.server.queue_scoping.call import AT_ONCE, MOST_LOOKS, Bound, of_one_job, of_one_queue


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


async def check_schedule_id(backend: Backend, caller: Caller, schedule_id: str) -> None:
    """Refuses the id of a schedule that the caller may not see, without a word of the queue it is for."""
    if caller.queues is None:
        return
    with suppress(ScheduleNotFound):
        schedule = await backend.get_schedule(check_name("schedule_id", schedule_id))
        if not caller.sees(schedule.job.queue):
            raise InvalidArgument("schedule_id", f"{schedule_id!r} cannot be used here; choose another")


def with_results_within(caller: Caller, jobs: Sequence[Job]) -> list[Job]:
    """The jobs to store: each that waits for others with a note of the queues whose results it may be given.

    A worker reads them with rights of its own, when they are there. An id may be nobody's when it is named, or become
    another's after that, so that what it stands for now says nothing.
    """
    if caller.queues is None:
        return list(jobs)
    note = {RESULTS_FROM: sorted(caller.queues)}
    return [
        job.replace(options={**job.options, **note}) if job.depends_on and isinstance(job.options, Mapping) else job
        for job in jobs
    ]


async def _to_store(call: Bound, jobs: Sequence[Job]) -> list[Job]:
    for job in jobs:
        call.caller.check_queue(check_name("queue", job.queue))
    await check_kinship(call.backend, call.caller, jobs)
    return with_results_within(call.caller, jobs)


async def enqueue_job(call: Bound) -> Any:
    (job,) = await _to_store(call, [call.arguments["job"]])
    return await call.go(job=job)


async def enqueue_jobs(call: Bound) -> Any:
    return await call.go(jobs=await _to_store(call, call.arguments["jobs"]))


async def add_jobs(call: Bound) -> Any:
    """One that is known by its id may be in another queue, and is then none of theirs."""
    jobs = await _to_store(call, call.arguments["jobs"])
    known = [job.id for job in jobs]
    elsewhere = await call.backend.list_jobs(JobFilter(ids=known), limit=max(1, len(known))) if known else None
    hidden = {job.id for job in (elsewhere.items if elsewhere else ()) if not call.caller.sees(job.queue)}
    if hidden:
        raise DuplicateJob([job_id for job_id in dict.fromkeys(known) if job_id in hidden])
    return await call.go(jobs=jobs)


def claimed_queues(call: Bound) -> list[str]:
    wanted = call.arguments.get("queues")
    return (
        call.queues if wanted is None else [call.caller.check_queue(queue) for queue in check_names("queues", wanted)]
    )


async def dequeue(call: Bound) -> Any:
    return await call.go(queues=claimed_queues(call))


async def extend(call: Bound) -> dict[str, Lease]:
    found = await call.own(check_names("leases", call.arguments["leases"]))
    held = {job_id: lease for job_id, lease in call.arguments["leases"].items() if job_id in found}
    answer: dict[str, Lease] = await call.go(leases=held)
    return answer


async def _own_outcomes(call: Bound) -> tuple[list[Outcome], dict[str, LongshoreError]]:
    outcomes: Sequence[Outcome] = call.arguments["outcomes"]
    found = await call.own(check_name("job_id", outcome.job_id) for outcome in outcomes)
    refused: dict[str, LongshoreError] = {
        outcome.job_id: JobNotFound(outcome.job_id) for outcome in outcomes if outcome.job_id not in found
    }
    return [outcome for outcome in outcomes if outcome.job_id in found], refused


async def settle(call: Bound) -> SettleReport:
    outcomes, refused = await _own_outcomes(call)
    report: SettleReport = await call.go(outcomes=outcomes)
    return dataclasses.replace(report, refused={**report.refused, **refused})


async def turn(call: Bound) -> tuple[SettleReport, list[Job]]:
    queues = claimed_queues(call)
    outcomes, refused = await _own_outcomes(call)
    report, jobs = await call.go(outcomes=outcomes, queues=queues)
    return dataclasses.replace(report, refused={**report.refused, **refused}), jobs


async def heartbeat(call: Bound) -> Any:
    worker: WorkerInfo = call.arguments["worker"]
    named = check_names("worker.queues", worker.queues)
    queues = tuple(call.caller.check_queue(queue) for queue in named) or tuple(call.queues)
    await _check_worker_id(call, check_name("worker.id", worker.id))
    return await call.go(worker=dataclasses.replace(worker, queues=queues))


async def _check_worker_id(call: Bound, worker_id: str) -> None:
    """Forbidden if somebody who works for other queues goes by this id, and is alive."""
    known = next((one for one in await call.backend.list_workers() if one.id == worker_id), None)
    if known is None or known.seen_at is None or known.state == "stopped":
        return
    if not call.caller.owns(known.queues) and await call.backend.now() - known.seen_at <= HEARD_WITHIN:
        raise Forbidden(f"a worker that is not {call.caller.name}'s has the id {worker_id!r}; choose another for yours")


async def worker_event(call: Bound) -> Any:
    queue = call.arguments.get("queue", "")
    if queue == "" and len(call.queues) == 1:
        queue = call.queues[0]
    return await call.go(queue=call.caller.check_queue(queue) if queue else "")


async def visible_jobs(call: Bound) -> list[Job]:
    """What is done for all, because it is due; told are only their own."""
    return [job for job in await call.go() if call.caller.sees(job.queue)]


async def put_schedule(call: Bound) -> Any:
    given: Schedule = call.arguments["schedule"]
    call.caller.check_queue(check_name("queue", given.job.queue))
    await check_schedule_id(call.backend, call.caller, given.id)
    await check_kinship(call.backend, call.caller, [given.job])
    return await call.go()


async def of_one_schedule(call: Bound) -> Any:
    schedule_id = check_name("schedule_id", call.arguments["schedule_id"])
    if not call.caller.sees((await call.backend.get_schedule(schedule_id)).job.queue):
        raise ScheduleNotFound(schedule_id)
    return await call.go()


async def remove_schedule(call: Bound) -> Any:
    try:
        return await of_one_schedule(call)
    except ScheduleNotFound:
        return False


async def schedule_list(call: Bound) -> Any:
    return [schedule for schedule in await call.go() if call.caller.sees(schedule.job.queue)]


async def cancel(call: Bound) -> tuple[list[str], list[str]]:
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


async def delete(call: Bound) -> Any:
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


async def retention(call: Bound) -> Any:
    """Of what is theirs, but not of the log: it tells what they did."""
    if "events" in call.arguments:
        name = call.caller.name
        raise Forbidden(f"how long events are kept is for whoever may use all queues, and {name} is not; leave it out")
    return await of_one_queue(call)


async def facts(call: Bound) -> Facts:
    found: Facts = await of_one_job(call)
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


async def job_list(call: Bound) -> Any:
    wanted: JobFilter = call.arguments["filter"]
    queues = call.caller.queues_among(check_names("filter.queues", wanted.queues))
    return await call.go(filter=dataclasses.replace(wanted, queues=queues))


async def next_due(call: Bound) -> Any:
    return await call.go(queues=claimed_queues(call))


async def stats(call: Bound) -> JobStats:
    if call.arguments.get("queue") is not None:
        found: JobStats = await of_one_queue(call)
        return found
    parts: list[JobStats] = [await call.go(queue=queue) for queue in call.queues]
    names = [field.name for field in dataclasses.fields(JobStats) if field.name != "tags"]
    return JobStats(parts[0].tags, **{name: sum(getattr(part, name) for part in parts) for name in names})


async def counts(call: Bound) -> dict[JobStatus, int]:
    if call.arguments.get("queue") is not None:
        found: dict[JobStatus, int] = await of_one_queue(call)
        return found
    parts: list[dict[JobStatus, int]] = [await call.go(queue=queue) for queue in call.queues]
    return {status: sum(part.get(status, 0) for part in parts) for status in JobStatus}


async def delayed(call: Bound) -> int:
    if call.arguments.get("queue") is not None:
        found: int = await of_one_queue(call)
        return found
    return sum([await call.go(queue=queue) for queue in call.queues])


async def events(call: Bound) -> Stretch:
    """As many as asked for; where too many of other queues lie between, what was found and how far it looked."""
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
            return Stretch(mine[:limit])
        after, at_once = events[-1].cursor, AT_ONCE  # much may lie between, however few were asked for
    return Stretch(mine, after)


async def queue_list(call: Bound) -> Any:
    return [info for info in await call.go() if call.caller.sees(info.name)]


async def worker_list(call: Bound) -> Any:
    return [worker for worker in await call.go() if call.caller.owns(worker.queues)]
