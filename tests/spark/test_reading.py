"""`spark.read.format("longshore")`: jobs, events and logs as DataFrames, with nothing to register."""

from typing import TYPE_CHECKING

import pytest

from tests.spark.stored import DONE, JOBS, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: "SparkSession", url: str, table: str, **options: str) -> "DataFrame":
    return spark.read.format("longshore").option("url", url).options(**options).load(table)


async def test_jobs_events_and_logs_are_read(spark: "SparkSession", store_url: str) -> None:
    await fill(store_url)
    jobs = {row["id"]: row for row in read(spark, store_url, "jobs").collect()}
    assert len(jobs) == JOBS
    job = jobs["job-1"]
    assert (job.queue, job.type, job.tags, bytes(job.payload)) == ("queue-1", "mail", ["a", "b"], b'{"to": "ada"}')
    assert (job.timeout, job.lifo, jobs["job-0"].delay) == (1.5, False, 90.0)
    assert jobs["job-0"].tags == []
    events = read(spark, store_url, "events", partitions="3")
    assert events.rdd.getNumPartitions() == 3
    counts = {row["event"]: row["count"] for row in events.groupBy("event").count().collect()}
    assert counts == {
        "job.added": JOBS,
        "job.delayed": 1,
        "job.active": DONE,
        "job.log_added": DONE,
        "job.completed": DONE,
    }
    logs = read(spark, store_url, "logs", columns="message,job_id").collect()
    assert logs[0].__fields__ == ["message", "job_id"]
    assert all(row.message == f"about {row.job_id}" for row in logs)
    assert len(logs) == DONE


async def test_filters_are_pushed_to_the_store_and_the_rest_stays_with_spark(
    spark: "SparkSession", store_url: str
) -> None:
    await fill(store_url)
    jobs = read(spark, store_url, "jobs")
    wanted = jobs.where(
        "queue = 'queue-1' AND type IN ('mail', 'text') AND status = 'INITIAL_PENDING' AND job_seq >= 1"
        " AND created_at > timestamp '2020-01-01' AND array_contains(tags, 'a') AND id LIKE 'job-%'"
    )
    plan = wanted._jdf.queryExecution().executedPlan().toString()
    found = {row["id"] for row in wanted.select("id").collect()}
    by_hand = {
        row["id"]
        for row in jobs.collect()
        if row["queue"] == "queue-1" and "a" in row["tags"] and row["status"] == "INITIAL_PENDING"
    }
    assert found == by_hand
    assert found
    (left_to_spark,) = [line for line in plan.splitlines() if "Filter (" in line]
    assert "tags#" in left_to_spark
    assert not [name for name in ("queue#", "type#", "status#", "job_seq#", "created_at#") if name in left_to_spark]


async def test_a_session_that_offers_no_filters_reads_the_same(spark: "SparkSession", store_url: str) -> None:
    await fill(store_url)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert read(spark, store_url, "jobs").where("status = 'COMPLETED'").count() == DONE
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_an_impossible_read_is_refused_with_a_reason(spark: "SparkSession", tmp_path: object) -> None:
    for url, table, options, words in (
        ("sqlite:///jobs.db", "job", {}, r"path: 'job' is not a table of a queue; use load\(\"jobs\"\)"),
        (
            "sqlite:///jobs.db",
            "jobs",
            {"columns": "id,nam"},
            "columns: 'nam' is not a column of jobs, which has uid, id",
        ),
        ("memory://", "jobs", {}, "url: memory:// exists in one process only"),
        ("", "jobs", {}, "url: is missing"),
        (f"sqlite:///{tmp_path}/none.db", "jobs", {}, ".*none.db does not exist; check the address"),
        ("sqlite:///jobs.db", "jobs", {"partitions": "0"}, "partitions: must be a whole number from 1"),
    ):
        with pytest.raises(Exception, match=words):
            read(spark, url, table, **options).collect()
