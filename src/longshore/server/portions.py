"""How much one answer holds: pages of large jobs end early, and whatever is large is known before it is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from longshore.backends.base import Page
from longshore.core.job import Job, JobEvent, LogEntry

MOST_BYTES = 8 * 1024 * 1024
"""Of the jobs of one page; a page has one at least, however large."""
LARGE = 1024 * 1024
"""Bytes from which on an answer is written beside the loop: some milliseconds. A claim of 500 small jobs has less."""
_FIRST = 16
"""Jobs that are looked at before it is known how large they are; then twice as many each time."""
_FRAME = 500
"""Bytes of a job without what its owner put into it."""

Look = Callable[[int, str | None], Awaitable[Page]]
"""A page of so many, from a cursor on."""


async def page_within(look: Look, limit: int, cursor: str | None) -> Page:
    """The page of this limit, or as much of it as is not too large; its cursor leads on."""
    items: list[Job] = []
    left, at_once = MOST_BYTES, _FIRST
    while True:
        page = await look(min(at_once, limit - len(items)), cursor)
        fitting, left = _that_fit(page.items, left, not items)
        if fitting < len(page.items):
            if fitting:
                page = await look(fitting, cursor)  # only the store can tell the cursor behind them
                items, cursor = items + page.items, page.next_cursor
            return Page(items, cursor)
        items, cursor = items + page.items, page.next_cursor
        if cursor is None or len(items) >= limit:
            return Page(items, cursor)
        at_once *= 2


def _that_fit(jobs: list[Job], left: int, is_first: bool) -> tuple[int, int]:
    """How many of them fit, and how much is left then."""
    for number, job in enumerate(jobs):
        left -= weight_of(job)
        if left < 0:
            return max(number, int(is_first)), 0
    return len(jobs), left


def weight_of(found: Any) -> int:
    """About how many bytes it takes to tell what a verb gave back."""
    if isinstance(found, Job):
        notes = 0 if found.checkpoint is found.progress is None else length_of([found.checkpoint, found.progress])
        return _FRAME + len(found.payload) + len(found.result or b"") + len(found.error_message) + notes
    if isinstance(found, list | tuple):
        return sum(map(weight_of, found))
    if isinstance(found, Page):
        return weight_of(found.items)
    if isinstance(found, JobEvent):
        return _FRAME + (length_of(found.detail) if found.detail else 0)
    return len(found.message) if isinstance(found, LogEntry) else 0


def length_of(told: Any) -> int:
    """About how many characters a value has as JSON."""
    if isinstance(told, str | bytes):
        return len(told)
    if isinstance(told, dict):
        return sum(map(len, told)) + sum(map(length_of, told.values()))
    return sum(map(length_of, told)) if isinstance(told, list) else 8
