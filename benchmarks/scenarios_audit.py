"""The audit: the time per event in a history of ten million, compared with one million."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from benchmarks.databases import Databases
from benchmarks.measuring import Spread
from benchmarks.reporting import Finding, Target


def spark_audit(databases: Databases) -> list[Finding]:
    """Run in a separate process with its own Java; the short history is audited once to warm up."""
    most = databases.scale.lake_events
    with tempfile.TemporaryDirectory(prefix="longshore-audit-", dir=databases.folder) as folder:
        command = [sys.executable, "-m", "benchmarks.audit", folder, str(most // 10), str(most)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    short, long = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    per_event = [found["seconds"] / found["events"] * 1e6 for found in (short, long)]
    return [
        Finding(
            f"per event, audit of {long['events']:,}",
            "µs",
            Spread.of([per_event[1]]),
            compared_with=f"audit of {short['events']:,}",
            reference=Spread.of([per_event[0]]),
            ratio=Spread.of([per_event[1] / per_event[0]]),
            target=Target("≤", 1.2),
        ),
        Finding(
            "peak memory of the driver", "MB", Spread.of([long["peak_bytes"] / 1e6]), target=Target("<", 2000, "MB")
        ),
    ]
