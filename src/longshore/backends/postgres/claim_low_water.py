"""How far claims have come in each queue: where a search begins when its start holds only dead rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import NamedTuple

from longshore.backends.sql.reads import BEFORE_ALL
from longshore.backends.sql.rows import Row, in_standing_order

ClaimedQueues = tuple[str, tuple[str, ...] | None]
"""A queue, and the types that are claimed from it: None is all."""

LOOK_AGAIN = 1.0
"""Seconds for which a mark is good: the longest a job that stands before it may wait."""
LITTERED = 2_000
"""Entries read beyond ten for each job asked for, from which on the start of a line counts as littered; reading so
many takes about a millisecond."""
STILL_ARRIVING = 1_000_000
"""Microseconds: where everybody was taken, the next claim begins this much before now, for transactions that commit
late. In a priority nobody was known to have, a job waits until the start is looked at again."""


class LowWaterMark(NamedTuple):
    """In one priority of a queue, the last job claimed, or the sort key before which no job is left."""

    priority: int
    sort_key: int
    uid: int


class LowWaterMarks:
    """The marks of one process, by queue and types."""

    def __init__(self) -> None:
        self._marks: dict[ClaimedQueues, dict[int, LowWaterMark]] = {}
        self._until: dict[ClaimedQueues, float] = {}
        self._lock = threading.Lock()

    def of(self, line: ClaimedQueues) -> list[LowWaterMark] | None:
        """Where to begin in each priority; None is the start."""
        with self._lock:
            if monotonic() >= self._until.get(line, 0.0):
                return None
            return sorted(self._marks[line].values())

    def started_anew(self, line: ClaimedQueues, entries: int, limit: int, claimed: Sequence[Row], now: int) -> None:
        """After a claim from the start of the line: remembers where it ended, if it had to step over too much."""
        with self._lock:
            if entries <= LITTERED + 10 * limit:
                self._until.pop(line, None)
                return
            self._until[line] = monotonic() + LOOK_AGAIN
            priorities = {mark.priority for mark in _places(claimed)}
            last = max(priorities, default=0)
            known = {last, *self._marks.get(line, {}), *priorities}
            all_taken = len(claimed) < limit
            self._marks[line] = {
                priority: LowWaterMark(
                    priority, now - STILL_ARRIVING if all_taken or priority < last else BEFORE_ALL, 0
                )
                for priority in known
            }
            if not all_taken:
                self._move(line, claimed)

    def went_on(self, line: ClaimedQueues, claimed: Sequence[Row]) -> None:
        """After a claim from the marks."""
        with self._lock:
            self._move(line, claimed)

    def _move(self, line: ClaimedQueues, claimed: Sequence[Row]) -> None:
        marks = self._marks.setdefault(line, {})
        for mark in _places(claimed):
            marks[mark.priority] = max(mark, marks.get(mark.priority, mark))


def _places(claimed: Sequence[Row]) -> Iterator[LowWaterMark]:
    """Where jobs stood, from rows of `claimed_columns`."""
    return (LowWaterMark(*in_standing_order(row)) for row in claimed)
