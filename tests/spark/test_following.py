"""`spark.readStream.format("longshore")`: the log as it grows, each event once."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from longshore.backends.connect import connect
from longshore.core.errors import CursorExpired, InvalidArgument
from longshore.core.job import Job
from longshore.spark.options import Address
from longshore.spark.source import EventFollower
from tests.spark.stored import complete_some, fill
from tests.spark.test_bulk_reading import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def follower(url: str, *, at_most: int | None = None, starting: str = "earliest") -> EventFollower:
    return EventFollower(Address(url, {}), ["job_id", "event", "number"], parts=3, at_most=at_most, starting=starting)


def between(reader: EventFollower, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = reader.partitions(start, end)
    return [number for part in parts for batch in reader.read(part) for number in batch.column("number").to_pylist()]


async def test_batches_of_at_most_so_many_events_follow_one_another_without_gap_or_overlap(store_url: str) -> None:
    await fill(store_url)
    reader = follower(store_url, at_most=40)
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    offset = reader.initialOffset()
    batches = []
    while (end := reader.latestOffset(offset, ReadMaxRows(40))) != offset:
        batches.append(between(reader, offset, end))
        assert batches[-1] == between(reader, offset, end)  # what is replayed is the same
        offset = end
    assert [len(batch) for batch in batches] == [40, 40, 40, EVENTS - 120]
    assert len({number for batch in batches for number in batch}) == EVENTS


async def test_an_available_now_run_ends_where_the_log_ended_at_its_start(store_url: str) -> None:
    await fill(store_url)
    reader = follower(store_url)
    reader.prepareForTriggerAvailableNow()
    async with connect(store_url) as backend:
        await complete_some(backend, 5)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert len(between(reader, reader.initialOffset(), end)) == EVENTS
    assert reader.latestOffset(end, ReadAllAvailable()) == end


async def test_following_starts_at_the_given_position(store_url: str) -> None:
    await fill(store_url)
    latest = follower(store_url, starting="latest").initialOffset()
    async with connect(store_url) as backend:
        cursor = (await backend.read_events(limit=100))[-1].cursor
        await complete_some(backend, 1)
    reader = follower(store_url, starting=cursor)
    end = reader.latestOffset(latest, ReadAllAvailable())
    assert len(between(reader, latest, end)) == 3
    assert len(between(reader, reader.initialOffset(), end)) == EVENTS - 100 + 3
    with pytest.raises(InvalidArgument, match="must be the cursor of an event"):
        follower(store_url, starting="yesterday").initialOffset()
    with pytest.raises(CursorExpired, match="from another event log"):
        follower(store_url, starting="00000000-5").initialOffset()


async def test_events_of_a_transaction_that_commits_late_arrive_and_arrive_once(postgres_url: str) -> None:
    await fill(postgres_url)
    reader = follower(postgres_url)
    start = reader.initialOffset()
    async with connect(postgres_url) as backend:
        async with await psycopg.AsyncConnection.connect(postgres_url) as late:
            await backend.enqueue_jobs([Job(id="late", type="mail")], connection=late)  # its number is taken here
            await complete_some(backend, 4)
            before = reader.latestOffset(start, ReadAllAvailable())
            seen = between(reader, start, before)
        await complete_some(backend, 1)
    end = reader.latestOffset(before, ReadAllAvailable())
    later = between(reader, before, end)
    assert len(seen) == EVENTS
    assert len(later) == 1 + 5 * 3
    assert not set(seen) & set(later)


async def test_a_stream_that_runs_gets_the_events_of_a_transaction_that_was_held_open(
    spark: "SparkSession", postgres_url: str, tmp_path: Path
) -> None:
    """A following stream neither skips these events nor reads any twice."""
    await fill(postgres_url)
    came: list[tuple[str, int]] = []

    def take(batch: "DataFrame", _number: int) -> None:
        came.extend((row["job_id"], row["number"]) for row in batch.collect())

    stream = spark.readStream.format("longshore").options(url=postgres_url, columns="job_id,number").load("events")
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path)).start()
    try:
        async with connect(postgres_url) as backend:
            async with await psycopg.AsyncConnection.connect(postgres_url) as late:
                await backend.enqueue_jobs([Job(id="late", type="mail")], connection=late)
                await complete_some(backend, 4)
                await until(lambda: len(came) >= EVENTS, query)
                query.processAllAvailable()
                assert len(came) == EVENTS  # no later event while the transaction is open
            await until(lambda: len(came) >= EVENTS + 1 + 4 * 3, query)
            query.processAllAvailable()
    finally:
        query.stop()
    assert len(came) == len({number for _, number in came}) == EVENTS + 1 + 4 * 3
    assert "late" in {job_id for job_id, _ in came}


async def until(seen: Callable[[], bool], query: "StreamingQuery") -> None:
    """Within the patience of the test."""
    while not seen():
        assert query.exception() is None
        await asyncio.to_thread(query.awaitTermination, 1)


def run_once(spark: "SparkSession", url: str, lake: Path) -> list[int]:
    """The sizes of its batches."""
    events = spark.readStream.format("longshore").options(url=url, maxEventsPerBatch="60", partitions="2")
    query = (
        events.load("events")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(lake / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(lake / "events"))
    )
    assert query.awaitTermination(120)
    return [int(progress["numInputRows"]) for progress in query.recentProgress if progress["numInputRows"]]


async def test_a_stream_resumes_from_its_checkpoint(spark: "SparkSession", store_url: str, tmp_path: Path) -> None:
    await fill(store_url)
    assert run_once(spark, store_url, tmp_path) == [60, 60, EVENTS - 120]
    async with connect(store_url) as backend:
        await complete_some(backend, 5)
    assert run_once(spark, store_url, tmp_path) == [15]
    lake = spark.read.parquet(str(tmp_path / "events"))
    assert lake.count() == lake.select("number").distinct().count() == EVENTS + 15


def test_only_the_log_can_be_followed(spark: "SparkSession", tmp_path: Path) -> None:
    stream = spark.readStream.format("longshore").option("url", f"sqlite:///{tmp_path}/jobs.db").load("jobs")
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="'jobs' cannot be followed"):
        query.awaitTermination(60)
