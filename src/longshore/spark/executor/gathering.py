"""When a batch begins and how large it is, as arithmetic: Spark takes a good third of a second for the smallest."""

from __future__ import annotations

from collections.abc import Sequence

BATCH = 10_000
"""Jobs in one batch unless told otherwise."""
LULL = 0.05
"""Seconds without a new job after which it is taken that no more come soon."""
LONGEST_GATHERING = 0.5
SLICES_PER_SLOT = 4
"""Tasks of a batch for each that can run at once: a slow job holds up only the few that stand behind it in its task."""
MOST_BYTES = 64 * 1024 * 1024
"""Of payloads in one batch: what is sent to the tasks passes through the memory of driver and Java."""


def gathered(*, jobs: int, before: int, waited: float, most: int) -> bool:
    """Whether to wait no longer for more jobs, of which there were `before` a lull ago."""
    return jobs >= most or jobs == before or waited >= LONGEST_GATHERING


def may_begin(*, jobs: int, under_way: Sequence[int], slots: int, most: int) -> bool:
    """Whether a batch of these jobs may begin beside those that have so many jobs left each.

    Beside others only if it is as large as what is left of them, so that batches stay large while processors are busy;
    and never more batches than there are slots to be held up by a slow job each.
    """
    if not under_way:
        return True
    return len(under_way) <= slots and (jobs >= most or jobs >= sum(under_way))


def how_many(sizes: Sequence[int], most: int) -> int:
    """How many of the jobs with payloads of these sizes go into one batch: at least one."""
    room = MOST_BYTES
    for count, size in enumerate(sizes[:most]):
        room -= size
        if room < 0 and count:
            return count
    return min(len(sizes), most)
