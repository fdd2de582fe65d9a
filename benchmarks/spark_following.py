"""A process that follows a store into bronze while jobs are added one by one, and reports the delay of each event.

Run as `python -m benchmarks.spark_following URL FOLDER EVENTS`; it prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from time import perf_counter

from pyspark.sql import DataFrame

from benchmarks.workload import new_job
from longshore.backends.connect import connect
from longshore.spark.lake.bronze import Landing
from longshore.spark.lake.lake import Lake
from longshore.spark.options import Address
from longshore.spark.spark_session import pipeline_session

_EVERY = "200 milliseconds"
_WARM_UP = 5
"""Events that are not counted: the first batches start Python workers and compile Java code."""
_PATIENCE = 120.0


class Landed:
    """The arrival time of each event in bronze."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self._more = threading.Condition()

    def add(self, rows: int) -> None:
        with self._more:
            self.at += [perf_counter()] * rows
            self._more.notify_all()

    def wait_for(self, count: int) -> None:
        with self._more:
            if not self._more.wait_for(lambda: len(self.at) >= count, _PATIENCE):
                raise RuntimeError(f"only {len(self.at)} of {count} events landed in {_PATIENCE:.0f} s")


def main(url: str, folder: str, events: int) -> None:
    """Commit each event at a random time after the previous one has arrived."""
    asyncio.run(_made(url))
    spark = pipeline_session("local[2]")
    landing = Landing(spark, Address(url, {}), Lake.open_or_new(folder, spark).files, "parquet")
    landed = Landed()

    def put(batch: DataFrame, number: int) -> None:
        landed.add(landing.land(batch, number).rows)

    stream = spark.readStream.format("longshore").option("url", url).load("events")
    query = (
        stream.writeStream.foreachBatch(put)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime=_EVERY)
        .start()
    )
    committed = asyncio.run(_add_one_by_one(url, events + _WARM_UP, landed))
    query.stop()
    spark.stop()
    took = [there - told for told, there in zip(committed, landed.at, strict=True)][_WARM_UP:]
    print(json.dumps({"events": len(took), "seconds": took}))


async def _made(url: str) -> None:
    async with connect(url) as backend:
        await backend.count_jobs()


async def _add_one_by_one(url: str, events: int, landed: Landed) -> list[float]:
    chance = random.Random(7)
    committed = []
    async with connect(url) as backend:
        for number in range(events):
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            await backend.enqueue_job(new_job(number))
            committed.append(perf_counter())
            await asyncio.to_thread(landed.wait_for, number + 1)
    return committed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
