"""Schedules of a caller who is bound to some queues."""

from __future__ import annotations

from typing import Any

from longshore.core.errors import ScheduleNotFound
from longshore.core.schedule import Schedule
from longshore.core.validation import check_name
from longshore.server.within_queues.call import Bound
from longshore.server.within_queues.kinship import check_kinship, check_schedule_id


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
