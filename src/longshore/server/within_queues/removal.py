"""Somebody who is bound to some queues calls jobs off or removes them, or says how long they are kept."""

from __future__ import annotations

from typing import Any

from longshore.core.errors import Forbidden, InvalidArgument
from longshore.core.validation import check_name, check_names
from longshore.server.within_queues.call import Bound, of_one_queue


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
