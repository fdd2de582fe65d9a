"""Jobs that match a filter, read page after page: however many there are, few are held at a time."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from longshore.backends.contract import Backend, Page
from longshore.core.filtering import JobFilter


async def pages(
    backend: Backend,
    where: JobFilter,
    *,
    at_once: int,
    most: int = sys.maxsize,
    oldest_first: bool = False,
    due: bool | None = None,
) -> AsyncIterator[Page]:
    """All of them, or `most`: then the last page has a cursor, where there are more."""
    cursor: str | None = None
    while most > 0:
        page = await backend.list_jobs(
            where, limit=min(at_once, most), cursor=cursor, oldest_first=oldest_first, due=due
        )
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        most -= len(page.items)
