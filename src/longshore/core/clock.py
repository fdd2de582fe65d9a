"""Clocks: the only module that reads the time, and a manual clock for tests."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from longshore.core.times import SECOND, Duration, check_duration, duration_text, from_micros, to_micros


class Clock(Protocol):
    """A source of the current time. `connect(url, clock=...)` uses it instead of the store's clock, for tests."""

    def now(self) -> datetime:
        """The time now, as an aware datetime."""
        ...


class HeldClock:
    """A clock that moves only when a test moves it. See docs/tasks.md."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        """The time it was last set to."""
        return self._now

    def advance(self, by: Duration) -> datetime:
        """Move the clock forward and return the new time."""
        self._now += timedelta(microseconds=check_duration("by", by, positive=False))
        return self._now

    def set(self, to: datetime) -> None:
        """Set the clock to any time, also an earlier one."""
        self._now = to


class SteadyClock:
    """The machine's clock in microseconds, without small backward steps.

    After a step back of up to two seconds (a correction by a time server), the time does not move until the clock
    catches up, so that order and leases stay stable. A larger step is adopted and passed to `on_step`.
    """

    TOLERANCE = 2 * SECOND

    def __init__(self, read: Callable[[], int] | None = None, on_step: Callable[[int], None] | None = None) -> None:
        self._read = read or _machine_micros
        self._on_step = on_step
        self._latest = 0

    def micros(self) -> int:
        """The time now: never up to two seconds earlier than the last answer."""
        now = self._read()
        if now >= self._latest:
            self._latest = now
        elif self._latest - now > self.TOLERANCE:
            if self._on_step is not None:
                self._on_step(self._latest - now)
            self._latest = now
        return self._latest


class Machine:
    """The clocks of this machine, in microseconds. A test replaces `MACHINE` to step the clock or to reboot."""

    def wall(self) -> int:
        """The wall clock, which administrators and time servers can set."""
        return time.time_ns() // 1_000

    def since_boot(self) -> int:
        """The time since boot, including suspension; setting the wall clock does not change it."""
        return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000

    def boot_id(self) -> str | None:
        """An id of this boot; None where steps of the clock cannot be detected."""
        if not hasattr(time, "CLOCK_BOOTTIME"):
            return _boot_session()
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{boot} {Path('/proc/self/ns/time').readlink()}"  # each time namespace has its own time since boot
        except OSError:
            return None


def _boot_session() -> str | None:
    """The id of this boot on macOS, whose CLOCK_MONOTONIC includes suspension; None on other systems."""
    try:
        sysctl = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, OSError, TypeError):
        return None
    found = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(found))
    if sysctl(b"kern.bootsessionuuid", found, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return found.value.decode("ascii", "replace") or None


MACHINE = Machine()


class ClockStep(NamedTuple):
    """A step of the machine's wall clock, and when it was detected, by the new time."""

    at: datetime
    by: timedelta

    def __str__(self) -> str:
        direction = "forward" if self.by > timedelta() else "back"
        by, at = duration_text(abs(self.by)), f"{self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"the machine's clock was set {direction} by {by} at {at}"


RECENT = timedelta(days=1)
"""How long a step of the clock is reported."""


def recent(step: ClockStep | None, now: datetime) -> ClockStep | None:
    """The step, if it should still be reported."""
    return step if step is not None and abs(now - step.at) <= RECENT else None


_LONGEST_READING = 10_000
"""Microseconds. If more pass between reading the two clocks, the process was paused in between."""


class Reading(NamedTuple):
    """Both clocks of the machine at one moment."""

    boot_id: str
    wall: int
    since_boot: int

    @property
    def started_at(self) -> int:
        """The boot time by the wall clock: it changes only if that clock is set."""
        return self.wall - self.since_boot


def read_machine(boot_id: str) -> Reading:
    """Read both clocks so close together that a pause of the process does not look like a step."""
    while True:
        before = MACHINE.since_boot()
        wall = MACHINE.wall()
        if MACHINE.since_boot() - before <= _LONGEST_READING:
            return Reading(boot_id, wall, before)


class StoreClock:
    """The clock of one store on this machine: a given clock, or the time since boot plus the boot time.

    The boot time changes only if the wall clock is set. A store that detects such a step shifts its stored times, and
    then sets `started_at` here.
    """

    def __init__(self, clock: Clock | None, on_step: Callable[[int], None] | None = None) -> None:
        self.boot_id = MACHINE.boot_id() if clock is None else None
        """None if steps of the clock are not detected."""
        self.wall = micros_of(clock, on_step=None if self.boot_id else on_step)
        """The time now by the wall clock or the given clock."""
        self.now = self.wall if self.boot_id is None else self._since_boot
        """The time for a write: never up to two seconds earlier than the last answer."""
        self.started_at = 0
        self._latest = 0

    def _since_boot(self) -> int:
        now = MACHINE.since_boot() + self.started_at
        if now >= self._latest or self._latest - now > SteadyClock.TOLERANCE:
            self._latest = now
        return self._latest


def machine_time() -> datetime:
    """The time by this machine's clock, which may differ from the store's."""
    return from_micros(_machine_micros())


def _machine_micros() -> int:
    return MACHINE.wall()


def micros_of(clock: Clock | None, on_step: Callable[[int], None] | None = None) -> Callable[[], int]:
    """Return a store's clock: the given one, or the machine's without small steps back. See docs/write-a-backend.md."""
    if clock is None:
        return SteadyClock(on_step=on_step).micros
    given = clock
    return lambda: to_micros(given.now())
