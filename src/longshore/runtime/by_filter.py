"""Many jobs called off or removed by what they are rather than by name: page by page, so that nobody waits long."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound
from longshore.core.filters import JobFilter, check_filter
from longshore.core.status import FINAL, JobStatus
from longshore.runtime.paging import pages

_AT_ONCE = 200
_UNFINISHED = frozenset(JobStatus) - FINAL


def alone(where: JobFilter, tags: object, job_ids: object, queue: object) -> JobFilter:
    """The filter, if it means something and nothing else is given beside it."""
    if tags or job_ids or queue is not None:
        raise InvalidArgument("where", "stands alone: put tags, ids and queues into the JobFilter")
    if check_filter(where) == JobFilter():
        raise InvalidArgument("where", "is empty: name something in it, for this would mean every job")
    return where


def refuse_filter(tags: object) -> None:
    """Where tags are listed, a filter is somebody's guess at `where`."""
    if isinstance(tags, JobFilter):
        raise InvalidArgument("tags", "must be a list of names; give a JobFilter as where=JobFilter(…)")


def within(where: JobFilter, statuses: frozenset[JobStatus]) -> JobFilter | None:
    """The filter, for jobs in these statuses only; None if it asks for none of them."""
    wanted = statuses & frozenset(where.statuses or statuses)
    return dataclasses.replace(where, statuses=tuple(sorted(wanted))) if wanted else None


async def cancel_where(backend: Backend, where: JobFilter) -> AsyncIterator[tuple[list[str], list[str]]]:
    """What `cancel_jobs` answers, for each page of those that match and are not over."""
    async for ids in _ids(backend, where, _UNFINISHED):
        yield await backend.cancel_jobs(job_ids=ids)


async def delete_where(backend: Backend, where: JobFilter) -> None:
    """Removes those that match and are over."""
    async for ids in _ids(backend, where, FINAL):
        await delete_final(backend, ids)


async def _ids(backend: Backend, where: JobFilter, statuses: frozenset[JobStatus]) -> AsyncIterator[list[str]]:
    wanted = within(where, statuses)
    if wanted is None:
        return
    async for page in pages(backend, wanted, at_once=_AT_ONCE):
        if page.items:
            yield [job.id for job in page.items]


async def delete_final(backend: Backend, ids: Sequence[str]) -> int:
    """All at once; if one of them came back to life meanwhile, the others one by one. Returns how many went."""
    try:
        await backend.delete_jobs(job_ids=ids)
    except InvalidTransition:
        if len(ids) == 1:
            return 0
        return sum([await delete_final(backend, [job_id]) for job_id in ids])
    return len(ids)


async def each(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> int:
    """Side by side: a store that commits in groups makes few commits of them. Returns how many it could be done to."""

    async def one(job_id: str) -> bool:
        try:
            await act(job_id)
        except (JobNotFound, InvalidTransition):  # somebody else was first
            return False
        return True

    acting = [asyncio.ensure_future(one(job_id)) for job_id in ids]
    if acting:
        await asyncio.wait(acting)  # all of them, so that none is left behind when one fails
    return sum([done.result() for done in acting])
