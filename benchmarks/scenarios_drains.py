"""A drain by one worker process, beside PgQueuer: how many jobs a second, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from benchmarks.databases import Databases
from benchmarks.draining import Line, drained, on_pgqueuer, on_postgres, on_sqlite
from benchmarks.measuring import Spread, alternate, paired_ratios
from benchmarks.postgres_costs import ServerSample
from benchmarks.reporting import Finding, Target

_AT_ONCE = 100
"""Jobs that either side claims in one go."""

_LineOf = Callable[[int], AbstractContextManager[Line]]


def drain_sqlite(databases: Databases) -> list[Finding]:
    """The product on SQLite, the peer on PostgreSQL, which is the only store it has."""
    mine, theirs = _drains(databases, partial(on_sqlite, databases))
    return _findings(databases, mine, theirs, faster=Target("≥", 2), cheaper=Target("≤", 70, "µs"))


def drain_postgres(databases: Databases) -> list[Finding]:
    """Both on the same server, each on a database of its own."""
    mine, theirs = _drains(databases, partial(on_postgres, databases.postgres))
    return _findings(databases, mine, theirs, faster=Target("≥", 1.3), cheaper=Target("≤", 1))


def _drains(databases: Databases, product: _LineOf) -> list[list[ServerSample]]:
    return alternate(
        databases.scale.drains,
        lambda: _drain(databases, product),
        lambda: _drain(databases, partial(on_pgqueuer, databases.postgres)),
    )


def _drain(databases: Databases, line_of: _LineOf) -> ServerSample:
    with line_of(databases.scale.drained_jobs) as line:
        return drained(line, _AT_ONCE)


def _findings(
    databases: Databases,
    mine: Sequence[ServerSample],
    theirs: Sequence[ServerSample],
    *,
    faster: Target,
    cheaper: Target,
) -> list[Finding]:
    return [
        Finding(
            f"drain of {databases.scale.drained_jobs:,} jobs by one worker, {_AT_ONCE} at a time",
            "jobs/s",
            Spread.of(sample.rate for sample in mine),
            None,
            "PgQueuer",
            Spread.of(sample.rate for sample in theirs),
            paired_ratios(mine, theirs),
            faster,
        ),
        _costs("the same, processor time of worker and database", mine, theirs, _all_cpu, cheaper),
        _costs("the same, of the worker's process alone", mine, theirs, _worker_cpu),
    ]


def _all_cpu(sample: ServerSample) -> float:
    return sample.cpu_micros + sample.server_cpu_micros


def _worker_cpu(sample: ServerSample) -> float:
    return sample.cpu_micros


def _costs(
    name: str,
    mine: Sequence[ServerSample],
    theirs: Sequence[ServerSample],
    figure: Callable[[ServerSample], float],
    target: Target | None = None,
) -> Finding:
    return Finding(
        name,
        "µs/job",
        Spread.of(map(figure, mine)),
        None,
        "PgQueuer",
        Spread.of(map(figure, theirs)),
        Spread.of(figure(one) / figure(other) for one, other in zip(mine, theirs, strict=True)),
        target,
    )
