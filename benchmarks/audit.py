"""A process that audits synthetic histories of growing length, and reports time and memory.

Run as `python -m benchmarks.audit FOLDER EVENTS…`; it prints one line of JSON per length.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.lake import peak_bytes
from benchmarks.lake_synthetic import EVENTS_PER_JOB, synthetic_events
from longshore.spark.audit.audit import from_history, run_audit
from longshore.spark.spark_session import pipeline_session

_DAYS = 30.0


def main(folder: Path, lengths: list[int]) -> None:
    """Audit the shortest once beforehand as a warm-up."""
    spark = pipeline_session()
    for length in lengths:
        write_history(spark, folder / str(length), length)
    measured(spark, folder / str(lengths[0]))
    for length in lengths:
        print(json.dumps(measured(spark, folder / str(length))), flush=True)
    spark.stop()


def write_history(spark: SparkSession, folder: Path, events: int) -> None:
    """Write events as in a lake."""
    jobs = round(events / EVENTS_PER_JOB)
    synthetic_events(spark, 0, jobs, since=0.0, days=_DAYS).write.mode("overwrite").parquet(str(folder))


def measured(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Time one audit."""
    began = perf_counter()
    report = run_audit(from_history(spark.read.parquet(str(folder))))
    seconds = perf_counter() - began
    assert report.clean, report.listed(5)
    return {"events": report.events, "jobs": report.jobs, "seconds": round(seconds, 2), "peak_bytes": peak_bytes(spark)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(length) for length in sys.argv[2:]])
