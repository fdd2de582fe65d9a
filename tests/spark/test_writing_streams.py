"""`df.writeStream.format("longshore")`: every batch becomes jobs once, whatever becomes of the driver."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from longshore.spark.sink import enqueue_report, run_of
from tests.spark.test_writing import jobs_in, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Orders:
    """Files dropped into a folder; a stream enqueues jobs from them, one batch per file."""

    def __init__(self, spark: "SparkSession", folder: Path, url: str) -> None:
        self._spark = spark
        self._folder = folder
        self._url = url
        self._dropped = 0
        (folder / "orders").mkdir()

    def drop(self, numbers: range, attempts: int = 1) -> None:
        path = self._folder / "orders" / f"{self._dropped:04}.json"
        rows = (json.dumps({"number": number, "attempts": attempts}) for number in numbers)
        path.write_text("\n".join(rows))
        self._dropped += 1
        os.utime(path, (self._dropped, self._dropped))  # a stream takes the oldest first

    def run(self, **options: str) -> "StreamingQuery":
        """All there is now; the query has ended."""
        files = self._spark.readStream.schema("number bigint, attempts int").option("maxFilesPerTrigger", "1")
        jobs = files.json(str(self._folder / "orders")).selectExpr(
            "'deliver' AS type", "'orders' AS queue", "named_struct('order', number) AS data", "attempts"
        )
        query = (
            jobs.writeStream.format("longshore")
            .option("url", self._url)
            .options(**options)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start("jobs")
        )
        assert query.awaitTermination(120)
        return query

    def forget_the_last_batch(self) -> None:
        """As if the driver had been killed between the sink's commit and Spark's own note of it."""
        commits = self._folder / "checkpoint" / "commits"
        last = max(int(note.name) for note in commits.iterdir() if note.name.isdigit())
        for note in (commits / str(last), commits / f".{last}.crc"):
            note.unlink(missing_ok=True)


async def orders_in(url: str) -> list[int]:
    return sorted(job.data["order"] for job in await jobs_in(url))


@pytest.fixture
def orders(spark: "SparkSession", tmp_path: Path, store_url: str) -> Orders:
    return Orders(spark, tmp_path, store_url)


async def test_each_batch_of_a_stream_becomes_jobs_once_even_if_it_is_replayed(orders: Orders, store_url: str) -> None:
    await make(store_url)
    orders.drop(range(30))
    orders.drop(range(30, 50))
    query = orders.run()
    assert await orders_in(store_url) == list(range(50))
    assert [enqueue_report(store_url, run_of(query.id, batch)) for batch in (0, 1, 2)] == [(30, 30), (20, 20), None]
    orders.forget_the_last_batch()
    orders.drop(range(50, 60))
    again = orders.run()  # batch 1 once more, and batch 2
    assert again.id == query.id
    assert await orders_in(store_url) == list(range(60))
    assert enqueue_report(store_url, run_of(query.id, 1)) == (20, 20)


async def test_a_batch_with_a_row_that_cannot_be_a_job_brings_none_and_the_batches_before_stay(
    spark: "SparkSession", tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    await make(url)
    orders = Orders(spark, tmp_path, url)
    orders.drop(range(10))
    orders.drop(range(10, 20), attempts=-1)
    with pytest.raises(Exception, match="column attempts: must be"):
        orders.run()
    assert await orders_in(url) == list(range(10))
    (tmp_path / "orders" / "0001.json").write_text(json.dumps({"number": 10, "attempts": 2}))
    orders.run()  # the cause is gone: the same batch is tried again
    assert await orders_in(url) == list(range(11))


def test_invalid_options_of_a_stream_are_refused(spark: "SparkSession", tmp_path: Path) -> None:
    orders = Orders(spark, tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    orders.drop(range(3))
    with pytest.raises(Exception, match="runId: is for one write; a stream's batches are named by its checkpoint"):
        orders.run(runId="mine")
    assert not (tmp_path / "jobs.db").exists()
