"""Silver: one row for each job, as far as its course is known."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import FINAL, JobStatus
from longshore.spark.lake.attempts import seconds_between
from longshore.spark.lake.errors import error_type_of, fingerprint_of
from longshore.spark.lake.steps import date_of, one_of

_PLANNED = r"@([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z)$"
_KNOWN = ("job_id", "queue", "type", "key", "schedule_id", "parent_id")


def jobs_of(course: DataFrame) -> DataFrame:
    """One row for each job: where it stands and what it took to come there."""
    moves = F.col("to_status").isNotNull()
    starts = F.col("to_status") == JobStatus.RUNNING.value
    attempt = F.col("mark").isNotNull() & F.col("before.begun")
    last_move = F.max_by(F.struct("to_status", "occurred_at"), F.when(moves, F.col("job_seq")))
    summed = course.groupBy("job_uid").agg(
        *(F.max(name).alias(name) for name in _KNOWN),
        last_move.alias("last"),
        F.min(F.when(F.col("event") == "job.added", F.col("occurred_at"))).alias("created_at"),
        F.min_by(F.when(starts, F.col("occurred_at")), F.when(starts, F.col("job_seq"))).alias("started_at"),
        F.count_if(starts).alias("attempts"),
        F.count_if(moves & (F.col("event") == "job.failed")).alias("failures"),
        F.count_if(F.col("event") == "job.stalled").alias("crashes"),
        F.count_if(F.col("event") == "job.released").alias("releases"),
        _total(starts, F.col("eligible_at"), F.col("occurred_at")).alias("waited_seconds"),
        _total(attempt, F.col("before.occurred_at"), F.col("occurred_at")).alias("ran_seconds"),
        F.max_by("error", F.when(F.col("error").isNotNull(), F.col("job_seq"))).alias("error"),
        F.min("job_seq").alias("first_seq"),
        F.max("job_seq").alias("last_seq"),
    )
    return summed.transform(_finished)


def _total(where: Column, start: Column, end: Column) -> Column:
    """Added as whole microseconds: fractions would add up differently in another order."""
    micros = F.when(where, F.unix_micros(end) - F.unix_micros(start))
    return F.coalesce(F.sum(micros), F.lit(0)) / F.lit(1_000_000.0)


def _finished(jobs: DataFrame) -> DataFrame:
    status = F.col("last.to_status")
    finalized = F.when(one_of(status, FINAL), F.col("last.occurred_at"))
    failed = status != JobStatus.COMPLETED.value
    return (
        jobs.withColumn("status", status)
        .withColumn("finalized_at", finalized)
        .withColumn("lifetime_seconds", seconds_between(F.col("created_at"), F.col("finalized_at")))
        .withColumn("planned_at", _planned_at())
        .withColumn("error", F.when(failed, F.col("error")))
        .withColumn("error_type", error_type_of(F.col("error")))
        .withColumn("fingerprint", fingerprint_of(F.col("error")))
        .withColumn("event_date", date_of(F.col("finalized_at")))
    )


def _planned_at() -> Column:
    """The time that the run of a schedule was planned for is in its id; one made by hand has none."""
    planned = F.try_to_timestamp(F.regexp_extract("job_id", _PLANNED, 1))
    return F.when(F.col("schedule_id").isNotNull(), planned)
