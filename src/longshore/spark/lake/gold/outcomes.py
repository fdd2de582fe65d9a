"""Gold: how attempts and jobs ended, and the rates of failures, crashes and retries."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import JobStatus
from longshore.spark.lake.silver import start_of

_OUTCOMES = ("completed", "failed", "crashed", "released", "stopped", "unknown")
_JOBS = {
    "jobs_completed": (JobStatus.COMPLETED,),
    "jobs_dead": (JobStatus.DEAD,),
    "jobs_cancelled": (JobStatus.STOPPED, JobStatus.UNSCHEDULED, JobStatus.UNKNOWN_STOPPED),
}


def place_of(moment: str) -> list[Column]:
    """The hour, queue, type and key that a row counts for."""
    hour = start_of(F.col(moment), 3600).alias("at")
    return [F.col("event_date"), hour, F.col("queue"), F.col("type"), F.coalesce("key", F.lit("")).alias("key")]


def per_hour(attempts: DataFrame, jobs: DataFrame) -> DataFrame:
    """Attempts and jobs that ended in each hour, for each queue, type and key."""
    one, none = F.lit(1), F.lit(0)
    ended_attempts = attempts.select(
        *place_of("ended_at"),
        one.alias("attempts"),
        *((F.col("outcome") == name).cast("int").alias(name) for name in _OUTCOMES),
        (F.col("epoch") > 1).cast("int").alias("retries"),
        *(none.alias(name) for name in ("jobs_finished", *_JOBS)),
    )
    ended_jobs = jobs.select(
        *place_of("finalized_at"),
        *(none.alias(name) for name in ("attempts", *_OUTCOMES, "retries")),
        one.alias("jobs_finished"),
        *(
            F.col("status").isin([s.value for s in statuses]).cast("int").alias(name)
            for name, statuses in _JOBS.items()
        ),
    )
    numbers = ("attempts", *_OUTCOMES, "retries", "jobs_finished", *_JOBS)
    summed = (
        ended_attempts.unionByName(ended_jobs)
        .groupBy("event_date", "at", "queue", "type", "key")
        .agg(*(F.sum(name).alias(name) for name in numbers))
    )
    rates = {"failure_rate": "failed", "crash_rate": "crashed", "retry_rate": "retries"}
    return summed.withColumns({rate: F.try_divide(F.col(of), F.col("attempts")) for rate, of in rates.items()})
