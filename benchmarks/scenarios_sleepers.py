"""Ten thousand jobs that sleep in one worker: the memory it takes, and whether every lease is renewed in time."""

from __future__ import annotations

import asyncio
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

import apsw

from benchmarks import bare_sql
from benchmarks.databases import Databases
from benchmarks.draining import fill
from benchmarks.measuring import Spread
from benchmarks.processes import Companion
from benchmarks.reporting import Finding, Target
from longshore.backends.connect import connect

_LOCK_SECONDS = 10
_BETWEEN_LOOKS = 0.25

_LEAST_LEFT = "SELECT min(lease_expires_at), count(*) FROM jobs WHERE status = 'RUNNING'"
_ENDS = "SELECT status, executions, crashes, count(*) FROM jobs GROUP BY status, executions, crashes"


class Slept(NamedTuple):
    """How a night went."""

    peak_megabytes: float
    least_left: float
    """Seconds that the lease nearest to its end had left, at the worst of all looks."""
    looks: int
    cpu_seconds: float


def sleeping(databases: Databases) -> list[Finding]:
    """Leases of ten seconds, renewed several times; raises if a job was claimed twice or counted a crash."""
    scale = databases.scale
    slept = _slept(databases, scale.sleepers, scale.slept_seconds)
    name = f"{scale.sleepers:,} sleeping jobs in one worker"
    return [
        Finding(f"{name}, its peak memory", "MB", Spread.of([slept.peak_megabytes]), target=Target("<", 300, "MB")),
        Finding(
            f"the least that any lease of {_LOCK_SECONDS} s had left, in {slept.looks} looks",
            "s",
            Spread.of([slept.least_left]),
            target=Target("≥", 0, "s"),
            cpu_micros=slept.cpu_seconds / scale.sleepers * 1e6,
        ),
    ]


def _slept(databases: Databases, jobs: int, seconds: int) -> Slept:
    with databases.scratch() as path:
        url = f"sqlite:///{path}"
        asyncio.run(fill(connect(url), jobs))
        with (
            bare_sql.open_file(path) as observer,
            Companion("benchmarks.workers", "sleep", url, jobs, seconds, _LOCK_SECONDS) as worker,
        ):
            worker.hear()
            left = _least_left_meanwhile(observer, jobs, monotonic() + seconds - 2)
            said = worker.hear()
            ends: list[Any] = observer.execute(_ENDS).fetchall()
        if ends != [("COMPLETED", 1, 0, jobs)]:
            raise RuntimeError(f"not every job was run once and completed (status, executions, crashes, jobs): {ends}")
        return Slept(said["peak_megabytes"], min(left), len(left), said["cpu_seconds"])


def _least_left_meanwhile(observer: apsw.Connection, jobs: int, until: float) -> list[float]:
    left = []
    while monotonic() < until:
        for expires_at, running in observer.execute(_LEAST_LEFT):
            if running != jobs:
                raise RuntimeError(f"{running} of {jobs} jobs are running")
            left.append((expires_at - bare_sql.micros_now()) / 1e6)
        Event().wait(_BETWEEN_LOOKS)
    return left
