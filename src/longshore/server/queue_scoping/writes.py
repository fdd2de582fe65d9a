"""Writes of a scoped caller: enqueue, work, schedules, cancel and delete within its queues."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from longshore.backends.base import Outcome, SettleReport, WorkerInfo
from longshore.core.errors import (
    DuplicateJob,
    Forbidden,
    InvalidArgument,
    JobNotFound,
    LongshoreError,
    ScheduleNotFound,
)
from longshore.core.explain import HEARD_WITHIN
from longshore.core.filters import JobFilter
from longshore.core.job import Job, Lease
from longshore.core.schedule import Schedule
from longshore.core.validation import check_name, check_names
from longshore.server.queue_scoping.call import Bound, of_one_queue
from longshore.server.queue_scoping.parent_checks import check_kinship, check_schedule_id, with_results_within


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
