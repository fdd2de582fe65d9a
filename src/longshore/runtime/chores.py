"""What the passing of time asks for, piece by piece: each chore is done in short transactions until nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from longshore.backends.base import Backend
from longshore.core.times import Duration

AT_ONCE = 200
"""Jobs one transaction touches: a few milliseconds for which others wait."""
FIRED_AT_ONCE = 500
"""Schedules: some 50 milliseconds, for the store bounds the jobs they make. Smaller pieces would make the last of ten
thousand late."""
_SIDE_BY_SIDE = 2
"""After a full piece: while the store writes one, the next is worked out."""
_IN_A_ROW = 10
"""Pieces on each side before it is looked at whether what is due now was due when the pass began."""
_ASKED_ANYWAY = timedelta(seconds=30)
_TRY_AGAIN = 0.05
"""Seconds until a schedule is looked at again that is due and did not fire: somebody else is just firing it."""
_JITTER = 0.2
"""So that many who began together do not all come at one moment."""

RETENTION_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Chore:
    """One thing to do again and again; safe to repeat, and to do by many at once."""

    name: str
    batch: Callable[[], Awaitable[int]]
    """Does a bounded piece of it, and says how much that was."""
    more: int
    """A piece of at least so many is followed by the next."""
    pause: Callable[[], Awaitable[float]]
    """Seconds until there may be something to do again."""
    rest: float = 0.0
    """How long to leave the store to others between two pieces, in times of what the last one took."""

    async def do(self, stop: asyncio.Event, *, in_haste: bool = False) -> int:
        """Piece by piece until nothing is left, or it is to stop; returns how much was done."""
        done = 0
        while not stop.is_set():
            began = monotonic()
            piece = await self.batch()
            done += piece
            if piece < self.more:
                break
            await wait(stop, 0 if in_haste else self.rest * (monotonic() - began))
        return done


async def wait(stop: asyncio.Event, seconds: float) -> None:
    """Until it is to stop, or so many seconds have passed."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def varied(seconds: float) -> float:
    """About so many seconds."""
    return seconds * (1 + random.uniform(-_JITTER, _JITTER))


def sweep(backend: Backend, interval: float) -> Chore:
    """Leases that ran out, jobs past their `expires_at`, and dependents that came in while nobody could see."""

    async def batch() -> int:
        return len(await backend.reclaim_expired_leases(AT_ONCE))

    return Chore("sweep", batch, AT_ONCE, _every(interval))


def schedules(backend: Backend, interval: float) -> Chore:
    """Schedules whose time has come. It comes back for the next planned time, not only at every interval."""

    async def until_the_next() -> float | None:
        planned = await backend.next_firing()
        return None if planned is None else (planned - await backend.now()).total_seconds()

    began: datetime | None = None
    asked: datetime | None = None

    async def several() -> int:
        """Pieces one after the other as long as they are full, and not for ever."""
        fired = 0
        for _ in range(_IN_A_ROW):
            piece = len(await backend.fire_due_schedules(FIRED_AT_ONCE))
            fired += piece
            if piece < FIRED_AT_ONCE:
                break
        return fired

    async def batch() -> int:
        """Whatever falls due while a pass is under way is for the next one, or it might never end.

        The store is asked now and then though nothing is due, and when its clock went back: what a clock ahead of time
        has fired waits for times that are too far ahead, and it is the store that plans them anew.
        """
        nonlocal began, asked
        planned = await backend.next_firing()
        until, began = began or await backend.now(), None
        asked_lately = asked is not None and timedelta() <= until - asked < _ASKED_ANYWAY
        if asked_lately and (planned is None or planned > until):
            return 0
        asked = until
        fired = len(await backend.fire_due_schedules(FIRED_AT_ONCE))
        if fired >= FIRED_AT_ONCE:
            fired += sum(await asyncio.gather(*(several() for _ in range(_SIDE_BY_SIDE))))
        began = until if fired else None
        return fired

    async def pause() -> float:
        left = await until_the_next()
        return interval if left is None else min(max(left, _TRY_AGAIN if left <= 0 else 0.0), interval)

    return Chore("firing of schedules", batch, 1, pause)


def announcements(backend: Backend, interval: float) -> Chore:
    """Delayed jobs whose time has come. Whom a worker takes first needs no word, so nobody hurries."""

    async def batch() -> int:
        return len(await backend.announce_due_jobs(AT_ONCE))

    return Chore("announcement of due jobs", batch, AT_ONCE, _every(interval), rest=1.0)


def cancellations(backend: Backend, interval: float, timeout: Duration) -> Chore:
    """Cancellations that nobody acknowledges."""

    async def batch() -> int:
        return len(await backend.time_out_cancellations(timeout, AT_ONCE))

    return Chore("time-out of cancellations", batch, AT_ONCE, _every(interval))


def retention(backend: Backend) -> Chore:
    """What has been kept long enough."""

    async def batch() -> int:
        return await backend.apply_retention(AT_ONCE)

    return Chore("retention", batch, 1, _every(RETENTION_SECONDS), rest=1.0)


def _every(interval: float) -> Callable[[], Awaitable[float]]:
    async def pause() -> float:
        return varied(interval)

    return pause
