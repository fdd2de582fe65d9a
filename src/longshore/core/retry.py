"""Retry decisions: the backoff, and the next step after a failure, timeout, crash or cancellation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, Duration, check_duration

_LONGEST_EXPONENT = 62


def check_jitter(field: str, value: object) -> None:
    """Check for a number between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidArgument(field, f"must be a number between 0 and 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before a retry. It depends only on the number of failures and on the jitter."""

    type: Literal["fixed", "exponential"]
    delay: float
    cap: float | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.type not in ("fixed", "exponential"):
            raise InvalidArgument("backoff.type", f"must be 'fixed' or 'exponential', not {self.type!r}")
        for name, seconds in (("backoff.delay", self.delay), ("backoff.cap", self.cap)):
            if isinstance(seconds, timedelta):
                raise InvalidArgument(name, "must be a number of seconds; fixed() and exponential() take a timedelta")
            if seconds is not None or name == "backoff.delay":
                check_duration(name, seconds, positive=False)
        check_jitter("backoff.jitter", self.jitter)

    def seconds(self, failures: int, roll: float = 0.0) -> float:
        """The wait after the nth failure. `roll`, a random number in [0, 1), subtracts up to `jitter` of it."""
        exponent = min(max(failures, 1) - 1, _LONGEST_EXPONENT) if self.type == "exponential" else 0
        wait = self.delay * 2.0**exponent
        if self.cap is not None:
            wait = min(wait, self.cap)
        return wait * (1.0 - self.jitter * roll)

    def as_options(self) -> dict[str, Any]:
        """The form stored in a job's options."""
        return {"type": self.type, "delay": self.delay, "cap": self.cap, "jitter": self.jitter}


def fixed(delay: Duration, *, jitter: float = 0.0) -> Backoff:
    """The same wait after every failure. See docs/tasks.md."""
    return Backoff("fixed", check_duration("delay", delay, positive=False) / SECOND, None, jitter)


def exponential(delay: Duration, *, cap: Duration | None = None, jitter: float = 0.0) -> Backoff:
    """`delay` after the first failure, doubled after each further one, at most `cap`. See docs/tasks.md."""
    seconds = check_duration("delay", delay, positive=False) / SECOND
    highest = None if cap is None else check_duration("cap", cap, positive=False) / SECOND
    return Backoff("exponential", seconds, highest, jitter)


def backoff_of(options: Mapping[str, Any]) -> Backoff | None:
    """The backoff stored in a job's options, or None."""
    kept = options.get("backoff")
    if kept is None:
        return None
    if not isinstance(kept, Mapping):
        raise InvalidArgument("options.backoff", "must be an object with type and delay: use fixed() or exponential()")
    unknown = set(kept) - {"type", "delay", "cap", "jitter"}
    if unknown or "type" not in kept or "delay" not in kept:
        raise InvalidArgument("options.backoff", f"needs type and delay, may have cap and jitter; got {sorted(kept)}")
    return Backoff(kept["type"], kept["delay"], kept.get("cap"), kept.get("jitter", 0.0))


LONGEST_WAIT = 100 * 365 * 86_400.0
"""Seconds, 100 years. It keeps a backoff that doubles without a cap within the calendar."""

StrategyAnswer = float | Literal[False] | None
"""The answer of a custom retry strategy: seconds to wait, or False or None for no further attempt."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, as the worker saw it."""

    kind: Literal["failure", "timeout", "cancelled"]
    error: str = ""
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """How to settle the job, and how long to wait before a retry."""

    verb: Literal["fail", "bury", "stop"]
    delay: float = 0.0
    why: str = ""


def decide(
    ending: Ending,
    *,
    failures: int,
    max_attempts: int,
    backoff: Backoff | None = None,
    strategy: StrategyAnswer | Literal["unset"] = "unset",
    roll: float = 0.0,
) -> Decision:
    """Decide how to settle an attempt that did not complete. `failures` includes this one.

    A timeout counts as a failure. The answer of a strategy overrides the backoff. Neither exceeds `max_attempts`.
    """
    if ending.kind == "cancelled":
        return Decision("stop", why="cancelled")
    if ending.fatal:
        return Decision("bury", why="fatal error")
    if max_attempts > 0 and failures >= max_attempts:
        return Decision("bury", why=f"failed {failures} of {max_attempts} attempts")
    if strategy != "unset":
        if strategy is False or strategy is None:
            return Decision("bury", why="the retry strategy allows no further attempt")
        if strategy is True or not math.isfinite(strategy):
            return Decision("bury", why=f"the retry strategy returned {strategy}, which is not a number of seconds")
        return Decision("fail", min(max(0.0, float(strategy)), LONGEST_WAIT))
    return Decision("fail", min(backoff.seconds(failures, roll), LONGEST_WAIT) if backoff else 0.0)


@dataclass(frozen=True, slots=True)
class CrashDecision:
    """Whether a crashed job is buried; if not, the wait in microseconds."""

    bury: bool
    delay: int = 0


def after_crash(crashes: int, max_crashes: int | None, options: Mapping[str, Any]) -> CrashDecision:
    """Decide by the job's crash limit; `crashes` includes this one. No jitter, so that every store decides the same."""
    if max_crashes is not None and crashes > max_crashes:
        return CrashDecision(bury=True)
    backoff = backoff_of(options)
    return CrashDecision(bury=False, delay=round(backoff.seconds(crashes) * SECOND) if backoff else 0)
