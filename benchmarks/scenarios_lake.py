"""The lake: ten million events from bronze to gold, the cost of one hundredth more, and the driver's memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.databases import Databases
from benchmarks.measuring import Spread
from benchmarks.reporting import Finding, Target


def spark_lake(databases: Databases) -> list[Finding]:
    """Run in a separate process with its own Java."""
    events = databases.scale.lake_events
    with tempfile.TemporaryDirectory(prefix="longshore-lake-", dir=databases.folder) as folder:
        command = [sys.executable, "-m", "benchmarks.lake", folder, str(events)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    shown = f"{events:,} events"
    return [
        _seconds(f"{shown} from bronze to gold", found["full"]["seconds"]),
        _seconds("their audit", found["audited"]),
        _increment(found),
        Finding(
            f"peak memory of the driver, {shown}",
            "MB",
            Spread.of([found["peak_bytes"] / 1e6]),
            target=Target("<", 2000, "MB"),
        ),
        *(_beside_duckdb(name, *seconds) for name, seconds in found["asked"].items()),
    ]


def _beside_duckdb(name: str, by_spark: float, by_duckdb: float) -> Finding:
    """For information: on one machine DuckDB is much faster."""
    return Finding(
        f"{name}, same files",
        "s",
        Spread.of([by_spark]),
        compared_with="DuckDB",
        reference=Spread.of([by_duckdb]),
        ratio=Spread.of([by_spark / by_duckdb]),
    )


def _increment(found: dict[str, Any]) -> Finding:
    more, full = found["more"]["seconds"], found["full"]["seconds"]
    return Finding(
        f"{found['more']['events']:,} more events, start-up not counted",
        "s",
        Spread.of([more]),
        compared_with="all of them",
        reference=Spread.of([full]),
        ratio=Spread.of([more / full]),
        target=Target("≤", 0.1),
    )


def _seconds(name: str, seconds: float) -> Finding:
    return Finding(name, "s", Spread.of([seconds]))
