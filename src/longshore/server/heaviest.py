"""How heavy a queue's jobs are, as far as this server has seen: no more are asked of the store than memory is for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from longshore.core.job import Job
from longshore.core.validation import LARGEST_PAYLOAD
from longshore.server.portions import Look, weight_of

T = TypeVar("T")

WORTH_NOTING = 512 * 1024
"""Bytes of a new job: of lighter ones as many may be claimed at once as ever are."""
MOST_READ = 32 * 1024 * 1024
"""Bytes of jobs that are looked up at once, to tell little of each."""
_MOST_QUEUES = 10_000
"""Names that are kept; a queue that was forgotten is met with care again."""


class Heaviest:
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
