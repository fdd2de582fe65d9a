"""The decision: what follows a failure, a timeout, a crash or a cancellation. Decide here, write after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from longshore.core.backoff import Backoff, backoff_of
from longshore.core.moments import SECOND

LONGEST_WAIT = 100 * 365 * 86_400.0
"""Seconds, a century: so that a backoff that doubles for ever never leaves the calendar."""

StrategyAnswer = float | Literal[False] | None
"""What a custom retry strategy says: seconds to wait, or False (or None) for no further try."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one execution ended, as the worker saw it."""

    kind: Literal["failure", "timeout", "cancelled"]
    error: str = ""
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The verb to settle with, and for a retry how long to wait first."""

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
    """What to do after an execution that did not complete. `failures` counts this one too.

    A timeout is a failure like any other. A strategy's answer goes before the backoff, and neither can buy a try
    beyond `max_attempts`.
    """
    if ending.kind == "cancelled":
        return Decision("stop", why="cancelled")
    if ending.fatal:
        return Decision("bury", why="fatal error")
    if max_attempts > 0 and failures >= max_attempts:
        return Decision("bury", why=f"failed {failures} of {max_attempts} attempts")
    if strategy != "unset":
        if strategy is False or strategy is None:
            return Decision("bury", why="the retry strategy said stop")
        if strategy is True or not math.isfinite(strategy):
            return Decision("bury", why=f"the retry strategy said {strategy}, which is no number of seconds")
        return Decision("fail", min(max(0.0, float(strategy)), LONGEST_WAIT))
    return Decision("fail", min(backoff.seconds(failures, roll), LONGEST_WAIT) if backoff else 0.0)


@dataclass(frozen=True, slots=True)
class CrashDecision:
    """Whether a crashed job is buried, and if not how many microseconds it waits."""

    bury: bool
    delay: int = 0


def after_crash(crashes: int, max_crashes: int | None, options: Mapping[str, Any]) -> CrashDecision:
    """What follows a crash, by the job's own limit; `crashes` counts this one too. No dice: every store agrees."""
    if max_crashes is not None and crashes > max_crashes:
        return CrashDecision(bury=True)
    backoff = backoff_of(options)
    return CrashDecision(bury=False, delay=round(backoff.seconds(crashes) * SECOND) if backoff else 0)
