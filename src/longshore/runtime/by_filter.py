"""Many jobs called off or removed by what they are rather than by name: page by page, so that nobody waits long."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

from longshore.backends.contract import Backend
from longshore.core.errors import InvalidArgument
from longshore.core.filtering import JobFilter, check_filter
from longshore.core.lifecycle import FINAL, JobStatus

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


async def cancel_where(backend: Backend, where: JobFilter) -> AsyncIterator[tuple[list[str], list[str]]]:
    """What `cancel_jobs` answers, for each page of those that match and are not over."""
    async for ids in _pages(backend, where, _UNFINISHED):
        yield await backend.cancel_jobs(job_ids=ids)


async def delete_where(backend: Backend, where: JobFilter) -> None:
    """Removes those that match and are over."""
    async for ids in _pages(backend, where, FINAL):
        await backend.delete_jobs(job_ids=ids)


async def _pages(backend: Backend, where: JobFilter, statuses: frozenset[JobStatus]) -> AsyncIterator[list[str]]:
    wanted = statuses & frozenset(where.statuses or statuses)
    if not wanted:
        return
    narrowed = dataclasses.replace(where, statuses=tuple(sorted(wanted)))
    cursor = None
    while True:
        page = await backend.list_jobs(narrowed, limit=_AT_ONCE, cursor=cursor)
        if page.items:
            yield [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return
