"""A long history that nobody lived: as many events as wanted, made by Spark itself, landed as a store's would be."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake.bronze import Landing
from longshore.spark.lake.files import Files
from longshore.spark.lake.manifest import Receipt
from longshore.spark.options import Address

EVENTS_PER_JOB = 3.9
_START = 1_767_225_600_000_000  # the first of January 2026
_DAY = 86_400_000_000

_Life = tuple[tuple[str, str | None, str | None, int, float], ...]
"""Of each event: its name, from where, to where, in which claim, and how many seconds after the one before."""

_ADDED = ("job.added", None, "INITIAL_PENDING", 0, 0.0)
_FIRST = ("job.active", "INITIAL_PENDING", "RUNNING", 1, 4.0)
_DONE = ("job.completed", "RUNNING", "COMPLETED", 1, 9.0)
_FAILED = ("job.failed", "RUNNING", "FAILED_RETRY", 1, 3.0)
_DUE = ("job.promoted", None, None, 1, 0.0)
_AGAIN = ("job.active", "FAILED_RETRY", "RUNNING", 2, 30.0)
_DONE_AGAIN = ("job.completed", "RUNNING", "COMPLETED", 2, 7.0)
_LIVES: tuple[tuple[int, _Life], ...] = (
    (70, (_ADDED, _FIRST, _DONE)),
    (85, (_ADDED, _FIRST, _FAILED, _DUE, _AGAIN, _DONE_AGAIN)),
    (
        90,
        (
            _ADDED,
            _FIRST,
            ("job.stalled", "RUNNING", "UNKNOWN_RETRY", 1, 60.0),
            _DUE,
            ("job.active", "UNKNOWN_RETRY", "RUNNING", 2, 1.0),
            _DONE_AGAIN,
        ),
    ),
    (
        94,
        (
            _ADDED,
            _FIRST,
            _FAILED,
            _DUE,
            _AGAIN,
            ("job.failed", "RUNNING", "FAILED_RETRY", 2, 2.0),
            ("job.dead", "FAILED_RETRY", "DEAD", 2, 0.0),
        ),
    ),
    (98, (_ADDED, ("job.delayed", None, None, 0, 0.0), ("job.promoted", None, None, 0, 600.0), _FIRST, _DONE)),
    (100, (_ADDED, _FIRST, *(("job.log_added", None, None, 1, 1.0),) * 3, _DONE)),
)
"""Out of a hundred jobs, up to which number live such a life."""


def synthetic_events(spark: SparkSession, first_job: int, jobs: int, since: float, days: float) -> DataFrame:
    """The events of so many jobs, added evenly over so many days; times and lives depend on the job's number only."""
    one = spark.range(first_job, first_job + jobs).withColumnRenamed("id", "job_uid")
    draw = F.pmod(F.xxhash64("job_uid"), F.lit(100))
    life: Column = F.lit(None)
    for below, steps in reversed(_LIVES):
        life = F.when(draw < below, _array(steps)).otherwise(life) if below < 100 else _array(steps)
    place = (F.col("job_uid") - first_job) / F.lit(jobs)
    born = F.lit(_START) + F.floor((F.lit(since) + place * F.lit(days)) * _DAY)
    pace = F.lit(0.2) + F.pmod(F.xxhash64("job_uid", F.lit(1)), F.lit(1000)) / 500.0
    told = one.withColumn("born", born).withColumn("pace", pace).select("*", F.posexplode(life).alias("place", "step"))
    error = F.concat(
        F.lit('{"error": "ValueError: no row '), F.col("job_uid"), F.lit(' in the table", "final": false}')
    )
    tenant = F.concat(F.lit('{"key": "tenant-'), F.pmod(F.xxhash64("job_uid"), F.lit(50)), F.lit('"}'))
    worker = F.concat(F.lit("worker-"), F.pmod("job_uid", F.lit(20)))
    return told.select(
        F.lit(None).cast("bigint").alias("xid"),
        (F.col("job_uid") * 8 + F.col("place")).alias("number"),
        "job_uid",
        F.concat(F.lit("job-"), "job_uid").alias("job_id"),
        (F.col("place") + 1).cast("bigint").alias("job_seq"),
        F.concat(F.lit("queue-"), F.pmod("job_uid", F.lit(4))).alias("queue"),
        F.concat(F.lit("type-"), F.pmod("job_uid", F.lit(8))).alias("type"),
        "step.event",
        "step.from_status",
        "step.to_status",
        F.col("step.epoch").cast("bigint").alias("epoch"),
        F.col("step.epoch").cast("bigint").alias("execution"),
        F.when(F.col("step.epoch") > 0, worker).alias("assignee_id"),
        F.lit("").alias("actor"),
        F.timestamp_micros((F.col("born") + F.col("step.after") * F.col("pace") * 1_000_000).cast("bigint")).alias(
            "occurred_at"
        ),
        F.when(F.col("step.event") == "job.failed", error)
        .when(F.col("step.event") == "job.added", tenant)
        .alias("detail"),
    )


def _array(steps: _Life) -> Column:
    after = 0.0
    structs = []
    for event, source, target, epoch, wait in steps:
        after += wait
        structs.append(
            F.struct(
                F.lit(event).alias("event"),
                F.lit(source).cast("string").alias("from_status"),
                F.lit(target).cast("string").alias("to_status"),
                F.lit(epoch).alias("epoch"),
                F.lit(after).alias("after"),
            )
        )
    return F.array(*structs)


class SyntheticLanding(Landing):
    """Lands what is made up."""

    def __init__(self, spark: SparkSession, files: Files) -> None:
        super().__init__(spark, Address("", {}), files, "parquet")


def land_synthetic(
    spark: SparkSession, files: Files, events: int, *, batch: int, days: float, since: float = 0
) -> Receipt:
    """A batch of about so many events."""
    jobs = round(events / EVENTS_PER_JOB)
    first = batch * 100_000_000 + 1
    return SyntheticLanding(spark, files).land(synthetic_events(spark, first, jobs, since, days), batch)
