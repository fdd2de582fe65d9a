"""Silver: one row for each attempt, from its claim to whatever ended it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import JobStatus
from longshore.spark.lake.errors import error_type_of, fingerprint_of
from longshore.spark.lake.steps import date_of


def seconds_between(start: Column, end: Column) -> Column:
    """As the times say; clocks may have been set back in between."""
    return (F.unix_micros(end) - F.unix_micros(start)) / F.lit(1_000_000.0)


def ended_attempts(course: DataFrame) -> DataFrame:
    """Attempts that a step ended: by what became of the job, or, if the log is out of order, by the next claim."""
    ended = course.where(F.col("mark").isNotNull() & F.col("before.begun"))
    return ended.select(*_attempt("before"), *_ending(), date_of(F.col("occurred_at")).alias("event_date"))


def running_attempts(course: DataFrame) -> DataFrame:
    """Attempts that nothing has ended yet; a job that is over has none."""
    last = Window.partitionBy("job_uid").orderBy("job_seq")
    marks = course.where(~F.col("over") & F.col("mark").isNotNull()).withColumn("next", F.lead("job_seq").over(last))
    running = marks.where(F.col("next").isNull() & F.col("mark.begun"))
    nothing = {"ended_at": "timestamp", "ran_seconds": "double", "outcome": "string", "error": "string"}
    nothing |= {"error_type": "string", "fingerprint": "string", "ended_seq": "bigint", "event_date": "date"}
    columns = [F.lit(None).cast(kind).alias(name) for name, kind in nothing.items()]
    return running.select(*_attempt("mark"), *columns, F.lit(False).alias("final"))


def _attempt(mark: str) -> list[Column]:
    begun = F.col(mark)
    return [
        *(F.col(name) for name in ("job_uid", "job_id", "queue", "type", "key", "schedule_id")),
        *(begun[name].alias(name) for name in ("epoch", "execution", "worker", "eligible_at")),
        begun["occurred_at"].alias("started_at"),
        seconds_between(begun["eligible_at"], begun["occurred_at"]).alias("waited_seconds"),
        begun["job_seq"].alias("started_seq"),
    ]


def _ending() -> list[Column]:
    return [
        F.col("occurred_at").alias("ended_at"),
        seconds_between(F.col("before.occurred_at"), F.col("occurred_at")).alias("ran_seconds"),
        _outcome().alias("outcome"),
        F.col("error"),
        error_type_of(F.col("error")).alias("error_type"),
        fingerprint_of(F.col("error")).alias("fingerprint"),
        F.col("final"),
        F.col("job_seq").alias("ended_seq"),
    ]


def _outcome() -> Column:
    status, event = F.col("to_status"), F.col("event")
    return (
        F.when(status == JobStatus.COMPLETED.value, "completed")
        .when(status == JobStatus.FAILED_RETRY.value, "failed")
        .when(event == "job.stalled", "crashed")
        .when(status == JobStatus.UNKNOWN_RETRY.value, "released")
        .when(status == JobStatus.STOPPED.value, "stopped")
        .otherwise("unknown")
    )
