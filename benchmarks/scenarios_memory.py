"""Peak memory of a process that enqueues a million jobs."""

from __future__ import annotations

from benchmarks.databases import Databases
from benchmarks.measuring import Spread
from benchmarks.reporting import Finding, Target


def memory(databases: Databases) -> list[Finding]:
    """One new process, batches of 1,000; it fills the file that other scenarios use."""
    _, filled = databases.filling
    return [
        Finding(
            f"peak memory of a process that enqueues {filled.jobs:,} jobs",
            "MB",
            Spread.of([filled.peak_megabytes]),
            target=Target("<", 200, "MB"),
            cpu_micros=filled.cpu_seconds / filled.jobs * 1e6,
        )
    ]
