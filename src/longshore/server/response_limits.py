"""Limits on the size of one response: pages of large jobs end early, and large work runs beside the event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from longshore.backends.base import Page
from longshore.core.job import Job, JobEvent, LogEntry
from longshore.core.validation import LARGEST_PAYLOAD

P = ParamSpec("P")
R = TypeVar("R")

AT_ONCE = 2
"""Each takes its turn at the interpreter, and so much memory as what it works on: one may be very large, and another
goes on meanwhile."""
_threads = ThreadPoolExecutor(AT_ONCE, "longshore-large")


async def beside_the_loop(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What the work gives back; it waits until one of the threads is free."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args, **kwargs))


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


T = TypeVar("T")

WORTH_NOTING = 512 * 1024
"""Bytes of a new job: of lighter ones as many may be claimed at once as ever are."""
MOST_READ = 32 * 1024 * 1024
"""Bytes of jobs that are looked up at once, to tell little of each."""
_MOST_QUEUES = 10_000
"""Names that are kept; a queue that was forgotten is met with care again."""


class JobSizes:
    """The heaviest job of each queue that came in here or was claimed. Of a queue that nobody knows, the worst."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    def of(self, queues: Sequence[str] | None) -> int:
        """Bytes that a job of these queues may have; None is all of them."""
        if queues is None:
            return max(self._known.values(), default=LARGEST_PAYLOAD)
        return max([self._known.get(queue, LARGEST_PAYLOAD) for queue in queues], default=LARGEST_PAYLOAD)

    def came_in(self, jobs: Iterable[Job]) -> None:
        """Of what is new only the large ones matter: that a queue's jobs are light, claims tell."""
        for job in jobs:
            if len(job.payload) > WORTH_NOTING:
                self._note(str(job.queue), weight_of(job))

    async def told_of_each(
        self, look: Look, limit: int, queues: Sequence[str] | None, tell: Callable[[Job], T], cursor: str | None = None
    ) -> tuple[list[T], str | None]:
        """What is told of each job of one page, and its cursor; of what they carry little is in memory at once."""
        told: list[T] = []
        while True:
            fitting = max(1, MOST_READ // self.of(queues))
            page = await look(min(fitting, limit - len(told)), cursor)
            self.saw(page.items, ())
            told += map(tell, page.items)
            cursor = page.next_cursor
            if cursor is None or len(told) >= limit:
                return told, cursor
            del page  # before the next one is read

    def saw(self, jobs: Iterable[Job], queues: Sequence[str] | None) -> int:
        """Takes note of jobs of these queues, claimed or looked at; returns what they weigh together."""
        in_all = 0
        for job in jobs:
            weight = weight_of(job)
            in_all += weight
            self._note(str(job.queue), weight)
        for queue in queues or ():  # one that had nothing to give will get it through here
            self._note(queue, 1)
        return in_all

    def _note(self, queue: str, weight: int) -> None:
        known = self._known.get(queue)
        if known is None or weight > known:
            self._known[queue] = weight
            self._known.move_to_end(queue)
            if len(self._known) > _MOST_QUEUES:
                self._known.popitem(last=False)
