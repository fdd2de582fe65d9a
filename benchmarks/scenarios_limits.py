"""The cost of limits: a drain of jobs with concurrency keys, with and without limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from benchmarks.databases import Databases
from benchmarks.draining import Line, Terms, drained, on_postgres, on_sqlite
from benchmarks.measuring import alternate
from benchmarks.postgres_costs import ServerSample
from benchmarks.reporting import Finding, Target, rates
from longshore.core.limits import Rate

_AT_ONCE = 100
_KEYS = 1_000
_AT_MOST_A_THIRD = Target("≥", 0.67)
_UNLIMITED = Terms(keys=_KEYS)
_LIMITED = {
    "one running per key": Terms(keys=_KEYS, per_key=1),
    "ten running per key": Terms(keys=_KEYS, per_key=10),
    "a rate for each key": Terms(keys=_KEYS, rate_per_key=Rate(1_000_000, 60)),
    "1,000 running in the queue": Terms(keys=_KEYS, running=1_000),
}

_LineOf = Callable[[int, Terms], AbstractContextManager[Line]]


def limited_drain(databases: Databases) -> list[Finding]:
    """On SQLite."""
    return _limited(databases, partial(on_sqlite, databases))


def postgres_limited_drain(databases: Databases) -> list[Finding]:
    """On PostgreSQL."""
    return _limited(databases, partial(on_postgres, databases.postgres))


def _limited(databases: Databases, line_of: _LineOf) -> list[Finding]:
    jobs = databases.scale.drained_jobs
    sides = [partial(_drain, line_of, jobs, terms) for terms in (_UNLIMITED, *_LIMITED.values())]
    unlimited, *limited = alternate(databases.scale.drains, *sides)
    return [
        rates(
            f"drain of {jobs:,} jobs of {_KEYS:,} random keys, {_AT_ONCE} at a time, {name}",
            samples,
            reference=unlimited,
            compared_with="no limit",
            target=_AT_MOST_A_THIRD,
        )
        for name, samples in zip(_LIMITED, limited, strict=True)
    ]


def _drain(line_of: _LineOf, jobs: int, terms: Terms) -> ServerSample:
    with line_of(jobs, terms) as line:
        return drained(line, _AT_ONCE)
