"""Limits on the size of one response: pages of large jobs end early, and large work runs on threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from longshore.backends.base import Page
from longshore.core.job import Job, JobEvent, LogEntry
from longshore.core.validation import LARGEST_PAYLOAD
from longshore.server.rate_limit import LRU

P = ParamSpec("P")
R = TypeVar("R")

AT_ONCE = 2
"""Threads for large work. Each may need much memory; with two, one large request does not block the next."""
_threads = ThreadPoolExecutor(AT_ONCE, "longshore-large")


async def run_in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run the work on a free thread."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args, **kwargs))


MOST_BYTES = 8 * 1024 * 1024
"""The most bytes of the jobs on one page; a page has at least one job."""
LARGE = 1024 * 1024
"""Bytes from which a response is serialized on a thread, which takes some milliseconds. 500 small jobs have less."""
_FIRST = 16
"""Jobs in the first read, before their size is known; each further read doubles the number."""
_FRAME = 500
"""Bytes of a job without payload, result, error, checkpoint and progress."""


class Look(Protocol):
    """Reads a page of jobs, as `list_jobs` does for one filter."""

    def __call__(self, *, limit: int, cursor: str | None) -> Awaitable[Page]: ...


async def page_within(look: Look, limit: int, cursor: str | None) -> Page:
    """Return the page, cut where it gets too large; its cursor continues there."""
    items: list[Job] = []
    left, at_once = MOST_BYTES, _FIRST
    while True:
        page = await look(limit=min(at_once, limit - len(items)), cursor=cursor)
        fitting, left = _count_fitting(page.items, left, not items)
        if fitting < len(page.items):
            if fitting:
                page = await look(limit=fitting, cursor=cursor)  # only the store knows the cursor after them
                items, cursor = items + page.items, page.next_cursor
            return Page(items, cursor)
        items, cursor = items + page.items, page.next_cursor
        if cursor is None or len(items) >= limit:
            return Page(items, cursor)
        at_once *= 2


def _count_fitting(jobs: list[Job], left: int, is_first: bool) -> tuple[int, int]:
    """Return how many of the jobs fit, and how many bytes are left."""
    for number, job in enumerate(jobs):
        left -= weight_of(job)
        if left < 0:
            return max(number, int(is_first)), 0
    return len(jobs), left


def weight_of(found: Any) -> int:
    """The approximate size in bytes of an operation's result as JSON."""
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


def length_of(value: Any) -> int:
    """The approximate number of characters of a value as JSON."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(len, value)) + sum(map(length_of, value.values()))
    return sum(map(length_of, value)) if isinstance(value, list) else 8


T = TypeVar("T")

WORTH_NOTING = 512 * 1024
"""Bytes from which a new job counts as heavy."""
MOST_READ = 32 * 1024 * 1024
"""Bytes of jobs that are read at once for their summaries."""
_MOST_QUEUES = 10_000
"""Queues to remember; a forgotten one counts as heavy again."""


class JobSizes:
    """The size of the largest job seen by this server, by queue; an unknown queue counts as the worst case."""

    def __init__(self) -> None:
        self._known: LRU[str, int] = LRU(_MOST_QUEUES)

    def of(self, queues: Sequence[str] | None) -> int:
        """The most bytes a job of these queues may have; None means all queues."""
        if queues is None:
            return max(self._known.values(), default=LARGEST_PAYLOAD)
        return max([self._known.get(queue, LARGEST_PAYLOAD) for queue in queues], default=LARGEST_PAYLOAD)

    def note_added(self, jobs: Iterable[Job]) -> None:
        """Record large new jobs; small ones are recorded when they are claimed."""
        for job in jobs:
            if len(job.payload) > WORTH_NOTING:
                self._note(str(job.queue), weight_of(job))

    async def map_page(
        self,
        look: Look,
        limit: int,
        queues: Sequence[str] | None,
        convert: Callable[[Job], T],
        cursor: str | None = None,
    ) -> tuple[list[T], str | None]:
        """Convert each job of one page, with few payloads in memory; return the results and the cursor."""
        converted: list[T] = []
        while True:
            fitting = max(1, MOST_READ // self.of(queues))
            page = await look(limit=min(fitting, limit - len(converted)), cursor=cursor)
            self.saw(page.items, ())
            converted += map(convert, page.items)
            cursor = page.next_cursor
            if cursor is None or len(converted) >= limit:
                return converted, cursor
            del page  # free it before the next one is read

    def saw(self, jobs: Iterable[Job], queues: Sequence[str] | None) -> int:
        """Record jobs of these queues that were claimed or read; return their total size."""
        in_all = 0
        for job in jobs:
            weight = weight_of(job)
            in_all += weight
            self._note(str(job.queue), weight)
        for queue in queues or ():  # further jobs of an empty queue come through this server
            self._note(queue, 1)
        return in_all

    def _note(self, queue: str, weight: int) -> None:
        known = self._known.get(queue)
        if known is None or weight > known:
            self._known.put(queue, weight)
