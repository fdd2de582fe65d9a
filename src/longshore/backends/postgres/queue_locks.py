"""Locks on queues, and the one order of all locks: first queues, by their numbers, and then jobs.

Whoever holds a job, or a queue, does not wait for a queue: it takes the queue if nobody is in the way, or begins anew
with all of them. So nobody ever waits in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

Wanted = Mapping[str, bool]
"""Queues by name, and whether each is wanted alone or shared with others."""


class BeginAnew(Exception):
    """Something that this transaction had taken for granted changed meanwhile; done again, it will see that."""


class HoldFirst(BeginAnew):
    """These queues are needed, and it is too late to wait for them: done again, they are held from the start."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(f"queues {', '.join(wanted)} are to be held first")
        self.wanted = wanted


def lock_number(name: str) -> int:
    """The number of an advisory lock; two names with one number only wait for each other now and then."""
    return crc32(name.encode()) - 2**31


def in_order(wanted: Wanted) -> dict[int, bool]:
    """The locks for these queues, in the order in which everybody takes them."""
    locks: dict[int, bool] = {}
    for name, alone in wanted.items():
        number = lock_number(name)
        locks[number] = locks.get(number, False) or alone
    return dict(sorted(locks.items()))


def taken_in_order(room: int, wanted: Wanted) -> str:
    """As SQL with nothing left open, so that it goes in one message with what is read once they are held."""
    return "".join(
        f"SELECT pg_advisory_xact_lock{'' if alone else '_shared'}({room}, {number}); "
        for number, alone in in_order(wanted).items()
    )
