"""Who did the work: workers by the hour, and schedules by how punctual they were."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.report.canvas import key
from longshore.spark.report.gold import HOUR, Gold, period
from longshore.spark.report.in_rows import heatmap
from longshore.spark.report.markup import Markup
from longshore.spark.report.scales import count, share, span
from longshore.spark.report.section import Section
from longshore.spark.report.tables import counted, shared, spanned, text

_ROWS = 20
_BUSY = (0.2, 0.4, 0.6, 0.8)


def workers(gold: Gold) -> Section:
    """How much of its time each worker was busy."""
    frame = gold.frame("workers").where("worker IS NOT NULL")
    # what a worker could have done in the hours in which it did anything
    room = F.try_divide("busy_seconds", "utilisation")
    busy = F.sum("busy_seconds").alias("busy_seconds")
    rate = F.try_divide(F.sum("busy_seconds"), F.coalesce(F.sum(room), F.count("*") * HOUR)).alias("utilisation")
    counts = (F.sum("attempts").alias("attempts"), busy, F.max("most_at_once").alias("most_at_once"), rate)
    table = frame.groupBy("worker").agg(*counts).orderBy(F.desc("busy_seconds"), "worker")
    names = [row["worker"] for row in table.limit(_ROWS).collect()]
    cells = frame.where(F.col("worker").isin(names)).groupBy("worker", period(gold.by_hour)).agg(*counts).collect()
    known = {(row["worker"], row["period"]): row for row in cells}

    def told(place: int, number: int) -> str:
        row = known[(names[place], number)]
        return f"{share(row['utilisation'])} busy, {span(row['busy_seconds'])} in {count(row['attempts'])} attempts"

    drawing = None
    if names:
        found = [[known.get((name, number)) for number in range(gold.by_hour.count)] for name in names]
        rows = [
            (name, [None if row is None else row["utilisation"] or 0.0 for row in cells])
            for name, cells in zip(names, found, strict=True)
        ]
        legend = key(
            ["busy up to 20 %", "40 %", "60 %", "80 %", "above"], [f"work{shade}" for shade in range(1, len(_BUSY) + 2)]
        )
        drawing = Markup(legend + heatmap(gold.by_hour, rows, "share of its room that was busy", told, _shade))
    return Section(
        "workers",
        "Workers",
        "How much of its room each worker used; its room is as many jobs at once as it ever ran that day.",
        drawing,
        [
            text("worker", "worker"),
            counted("attempts", "attempts"),
            spanned("busy_seconds", "busy"),
            counted("most_at_once", "most at once"),
            shared("utilisation", "utilisation"),
        ],
        table,
    )


def _shade(value: float) -> str:
    return f"work{1 + sum(value > edge for edge in _BUSY)}"


def schedules(gold: Gold) -> Section:
    """How late runs of schedules were made and started."""
    frame = gold.frame("schedules")
    counts = ("runs", "started", "completed", "dead")
    worst = ("made_late_most", "late_p50", "late_p95", "late_most")
    table = frame.groupBy("schedule_id", "queue", "type").agg(
        *(F.sum(name).alias(name) for name in counts), *(F.max(name).alias(name) for name in worst)
    )
    return Section(
        "schedules",
        "Schedules",
        "How long after their planned time runs were made and started, on the worst day of each.",
        None,
        [
            text("schedule_id", "schedule"),
            text("queue", "queue"),
            text("type", "type"),
            *(counted(name, name) for name in counts),
            spanned("made_late_most", "made late by at most"),
            spanned("late_p50", "half started within"),
            spanned("late_p95", "95 % within"),
            spanned("late_most", "latest"),
        ],
        table.orderBy(F.desc("late_p95"), "schedule_id"),
    )
