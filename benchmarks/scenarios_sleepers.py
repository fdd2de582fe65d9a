"""Ten thousand sleeping jobs in one worker: its memory, and whether every lease is renewed in time."""

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
    """The measurements of one run."""

    peak_megabytes: float
    least_left: float
    """The shortest remaining lease in seconds, over all checks."""
    looks: int
    cpu_seconds: float


def sleeping(databases: Databases) -> list[Finding]:
    """Leases of ten seconds, renewed several times. Raise if a job was claimed twice or charged a crash."""
    scale = databases.scale
    slept = _slept(databases, scale.sleepers, scale.slept_seconds)
    name = f"{scale.sleepers:,} sleeping jobs in one worker"
    return [
        Finding(f"{name}, peak memory", "MB", Spread.of([slept.peak_megabytes]), target=Target("<", 300, "MB")),
        Finding(
            f"shortest remaining lease of {_LOCK_SECONDS} s, in {slept.looks} checks",
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
            raise RuntimeError(f"not every job ran once and completed (status, executions, crashes, jobs): {ends}")
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
