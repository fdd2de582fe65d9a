"""Advisory locks on queues. All transactions take them in one order: queues before slots, then by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from longshore.backends.port import Hold

Wanted = Mapping[str, Hold]
"""Queues by name, with the lock that each needs."""


class Lock(NamedTuple):
    """A lock on a queue or on its free slots; its fields sort it into the order of all locks."""

    on_slots: bool
    number: int


class RestartTransaction(Exception):
    """Another transaction changed what this one relied on; run it again."""


class LockFirst(RestartTransaction):
    """These queues are needed, but waiting for them now could deadlock; run again and lock them first."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(f"queues {', '.join(wanted)} must be locked first")
        self.wanted = wanted


def lock_number(name: str) -> int:
    """Return the number of an advisory lock; two names may share one, and then wait for each other."""
    return crc32(name.encode()) - 2**31


def in_order(wanted: Wanted) -> dict[Lock, bool]:
    """Return the locks for these queues in the common order, and whether each is exclusive."""
    locks: dict[Lock, bool] = {}
    for name, hold in wanted.items():
        queue = Lock(False, lock_number(name))
        locks[queue] = locks.get(queue, False) or hold is Hold.EXCLUSIVE
        if hold is Hold.SLOTS:
            locks[Lock(True, queue.number)] = True
    return dict(sorted(locks.items()))


class LockSpaces:
    """The first numbers of a schema's advisory locks: one for queues, one for their slots."""

    def __init__(self, schema: str) -> None:
        self.queues = lock_number(f"longshore {schema}")
        self._slots = lock_number(f"longshore slots {schema}")

    def of(self, lock: Lock) -> int:
        """Return the first number of this lock."""
        return self._slots if lock.on_slots else self.queues

    def statements(self, wanted: Wanted) -> str:
        """Return SQL without parameters that takes the locks, to send in one message with the read after them."""
        return "".join(
            f"SELECT pg_advisory_xact_lock{'' if alone else '_shared'}({self.of(lock)}, {lock.number}); "
            for lock, alone in in_order(wanted).items()
        )
