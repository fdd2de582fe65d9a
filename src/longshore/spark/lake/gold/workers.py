"""Gold: how busy each worker was in each hour, and how many jobs it had at once."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake.silver import date_of, start_of

_HOUR = 3600


def per_hour(attempts: DataFrame) -> DataFrame:
    """From attempts that ended; each counts in every hour that it reached into."""
    parts = attempts.transform(_cut_by_hours)
    hours = parts.groupBy("worker", "at").agg(F.count_if("ended").alias("attempts"), F.sum("micros").alias("busy"))
    joined = hours.join(parts.transform(_most_at_once), ["worker", "at"])
    day = joined.withColumn("event_date", date_of(F.col("at")))
    most = F.max("most_at_once").over(Window.partitionBy("worker", "event_date"))
    busy = F.col("busy") / F.lit(1_000_000.0)
    return day.select(
        "event_date",
        "at",
        "worker",
        "attempts",
        busy.alias("busy_seconds"),
        "most_at_once",
        (busy / (most * _HOUR)).alias("utilisation"),
    )


def _cut_by_hours(attempts: DataFrame) -> DataFrame:
    known = attempts.where(F.col("worker").isNotNull() & (F.col("ended_at") >= F.col("started_at")))
    hours = F.sequence(
        start_of(F.col("started_at"), _HOUR), start_of(F.col("ended_at"), _HOUR), F.expr("INTERVAL 1 HOUR")
    )
    cut = known.select("worker", "started_at", "ended_at", F.explode(hours).alias("at"))
    begin = F.greatest(F.unix_micros("started_at"), F.unix_micros("at"))
    hour_ends = F.unix_micros("at") + F.lit(_HOUR * 1_000_000)
    return cut.select(
        "worker",
        "at",
        begin.alias("begin"),
        F.least(F.unix_micros("ended_at"), hour_ends).alias("end"),
        (F.least(F.unix_micros("ended_at"), hour_ends) - begin).alias("micros"),
        (F.unix_micros("ended_at") < hour_ends).alias("ended"),
    )


def _most_at_once(parts: DataFrame) -> DataFrame:
    """One that ends when another begins makes room for it."""
    changes = parts.select("worker", "at", F.col("begin").alias("when"), F.lit(1).alias("change")).unionByName(
        parts.select("worker", "at", F.col("end").alias("when"), F.lit(-1).alias("change"))
    )
    course = Window.partitionBy("worker", "at").orderBy("when", "change")
    running = F.sum("change").over(course.rowsBetween(Window.unboundedPreceding, 0))
    most = F.greatest(F.max("running"), F.lit(1)).cast("bigint")
    return changes.withColumn("running", running).groupBy("worker", "at").agg(most.alias("most_at_once"))
