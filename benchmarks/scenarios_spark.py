"""Spark: reading compared with Spark's JDBC, writing compared with COPY, following into bronze."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Spread, paired_ratios
from benchmarks.postgres_scenery import add_waiting
from benchmarks.reporting import Finding, Target
from longshore.spark.spark_session import java_version, settle_java

_ROUNDS = 3
_FOLLOWED = 20
_JDBC = "Spark's JDBC, 4 partitions"


def spark_circumstances() -> str:
    """The versions of Spark, Java and DuckDB, for the report."""
    java = java_version(settle_java())
    return f"PySpark {version('pyspark')} on Java {java}, all on this machine; DuckDB {version('duckdb')}"


def spark_read(databases: Databases) -> list[Finding]:
    """Read a million events from each store; without the JDBC driver's jar there is no comparison."""
    events = databases.scale.many
    findings = [_read(f'`load("events")`, {events:,} of SQLite', f"sqlite:///{databases.many}", Target("≥", 0.7))]
    with databases.postgres.new() as url:
        add_waiting(url, events)
        findings.append(_read(f'`load("events")`, {events:,} of PostgreSQL', url, Target("≥", 0.4)))
    return findings


def _read(name: str, url: str, target: Target) -> Finding:
    found = _told_by("benchmarks.spark_reading", url, str(_ROUNDS))
    ours, *others = (_samples(found["events"], side) for side in found["sides"])
    if not others:
        print("no JDBC driver found, so there is no comparison; see benchmarks/README.md")
        return Finding(name, "rows/s", Spread.of(sample.rate for sample in ours))
    return _rates(name, ours, others[0], _JDBC, target)


def spark_write(databases: Databases) -> list[Finding]:
    """Write jobs with their events in one run, compared with bare COPY of the same rows in one transaction."""
    rows = databases.scale.written_rows
    with databases.postgres.new() as url, databases.postgres.new() as other:
        found = _told_by("benchmarks.spark_writing", url, other, str(rows), str(_ROUNDS))
    ours, bare = (_samples(rows, side) for side in found["sides"])
    return [_rates(f'`write.format("longshore")`, {rows:,} rows', ours, bare, "bare COPY", Target("≥", 0.3))]


def spark_follow(databases: Databases) -> list[Finding]:
    """The time from the commit of an event to the receipt of its batch in bronze, on each store."""
    target = Target("≤", 2, "s")
    findings = [_followed("SQLite", f"sqlite:///{databases.new_path()}", databases.folder, target)]
    with databases.postgres.new() as url:
        findings.append(_followed("PostgreSQL", url, databases.folder, target))
    return findings


def _followed(store: str, url: str, folder: Path, target: Target) -> Finding:
    with TemporaryDirectory(prefix="longshore-follow-", dir=folder) as lake:
        found = _told_by("benchmarks.spark_following", url, lake, str(_FOLLOWED))
    return Finding(f"from commit in {store} to bronze", "s", Spread.of(found["seconds"]), target=target)


def _rates(name: str, ours: Sequence[Sample], other: Sequence[Sample], compared: str, target: Target) -> Finding:
    reference = Spread.of(sample.rate for sample in other)
    mine = Spread.of(sample.rate for sample in ours)
    return Finding(name, "rows/s", mine, None, compared, reference, paired_ratios(ours, other), target)


def _samples(rows: int, seconds: Sequence[float]) -> list[Sample]:
    return [Sample(each, 0, 0, rows) for each in seconds]


def _told_by(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON output of a separate process with its own Java."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
