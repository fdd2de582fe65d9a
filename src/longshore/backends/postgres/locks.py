"""Locks on queues, and the one order of all locks: queues first, by number."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32


class Hold(IntEnum):
    """How a queue is held; each way is more than the one before."""

    SHARED = 1
    """Its settings stay as they are."""
    SLOTS = 2
    """And nobody else uses the free slots that its limits leave."""
    ALONE = 3
    """Nobody else holds it in any way."""


Wanted = Mapping[str, Hold]
"""Queues by name, and how each is to be held."""


class Lock(NamedTuple):
    """A lock on a queue or on its free slots; they are taken in their order."""

    on_slots: bool
    number: int


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


def in_order(wanted: Wanted) -> dict[Lock, bool]:
    """The locks for these queues, in the order in which everybody takes them, and whether each is not to be shared."""
    locks: dict[Lock, bool] = {}
    for name, hold in wanted.items():
        queue = Lock(False, lock_number(name))
        locks[queue] = locks.get(queue, False) or hold is Hold.ALONE
        if hold is Hold.SLOTS:
            locks[Lock(True, queue.number)] = True
    return dict(sorted(locks.items()))


class LockSpaces:
    """Where one schema has its advisory locks: those on queues, and those on their slots."""

    def __init__(self, schema: str) -> None:
        self.queues = lock_number(f"longshore {schema}")
        self._slots = lock_number(f"longshore slots {schema}")

    def of(self, lock: Lock) -> int:
        """The space of this lock."""
        return self._slots if lock.on_slots else self.queues

    def taken_in_order(self, wanted: Wanted) -> str:
        """As SQL with nothing left open, so that it goes in one message with what is read once they are held."""
        return "".join(
            f"SELECT pg_advisory_xact_lock{'' if alone else '_shared'}({self.of(lock)}, {lock.number}); "
            for lock, alone in in_order(wanted).items()
        )
