"""A process that writes a DataFrame as jobs, alternating with bare COPY of the same jobs and events.

Run as `python -m benchmarks.spark_writing URL BARE_URL ROWS ROUNDS`, on two empty databases of PostgreSQL;
it prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from time import perf_counter

from pyspark.sql import DataFrame, SparkSession

from benchmarks.measuring import Sample, alternate
from benchmarks.postgres_bare_sql import BareQueue, bare_queue
from benchmarks.workload import QUEUE, TYPE
from longshore.core.validation import new_id
from longshore.spark.sink import enqueue_report
from longshore.spark.spark_session import session

PARTS = 4


def main(url: str, bare_url: str, rows: int, rounds: int) -> None:
    """Write `rows` jobs in each round."""
    spark = session("writing", master="local[2]", config={"spark.driver.memory": "1g", "spark.log.level": "ERROR"})
    with bare_queue(bare_url) as bare:
        found = alternate(rounds, partial(_written, spark, url, rows), partial(_copied, bare, rows))
    spark.stop()
    print(json.dumps({"rows": rows, "sides": [[sample.seconds for sample in side] for side in found]}))


def jobs_to_write(spark: SparkSession, rows: int) -> DataFrame:
    """The jobs of the benchmarks as a DataFrame."""
    return spark.range(rows, numPartitions=PARTS).selectExpr(
        f"'{TYPE}' AS type",
        f"'{QUEUE}' AS queue",
        "named_struct('image', id, 'width', 640, 'height', 480, 'format', 'webp') AS data",
    )


def _written(spark: SparkSession, url: str, rows: int) -> Sample:
    run = new_id()
    frame = jobs_to_write(spark, rows)
    began = perf_counter()
    frame.write.format("longshore").options(url=url, runId=run).mode("append").save("jobs")
    seconds = perf_counter() - began
    report = enqueue_report(url, run)
    assert report is not None
    assert report.inserted == rows
    return Sample(seconds, 0, 0, rows)


def _copied(bare: BareQueue, rows: int) -> Sample:
    (batch,) = bare.prepared(1, rows)
    began = perf_counter()
    bare.enqueue(batch)
    return Sample(perf_counter() - began, 0, 0, rows)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
