"""How much came, went and waited: throughput and backlog."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.report.canvas import Canvas, key
from longshore.spark.report.gold import OTHERS, Gold, coloured, lines, period
from longshore.spark.report.markup import Markup
from longshore.spark.report.over_time import Values, stacked, stepped
from longshore.spark.report.scales import count, short
from longshore.spark.report.section import Section
from longshore.spark.report.tables import counted, text, timed

_COUNTED = ("added", "started", "completed", "failed", "crashed", "released", "stopped", "dead", "retried", "removed")


def throughput(gold: Gold) -> Section:
    """Jobs completed in each period, by queue."""
    frame = gold.of_queues("throughput")
    done = frame.groupBy(period(gold.by_minute), coloured(gold)).agg(F.sum("completed").alias("value")).collect()
    minutes = gold.by_minute.step / 60
    found = lines([(row["period"], row["name"], row["value"] / minutes) for row in done], _names(gold), gold.by_minute)
    busiest = frame.groupBy("queue", "at").agg(F.sum("completed").alias("completed"))
    most = busiest.groupBy("queue").agg(F.max("completed").alias("most_in_a_minute"))
    table = frame.groupBy("queue").agg(*(F.sum(name).alias(name) for name in _COUNTED)).join(most, "queue")
    drawing = stacked(
        Canvas(),
        gold.by_minute,
        _series(gold, found),
        "jobs completed per minute",
        lambda _, rate: f"{short(rate)} a minute",
    )
    return Section(
        "throughput",
        "Throughput",
        "Jobs completed per minute, each queue in its own colour.",
        _with_key(gold, found, drawing),
        [
            text("queue", "queue"),
            *(counted(name, name) for name in _COUNTED),
            counted("most_in_a_minute", "most in a minute"),
        ],
        table.orderBy(F.desc("completed"), F.desc("added"), "queue"),
    )


def backlog(gold: Gold) -> Section:
    """Jobs that waited, at the end of each period.

    Depth is told where it changed; the change of each queue and type is added up, so nothing is carried by hand.
    """
    depth = gold.of_queues("depth")
    line = Window.partitionBy("queue", "type").orderBy("at")
    change = F.col("waiting") - F.coalesce(F.lag("waiting").over(line), F.lit(0))
    changed = depth.withColumn("value", change).groupBy(period(gold.by_minute), coloured(gold))
    changes = changed.agg(F.sum("value").alias("value")).collect()
    found = lines([(row["period"], row["name"], row["value"]) for row in changes], _names(gold), gold.by_minute)
    standing = {name: _added_up(values) for name, values in found.items()}
    drawing = stepped(
        Canvas(),
        gold.by_minute,
        _series(gold, standing),
        "jobs waiting",
        lambda _, jobs: f"{count(round(jobs))} waiting",
    )
    return Section(
        "backlog",
        "Backlog",
        "Jobs that waited for a worker, for their time or for their next try, at the end of each period.",
        _with_key(gold, standing, drawing),
        [
            text("queue", "queue"),
            counted("waiting", "waiting at the end"),
            counted("running", "running at the end"),
            counted("held", "held back at the end"),
            counted("most_waiting", "most waiting"),
            timed("most_at", "at"),
        ],
        _depth_by_queue(gold),
    )


def _depth_by_queue(gold: Gold) -> DataFrame:
    """The last and the highest of each queue: its types added up wherever one of them changed."""
    depth = gold.of_queues("depth")
    line = Window.partitionBy("queue", "type").orderBy("at")
    kinds = ("waiting", "running", "held")
    changes = depth.withColumns({name: F.col(name) - F.coalesce(F.lag(name).over(line), F.lit(0)) for name in kinds})
    moments = changes.groupBy("queue", "at").agg(*(F.sum(name).alias(name) for name in kinds))
    so_far = Window.partitionBy("queue").orderBy("at").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    standing = moments.withColumns({name: F.sum(name).over(so_far) for name in kinds})
    return (
        standing.groupBy("queue")
        .agg(
            *(F.max_by(name, "at").alias(name) for name in kinds),
            F.max("waiting").alias("most_waiting"),
            F.max_by("at", "waiting").alias("most_at"),
        )
        .orderBy(F.desc("waiting"), F.desc("most_waiting"), "queue")
    )


def _added_up(changes: Values) -> list[float]:
    total = 0.0
    standing = []
    for change in changes:
        total += change
        standing.append(max(total, 0.0))
    return standing


def _names(gold: Gold) -> list[str]:
    return [*gold.queues, OTHERS]


def _series(gold: Gold, found: dict[str, list[float]]) -> list[tuple[str, str, Values]]:
    return [(name, gold.colour(name), values) for name, values in found.items()]


def _with_key(gold: Gold, found: dict[str, list[float]], drawing: Markup) -> Markup | None:
    if not found:
        return None
    return Markup(key(list(found), [gold.colour(name) for name in found]) + drawing)
