"""Gold: how many jobs wait, are held back and run, as it was at the end of each minute in which that changed."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

_MEASURES = ("waiting", "held", "running")
_PLACE = ("queue", "type")


def closing(depth: DataFrame) -> DataFrame:
    """Where a day ended."""
    last = F.max_by(F.struct(*_MEASURES), "at").alias("last")
    return depth.groupBy(*_PLACE).agg(last).select(*_PLACE, *(f"last.{name}" for name in _MEASURES))


def over_time(throughput: DataFrame, opening: DataFrame) -> DataFrame:
    """From the changes of some days in a row, and where the day before them ended.

    Each day begins with a row for all that is not empty, so that it can be read without the days before it.
    """
    changes = throughput.select(
        "event_date", "at", *_PLACE, *(F.col(f"{name}_change").alias(name) for name in _MEASURES)
    ).where(" OR ".join(f"{name} != 0" for name in _MEASURES))
    days = throughput.select("event_date").distinct()
    first = days.agg(F.min("event_date").alias("event_date"))
    start = opening.crossJoin(first).select(*_PLACE, *_MEASURES, "event_date")
    midnights = changes.select(*_PLACE).union(opening.select(*_PLACE)).distinct().crossJoin(days)
    rows = (
        changes.withColumn("midnight", F.lit(False))
        .unionByName(_at_midnight(midnights, dict.fromkeys(_MEASURES, 0)))
        .unionByName(_at_midnight(start, {}))
    )
    merged = rows.groupBy("event_date", "at", "midnight", *_PLACE).agg(*(F.sum(name).alias(name) for name in _MEASURES))
    # the opening row of a day comes before its first minute
    course = Window.partitionBy(*_PLACE).orderBy("at", F.col("midnight").desc())
    summed = merged.withColumns(
        {name: F.sum(name).over(course.rowsBetween(Window.unboundedPreceding, 0)) for name in _MEASURES}
    )
    return summed.transform(_one_row_for_each_minute)


def _at_midnight(rows: DataFrame, values: dict[str, int]) -> DataFrame:
    filled = rows.withColumns({name: F.lit(value).cast("bigint") for name, value in values.items()}) if values else rows
    midnight = F.timestamp_seconds(F.unix_date("event_date") * F.lit(86_400))
    return filled.withColumn("at", midnight).withColumn("midnight", F.lit(True))


def _one_row_for_each_minute(rows: DataFrame) -> DataFrame:
    """Where something changed in the first minute of a day, that row stands for its beginning, too."""
    twice = Window.partitionBy(*_PLACE, "at").orderBy("midnight")
    empty = F.col("midnight") & F.expr(" AND ".join(f"{name} = 0" for name in _MEASURES))
    return rows.withColumn("place", F.row_number().over(twice)).where((F.col("place") == 1) & ~empty)
