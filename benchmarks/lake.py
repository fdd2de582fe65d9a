"""A process that builds a lake from a synthetic history and reports its time and memory.

Run as `python -m benchmarks.lake FOLDER EVENTS`; it prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.lake_duckdb import asked
from benchmarks.lake_synthetic import land_synthetic
from longshore.spark.audit.audit import from_history, run_audit
from longshore.spark.lake.lake import Lake
from longshore.spark.lake.manifest import Receipt
from longshore.spark.lake.tables import EVENTS
from longshore.spark.pipeline import refresh_lake
from longshore.spark.spark_session import pipeline_session

DAYS = 30
_NOW = datetime(2026, 2, 1, tzinfo=UTC)


def main(folder: str, events: int) -> None:
    """Build the whole history, audit it, add one hundredth more, and run the queries."""
    begun = perf_counter()
    spark = pipeline_session()
    started = perf_counter() - begun
    files = Lake.open_or_new(folder, spark).files
    whole = land_synthetic(spark, files, events, batch=0, days=DAYS)
    full = _refreshed(spark, folder, whole)
    audited = _audited(spark, folder)
    little = land_synthetic(spark, files, events // 100, batch=1, days=0.25, since=DAYS - 0.3)
    more = _refreshed(spark, folder, little)
    found = {
        "started": started,
        "events": whole.rows,
        "full": full,
        "audited": audited,
        "more": more,
        "peak_bytes": peak_bytes(spark),
    }
    found["asked"] = asked(spark, folder)
    spark.stop()
    print(json.dumps(found))


def _refreshed(spark: SparkSession, folder: str, receipt: Receipt) -> dict[str, Any]:
    begun = perf_counter()
    steps: dict[str, float] = {}

    def tell(step: Any) -> None:
        steps[step.name] = round(step.seconds, 2)
        print(f"{step.name}: {step.rows:,} rows, {step.seconds:.1f} s", file=sys.stderr)

    lake = Lake.open_or_new(folder, spark)
    refresh_lake(spark, lake, [receipt], form="parquet", log="synthetic", made_at=_NOW, on_step=tell)
    return {"seconds": perf_counter() - begun, "events": receipt.rows, "steps": steps}


def _audited(spark: SparkSession, folder: str) -> float:
    """The seconds of an audit of all events."""
    begun = perf_counter()
    report = run_audit(from_history(Lake.open(folder, spark).table(spark, EVENTS)))
    assert report.clean, report.listed(5)
    return perf_counter() - begun


def peak_bytes(spark: SparkSession) -> int:
    """The peak memory of the driver's Java, which does Spark's work."""
    java: Any = spark.sparkContext._jvm
    pid = java.java.lang.ProcessHandle.current().pid()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
