"""Names under which jobs belong together: a parent, a schedule. Whose they are, nobody else may use them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.validation import check_name
from longshore.server.access import Caller


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
