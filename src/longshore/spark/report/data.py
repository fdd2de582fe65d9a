"""The data of a report: the gold tables of one version of a lake, cut to a time range."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.report.scales import Periods, periods_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MINUTE, HOUR = 60, 3_600
OTHERS = "all others"
COLOURED = 7
"""The number of queues that have a colour, the same throughout the page."""


class Tables(Protocol):
    """A lake, as far as a report looks into it."""

    @property
    def version(self) -> int:
        """Which one of its versions it is."""
        ...

    def table(self, spark: SparkSession, name: str, days: Collection[str] | None = None) -> DataFrame:
        """A table, or some days of it."""
        ...


@dataclass(frozen=True)
class Gold:
    """A lake's answers about some days (None: all of them)."""

    spark: SparkSession
    lake: Tables
    days: Collection[str] | None = None
    queues: Sequence[str] = ()
    """The busiest queues, in the order of their colours."""
    by_minute: Periods = field(default_factory=lambda: Periods(0, MINUTE, 1))
    by_hour: Periods = field(default_factory=lambda: Periods(0, HOUR, 1))
    span: tuple[int, int] = (0, 0)
    """From the first minute in which something happened to the end of the last."""

    def frame(self, table: str) -> DataFrame:
        """One of the gold tables."""
        return self.lake.table(self.spark, f"gold.{table}", self.days)

    def of_queues(self, table: str) -> DataFrame:
        """The same without what belongs to no queue."""
        return self.frame(table).where("queue != ''")

    def colour(self, queue: str) -> str:
        """The class that gives a queue its colour."""
        return f"c{self.queues.index(queue) + 1}" if queue in self.queues else "rest"


def gold_of(spark: SparkSession, lake: Tables, days: Collection[str] | None) -> Gold | None:
    """The gold tables with the time they span and their busiest queues; None if nothing has happened in them."""
    found = Gold(spark, lake, days)
    throughput = found.of_queues("throughput")
    ends = throughput.agg(*(F.unix_seconds(end("at")).alias(end.__name__) for end in (F.min, F.max))).first()
    if ends is None or ends["min"] is None:
        return None
    busiest = throughput.groupBy("queue").agg(F.sum("events").alias("events")).orderBy(F.desc("events"), "queue")
    return Gold(
        spark,
        lake,
        days,
        [row["queue"] for row in busiest.limit(COLOURED).collect()],
        periods_between(ends["min"], ends["max"], MINUTE),
        periods_between(ends["min"], ends["max"], HOUR),
        (ends["min"], ends["max"] + MINUTE),
    )


def period(periods: Periods, at: str = "at") -> Column:
    """Which of the periods a row belongs to."""
    return F.floor((F.unix_seconds(at) - periods.first) / periods.step).cast("int").alias("period")


def coloured(gold: Gold) -> Column:
    """The queue, or that it is one of the others."""
    return F.when(F.col("queue").isin(list(gold.queues)), F.col("queue")).otherwise(OTHERS).alias("name")


def lines(rows: Iterable[tuple[int, str, float]], names: Sequence[str], periods: Periods) -> dict[str, list[float]]:
    """A value for each name and period, 0 where there was nothing; names without any value are left out."""
    found = {name: [0.0] * periods.count for name in names}
    for number, name, value in rows:
        if 0 <= number < periods.count:
            found.setdefault(name, [0.0] * periods.count)[number] += value
    return {name: values for name, values in found.items() if any(values)}


_PERCENTILES = (50, 75, 90, 95, 99)
_FINEST, _GROWTH = 1e-6, 1.02


def percentiles(histogram: DataFrame, *by: str) -> DataFrame:
    """Count by bucket as count, mean, least, p50 … p99 and most in seconds, for each of `by`."""
    counted = histogram.groupBy(*by, "bucket").agg(
        F.sum("count").alias("count"),
        F.sum("seconds").alias("seconds"),
        F.min("least").alias("least"),
        F.max("most").alias("most"),
    )
    line = Window.partitionBy(*by).orderBy("bucket")
    so_far = F.sum("count").over(line.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    total = F.sum("count").over(Window.partitionBy(*by))
    value = F.when(F.col("bucket") < 0, 0.0).otherwise(_FINEST * F.pow(F.lit(_GROWTH), F.col("bucket") + 0.5))
    # of a bucket's middle, only as far as something was measured
    value = F.least(F.greatest(value, F.col("least")), F.col("most"))
    reached = counted.withColumns({"so_far": so_far, "total": total, "value": value})
    return reached.groupBy(*by).agg(
        F.sum("count").alias("count"),
        (F.sum("seconds") / F.sum("count")).alias("mean"),
        F.min("least").alias("least"),
        *(
            F.min(F.when(F.col("so_far") >= F.col("total") * part / 100, F.col("value"))).alias(f"p{part}")
            for part in _PERCENTILES
        ),
        F.max("most").alias("most"),
    )
