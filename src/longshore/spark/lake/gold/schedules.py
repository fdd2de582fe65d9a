"""Gold: how late the runs of schedules were made and began."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import JobStatus
from longshore.spark.lake.silver import seconds_between


def per_day(jobs: DataFrame) -> DataFrame:
    """Of runs that ended on each day; one made by hand has no planned time, and is not late."""
    made = seconds_between(F.col("planned_at"), F.col("created_at"))
    began = seconds_between(F.col("planned_at"), F.col("started_at"))
    status = F.col("status")
    return (
        jobs.where(F.col("schedule_id").isNotNull())
        .groupBy("event_date", "schedule_id", "queue", "type")
        .agg(
            F.count(F.lit(1)).alias("runs"),
            F.count("started_at").alias("started"),
            F.count_if(status == JobStatus.COMPLETED.value).alias("completed"),
            F.count_if(status == JobStatus.DEAD.value).alias("dead"),
            F.percentile(made, 0.5).alias("made_late_p50"),
            F.max(made).alias("made_late_most"),
            F.percentile(began, 0.5).alias("late_p50"),
            F.percentile(began, 0.95).alias("late_p95"),
            F.max(began).alias("late_most"),
        )
    )
