"""Jobs that match a filter, read page after page: however many there are, few are held at a time."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from longshore.backends.base import Backend, Page
from longshore.core.filters import JobFilter
from longshore.core.job import Job

_FIRST = 16
"""Jobs that are read before it is known how large they are; then four times as many each time."""
_MOST_BYTES = 32 * 1024 * 1024
"""Of what the jobs of one page carry, if all are as large as the largest so far."""


async def pages(
    backend: Backend,
    where: JobFilter,
    *,
    at_once: int,
    most: int = sys.maxsize,
    oldest_first: bool = False,
    due: bool | None = None,
) -> AsyncIterator[Page]:
    """All of them, or `most`: then the last page has a cursor, where there are more. Those of large jobs are short."""
    cursor: str | None = None
    following, largest = _FIRST, 1
    while most > 0:
        page = await backend.list_jobs(
            where, limit=min(at_once, following, most), cursor=cursor, oldest_first=oldest_first, due=due
        )
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        most -= len(page.items)
        largest = max([largest, *map(_size, page.items)])
        following = max(1, min(4 * following, _MOST_BYTES // largest))


def _size(job: Job) -> int:
    return len(job.payload) + len(job.result or b"")
