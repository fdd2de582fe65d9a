"""Clocks: the only room that reads the time, and the clock that a test holds still."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from longshore.core.moments import SECOND, Duration, check_duration, from_micros, to_micros


class Clock(Protocol):
    """Anything that knows the time; `connect(url, clock=...)` replaces the store's own clock with it, for tests."""

    def now(self) -> datetime:
        """The time now, as an aware datetime."""
        ...


class HeldClock:
    """A clock that moves only when told to."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        """The time it was last set to."""
        return self._now

    def advance(self, by: Duration) -> datetime:
        """Moves it forward and returns the new time."""
        self._now += timedelta(microseconds=check_duration("by", by, positive=False))
        return self._now

    def set(self, to: datetime) -> None:
        """Moves it anywhere, backward too, as an administrator or a bad time server would."""
        self._now = to


class SteadyClock:
    """The machine's clock in microseconds, held still over small backward steps.

    A step back of up to two seconds (a time server's correction) is waited out, so that order and leases do not
    flicker; a larger one is the machine finding its true time, and is adopted and told to `on_step`.
    """

    TOLERANCE = 2 * SECOND

    def __init__(self, read: Callable[[], int] | None = None, on_step: Callable[[int], None] | None = None) -> None:
        self._read = read or _machine_micros
        self._on_step = on_step
        self._latest = 0

    def micros(self) -> int:
        """The time now; never a little earlier than the answer before."""
        now = self._read()
        if now >= self._latest:
            self._latest = now
        elif self._latest - now > self.TOLERANCE:
            if self._on_step is not None:
                self._on_step(self._latest - now)
            self._latest = now
        return self._latest


def machine_time() -> datetime:
    """The time by the clock of this machine, which need not be the store's."""
    return from_micros(_machine_micros())


def _machine_micros() -> int:
    return time.time_ns() // 1_000


def micros_of(clock: Clock | None, on_step: Callable[[int], None] | None = None) -> Callable[[], int]:
    """The function a store asks for the time: the given clock's, or the machine's held steady."""
    if clock is None:
        return SteadyClock(on_step=on_step).micros
    given = clock
    return lambda: to_micros(given.now())
