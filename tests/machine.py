"""A machine whose wall clock a test steps, in this process or in others, while its time since boot goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from longshore.core import clock
from longshore.core.moments import SECOND


class SteppedMachine(clock.Machine):
    """The true machine, with a wall clock that is off by what a file says, in seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wall(self) -> int:
        off = self._path.read_text() if self._path.exists() else ""
        return super().wall() + round(float(off or 0) * SECOND)

    def step(self, seconds: float) -> None:
        """Sets the wall clock to so many seconds before or after the true time, for all who read this file."""
        following = self._path.with_suffix(".new")
        following.write_text(str(seconds))
        following.rename(self._path)


class HeldMachine(clock.Machine):
    """A machine that stands still: a test moves its clocks, suspends it and starts it anew."""

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
        """Time goes by, whether the machine runs or is suspended."""
        self.at += round(seconds * SECOND)
        self.up += round(seconds * SECOND)

    def step(self, seconds: float) -> None:
        """The wall clock is set; no time goes by."""
        self.at += round(seconds * SECOND)

    def reboots(self, seconds: float) -> None:
        """It starts anew, with a wall clock that shows so many seconds more than before."""
        self.boot, self.up = f"after {self.boot}", 10 * SECOND
        self.at += round(seconds * SECOND)


def install(monkeypatch: pytest.MonkeyPatch, machine: clock.Machine) -> None:
    """From here on all stores of this process live on that machine."""
    monkeypatch.setattr(clock, "MACHINE", machine)
