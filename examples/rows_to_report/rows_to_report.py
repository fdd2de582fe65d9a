"""A DataFrame becomes jobs; they run, and their history is copied to a lake, audited and reported."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from longshore import Harbor, connect, current_job
from longshore.errors import Fatal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).resolve().parent
URL = f"sqlite:///{HERE / 'parcels.db'}"
LAKE = HERE / "lake"
REPORT = HERE / "report"
ROWS = 100_000

harbor = Harbor(URL)


@harbor.task(name="weigh", queue="parcels", attempts=2)
async def weigh(parcel: int, region: str) -> float:
    """Weigh a parcel; one in a thousand fails always, and one in ten only at the first attempt."""
    if parcel % 1000 == 13:
        raise Fatal(f"parcel {parcel} has no label")
    if parcel % 10 == 0 and current_job().executions == 1:
        raise ConnectionError(f"the scale of {region} does not answer")
    return parcel % 70 / 7


def parcels(spark: SparkSession, rows: int) -> DataFrame:
    """One row per parcel, as a table of a warehouse might have."""
    return spark.range(rows, numPartitions=4).selectExpr(
        "'weigh' AS type",
        "'parcels' AS queue",
        "named_struct('parcel', id, 'region', concat('region-', id % 5)) AS data",
        "2 AS attempts",
    )


async def make_the_store() -> None:
    """Create the store; Spark writes only to an existing one."""
    async with connect(URL) as backend:
        await backend.count_jobs()


async def work() -> int:
    """Run a worker until the queue is empty."""
    async with harbor:
        return await harbor.run_until_empty(["parcels"], concurrency=500)


def main(rows: int) -> None:
    """Run all steps, from rows to a page."""
    from longshore.spark import (
        Lake,
        enqueue_report,
        from_store,
        pipeline_session,
        run_audit,
        run_pipeline,
        write_report,
    )

    asyncio.run(make_the_store())
    spark = pipeline_session()
    try:
        parcels(spark, rows).write.format("longshore").options(url=URL, runId="parcels").mode("append").save("jobs")
        came = enqueue_report(URL, "parcels")
        assert came is not None  # written now or by an earlier run of this program
        print(f"{came.offered:,} rows became jobs")
        print(f"{asyncio.run(work()):,} executions")
        lake = run_pipeline(URL, str(LAKE), spark=spark)
        print(f"{lake.events:,} events in the lake, version {lake.version}")
        found = run_audit(from_store(spark, URL))
        verdict = "no findings" if found.clean else str(found.counts)
        print(f"{found.events:,} events of {found.jobs:,} jobs audited: {verdict}")
        page = write_report(spark, Lake.open(str(LAKE)), REPORT, title="Parcels").page
        print(f"open {page.relative_to(HERE)}")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
