"""Jobs on Spark: many small jobs as rows of a batch, and one Spark application as a job."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from longshore import Harbor
from longshore.errors import JobFailed

if TYPE_CHECKING:  # a program that only enqueues needs no Spark
    from pyspark.sql import SparkSession

harbor = Harbor("memory://")
harbor.use_spark(  # on a cluster: master="spark://…", "yarn" or "k8s://…"
    master="local[2]",
    config={"spark.log.level": "OFF", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},  # starts sooner
)


@harbor.task(executor="spark", queue="scores", max_crashes=1)
def score(parcel: int) -> int:
    """Score one parcel, in a Spark task on any machine of the cluster."""
    if parcel == 13:
        raise ValueError("this parcel has no weight")
    if parcel == 666:
        os.kill(os.getpid(), signal.SIGSEGV)  # a library that crashes
    return parcel * parcel % 97


@harbor.spark_task(queue="reports")
def report(spark: SparkSession, upto: int) -> dict[str, int]:
    """A whole application: it receives a session, and its tasks are the job's progress."""
    numbers = spark.range(0, upto, 1, numPartitions=8)
    return {"even": numbers.filter("id % 2 = 0").count(), "all": numbers.count()}


async def main() -> None:
    """Score parcels in batches, then run the report."""
    async with harbor:
        handles = await score.enqueue_many([score.call(parcel) for parcel in range(1000)])
        async with harbor.worker(["scores"], concurrency=1000):  # the concurrency bounds the batch
            scores, failures = [], []
            for handle in handles:
                try:
                    scores.append(await handle.result(timeout=120))
                except JobFailed as failed:
                    job = await handle.job()
                    failures.append(
                        f"parcel {job.data['parcel']}: {failed.error.splitlines()[0]} (crashes: {job.crashes})"
                    )
        print(f"{len(scores)} parcels scored, {sum(scores)} in all")
        print("\n".join(failures))

        async with harbor.worker(["reports"], concurrency=1):  # each application has its own Java
            made = await report.enqueue(1_000_000)
            print(await made.result(timeout=120), (await made.job()).progress)


if __name__ == "__main__":  # needed: Spark's tasks import this file too
    asyncio.run(main())
