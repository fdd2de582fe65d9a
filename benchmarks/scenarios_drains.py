"""A drain by one worker process, compared with PgQueuer: rate and CPU time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from benchmarks.databases import Databases
from benchmarks.draining import Line, drained, on_pgqueuer, on_postgres, on_sqlite
from benchmarks.measuring import Spread, alternate, paired_ratios
from benchmarks.postgres_costs import ServerSample
from benchmarks.reporting import Finding, Target

_USUAL, _BEST = 100, 500
"""Jobs per claim on both sides: a usual number, and the one at which both are fastest, to which the targets apply."""

_LineOf = Callable[[int], AbstractContextManager[Line]]


def drain_sqlite(databases: Databases) -> list[Finding]:
    """The product on SQLite, PgQueuer on PostgreSQL, its only store."""
    return _drains(databases, partial(on_sqlite, databases), faster=Target("≥", 2), cheaper=Target("≤", 70, "µs"))


def drain_postgres(databases: Databases) -> list[Finding]:
    """Both on the same server, each with its own database."""
    product = partial(on_postgres, databases.postgres)
    return _drains(databases, product, faster=Target("≥", 1.3), cheaper=Target("≤", 1))


def _drains(databases: Databases, product: _LineOf, *, faster: Target, cheaper: Target) -> list[Finding]:
    findings = []
    peer = partial(on_pgqueuer, databases.postgres)
    jobs = databases.scale.drained_jobs
    for at_once in (_USUAL, _BEST):
        aims = at_once == _BEST or None
        mine, theirs = alternate(
            databases.scale.drains, partial(_drain, product, jobs, at_once), partial(_drain, peer, jobs, at_once)
        )
        findings += [
            _rates(f"drain of {jobs:,} jobs by one worker, {at_once} at a time", mine, theirs, aims and faster),
            _costs("the same, CPU time of worker and database", mine, theirs, _all_cpu, aims and cheaper),
            _costs("the same, CPU time of the worker process alone", mine, theirs, _worker_cpu),
        ]
    return findings


def _drain(line_of: _LineOf, jobs: int, at_once: int) -> ServerSample:
    with line_of(jobs) as line:
        return drained(line, at_once)


def _rates(name: str, mine: Sequence[ServerSample], theirs: Sequence[ServerSample], target: Target | None) -> Finding:
    return Finding(
        name,
        "jobs/s",
        Spread.of(sample.rate for sample in mine),
        None,
        "PgQueuer",
        Spread.of(sample.rate for sample in theirs),
        paired_ratios(mine, theirs),
        target,
    )


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
