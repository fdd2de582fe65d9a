"""Checks of parents, schedules and inputs: a scoped caller may name only those of its own queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from longshore.backends.base import Backend
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.validation import check_name
from longshore.server.auth import Caller


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
