"""Gold: how long jobs wait, run and live, as histograms that can be added up and as percentiles read from them.

A bucket is 2 % wide, so that a percentile is within 1 % of the true one whatever the scale. Counts of buckets add up to
the same in any order and over any dates, which percentiles themselves do not.
"""

from __future__ import annotations

from math import log

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake.gold.outcomes import place_of

_WIDTH = 1.02
_NOTHING = -1
"""The bucket of what took no time at all."""
_SHARES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_MEASURED = ("event_date", "at", "queue", "type", "key", "measure", "micros")


def bucket_of(micros: Column) -> Column:
    """Which bucket a number of microseconds falls into."""
    bucket = F.floor(F.log(micros.cast("double")) / F.lit(log(_WIDTH)))
    return F.when(micros > 0, bucket).otherwise(_NOTHING).cast("int")


def seconds_of(bucket: Column) -> Column:
    """The middle of a bucket."""
    return F.when(bucket < 0, 0.0).otherwise(F.pow(F.lit(_WIDTH), bucket + 0.5) / 1_000_000)


def measured(attempts: DataFrame, jobs: DataFrame) -> DataFrame:
    """One row for each thing that took time, in the hour in which it ended."""

    def took(rows: DataFrame, measure: str, start: str, end: str, ended: str) -> DataFrame:
        micros = F.unix_micros(end) - F.unix_micros(start)
        place = place_of(ended)
        return rows.where(micros.isNotNull()).select(*place, F.lit(measure).alias("measure"), micros.alias("micros"))

    return (
        took(attempts, "waiting", "eligible_at", "started_at", "ended_at")
        .unionByName(took(attempts, "running", "started_at", "ended_at", "ended_at"))
        .unionByName(took(jobs, "lifetime", "created_at", "finalized_at", "finalized_at"))
        .select(*_MEASURED)
    )


def histogram(times: DataFrame) -> DataFrame:
    """How many fell into each bucket, for each hour, queue and type."""
    return times.transform(_bucketed, "event_date", "at", "queue", "type", "measure").select(
        "event_date", "at", "queue", "type", "measure", "bucket", "count", *_in_seconds("seconds", "least", "most")
    )


def _bucketed(times: DataFrame, *place: str) -> DataFrame:
    micros = F.greatest(F.col("micros"), F.lit(0))
    return times.groupBy(*place, bucket_of(F.col("micros")).alias("bucket")).agg(
        F.count(F.lit(1)).alias("count"),
        F.sum(micros).alias("seconds"),
        F.min(micros).alias("least"),
        F.max(micros).alias("most"),
    )


def _in_seconds(*names: str) -> list[Column]:
    return [(F.col(name) / F.lit(1_000_000.0)).alias(name) for name in names]


def percentiles(times: DataFrame, hourly: DataFrame) -> DataFrame:
    """By the hour for queues and types, by the day for queues, types and keys."""
    by_key = times.transform(_bucketed, "event_date", "queue", "type", "key", "measure").transform(_as_day)
    by_hour = hourly.select(
        "event_date",
        "at",
        "queue",
        "type",
        F.lit(None).cast("string").alias("key"),
        "measure",
        "bucket",
        "count",
        *(F.round(F.col(name) * 1_000_000).cast("bigint").alias(name) for name in ("seconds", "least", "most")),
    )
    every_way = F.explode(
        F.array(
            *(
                F.struct(
                    F.lit(period).alias("period"),
                    (F.col("at") if period == "hour" else _midnight()).alias("at"),
                    F.lit(level).alias("level"),
                    (F.col("type") if level == "type" else F.lit(None).cast("string")).alias("type"),
                )
                for period in ("hour", "day")
                for level in ("queue", "type")
            )
        )
    )
    combined = by_hour.withColumn("way", every_way).select(
        "event_date", "way.period", "way.at", "way.level", "queue", "way.type", "key", "measure", "bucket", "count",
        "seconds", "least", "most",
    )  # fmt: skip
    by_day = by_key.select(*combined.columns)
    return _read_off(combined).unionByName(_read_off(by_day))


def _midnight() -> Column:
    return F.timestamp_seconds(F.unix_date("event_date") * F.lit(86_400))


def _as_day(rows: DataFrame) -> DataFrame:
    return rows.withColumns({"period": F.lit("day"), "at": _midnight(), "level": F.lit("key")})


def _read_off(buckets: DataFrame) -> DataFrame:
    shares = F.array(*(F.lit(share) for share in _SHARES.values()))
    place = ("event_date", "period", "at", "level", "queue", "type", "key", "measure")
    summed = buckets.groupBy(*place).agg(
        F.sum("count").alias("count"),
        F.sum("seconds").alias("sum"),
        F.min("least").alias("least"),
        F.max("most").alias("most"),
        F.percentile("bucket", shares, F.col("count")).alias("shares"),
    )
    read = {name: _within(seconds_of(F.col("shares")[place])) for place, name in enumerate(_SHARES)}
    return summed.select(
        *place,
        "count",
        (F.col("sum") / F.col("count") / 1_000_000).alias("mean"),
        *_in_seconds("least", "most"),
        *(value.alias(name) for name, value in read.items()),
    )


def _within(seconds: Column) -> Column:
    """The middle of a bucket may lie outside of what was measured."""
    return F.least(F.greatest(seconds, F.col("least") / 1_000_000), F.col("most") / 1_000_000)
