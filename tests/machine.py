"""A machine whose wall clock a test sets, in this process or in others, without changing its time since boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from longshore.core import clock
from longshore.core.times import SECOND


class SteppedMachine(clock.Machine):
    """The real machine, with a wall clock that differs by the seconds in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wall(self) -> int:
        off = self._path.read_text() if self._path.exists() else ""
        return super().wall() + round(float(off or 0) * SECOND)

    def step(self, seconds: float) -> None:
        """Set the wall clock this many seconds before or after the real time, for all processes that read the file."""
        following = self._path.with_suffix(".new")
        following.write_text(str(seconds))
        following.rename(self._path)


class HeldMachine(clock.Machine):
    """A machine with held clocks: a test moves them, and suspends and reboots the machine."""

    def __init__(self) -> None:
        self.at = super().wall()
        self.up = super().since_boot()
        self.boot: str | None = "first boot"

    def wall(self) -> int:
        return self.at

    def since_boot(self) -> int:
        return self.up

    def boot_id(self) -> str | None:
        return self.boot

    def passes(self, seconds: float) -> None:
        """Let time pass, while the machine runs or is suspended."""
        self.at += round(seconds * SECOND)
        self.up += round(seconds * SECOND)

    def step(self, seconds: float) -> None:
        """Set the wall clock; no time passes."""
        self.at += round(seconds * SECOND)

    def reboots(self, seconds: float) -> None:
        """Reboot, with a wall clock that shows this many seconds more than before."""
        self.boot, self.up = f"after {self.boot}", 10 * SECOND
        self.at += round(seconds * SECOND)


def install(monkeypatch: pytest.MonkeyPatch, machine: clock.Machine) -> None:
    """Make all stores of this process use that machine."""
    monkeypatch.setattr(clock, "MACHINE", machine)
