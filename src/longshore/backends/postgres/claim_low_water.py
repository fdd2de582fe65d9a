"""The progress of claims in each queue: where a claim starts reading if the start of the index has only dead rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import NamedTuple

from longshore.backends.sql.reads import BEFORE_ALL
from longshore.backends.sql.rows import Row, row_claim_order

ClaimedQueues = tuple[str, tuple[str, ...] | None]
"""A queue, and the types that are claimed from it: None is all."""

RESCAN_SECONDS = 1.0
"""Seconds for which a mark is valid: the longest that a job before it may wait."""
MOST_DEAD_ENTRIES = 2_000
"""Index entries read, beyond ten for each job wanted, from which a mark is set; reading so many takes about 1 ms."""
STILL_ARRIVING = 1_000_000
"""Microseconds. If a claim took every job, the next one starts this much before now, for transactions that commit late.
A job of a new priority waits until the next read from the start."""


class LowWaterMark(NamedTuple):
    """In one priority of a queue, the last claimed job, or the sort key before which no job is left."""

    priority: int
    sort_key: int
    uid: int


class LowWaterMarks:
    """The marks of one process, by queue and types."""

    def __init__(self) -> None:
        self._marks: dict[ClaimedQueues, dict[int, LowWaterMark]] = {}
        self._until: dict[ClaimedQueues, float] = {}
        self._lock = threading.Lock()

    def of(self, source: ClaimedQueues) -> list[LowWaterMark] | None:
        """Where to start in each priority; None is the start."""
        with self._lock:
            if monotonic() >= self._until.get(source, 0.0):
                return None
            return sorted(self._marks[source].values())

    def record_full_read(
        self, source: ClaimedQueues, entries: int, limit: int, claimed: Sequence[Row], now: int
    ) -> None:
        """After a claim from the start: record where it ended, if it read too many dead entries."""
        with self._lock:
            if entries <= MOST_DEAD_ENTRIES + 10 * limit:
                self._until.pop(source, None)
                return
            self._until[source] = monotonic() + RESCAN_SECONDS
            priorities = {mark.priority for mark in _marks_of(claimed)}
            last = max(priorities, default=0)
            known = {last, *self._marks.get(source, {}), *priorities}
            all_taken = len(claimed) < limit
            self._marks[source] = {
                priority: LowWaterMark(
                    priority, now - STILL_ARRIVING if all_taken or priority < last else BEFORE_ALL, 0
                )
                for priority in known
            }
            if not all_taken:
                self._move(source, claimed)

    def record_marked_read(self, source: ClaimedQueues, claimed: Sequence[Row]) -> None:
        """After a claim from the marks."""
        with self._lock:
            self._move(source, claimed)

    def _move(self, source: ClaimedQueues, claimed: Sequence[Row]) -> None:
        marks = self._marks.setdefault(source, {})
        for mark in _marks_of(claimed):
            marks[mark.priority] = max(mark, marks.get(mark.priority, mark))


def _marks_of(claimed: Sequence[Row]) -> Iterator[LowWaterMark]:
    """The positions of jobs, from rows of `claimed_columns`."""
    return (LowWaterMark(*row_claim_order(row)) for row in claimed)
