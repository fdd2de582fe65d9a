"""Reads of a scoped caller: what is in other queues does not exist for it."""

from __future__ import annotations

import dataclasses
from typing import Any

from longshore.backends.base import Backend
from longshore.backends.remote.records import Stretch
from longshore.core.explain import Dependency, Facts
from longshore.core.filters import JobFilter
from longshore.core.job import JobEvent, JobStats
from longshore.core.status import JobStatus
from longshore.core.validation import check_name, check_names
from longshore.server.auth import Caller
from longshore.server.queue_scoping.call import AT_ONCE, MOST_LOOKS, Bound, of_one_job, of_one_queue
from longshore.server.queue_scoping.writes import claimed_queues


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
