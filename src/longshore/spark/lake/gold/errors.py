"""Gold: which errors there were, the same ones put together."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake.error_fingerprints import first_line_of

_BAD = ("failed", "crashed")


def per_day(attempts: DataFrame) -> DataFrame:
    """How often each kind of error came, in how many jobs, when first and last, and one of them as a sample."""
    bad = attempts.where(F.col("outcome").isin(*_BAD) & F.col("fingerprint").isNotNull())
    place = ("event_date", "queue", "type", "key", "outcome", "fingerprint")
    return (
        bad.withColumn("key", F.coalesce("key", F.lit("")))
        .groupBy(*place)
        .agg(
            F.min("error_type").alias("error_type"),
            F.min(first_line_of(F.col("error"))).alias("sample"),
            F.count(F.lit(1)).alias("count"),
            F.count_distinct("job_uid").alias("jobs"),
            F.min("ended_at").alias("first_at"),
            F.max("ended_at").alias("last_at"),
        )
    )
