"""What went wrong: failures by the hour, what was tried again, and the errors behind it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.report.canvas import Canvas, key
from longshore.spark.report.gold import Gold, lines, period
from longshore.spark.report.in_rows import HEAT, bars, heatmap
from longshore.spark.report.markup import Markup, shown
from longshore.spark.report.over_time import stacked
from longshore.spark.report.scales import count, share, short
from longshore.spark.report.section import Section
from longshore.spark.report.tables import Column, counted, shared, text, timed

_ROWS = 14
_ERRORS = 12


def failures(gold: Gold) -> Section:
    """The share of attempts that failed or crashed, by type and period."""
    outcomes = gold.of_queues("outcomes")
    wrong = F.col("failed") + F.col("crashed")
    by_type = _by_type(outcomes)
    names = [(row["queue"], row["type"]) for row in by_type.limit(_ROWS).collect()]
    cells = (
        outcomes.groupBy("queue", "type", period(gold.by_hour))
        .agg(F.sum("attempts").alias("attempts"), F.sum(wrong).alias("wrong"))
        .join(F.broadcast(by_type.limit(_ROWS).select("queue", "type")), ["queue", "type"])
    )
    known = {(row["queue"], row["type"], row["period"]): row for row in cells.collect() if row["attempts"]}
    return Section(
        "failures",
        "Failures",
        "The share of attempts that failed or crashed; those with most of them come first.",
        _heat(gold, names, known) if names else None,
        [
            text("queue", "queue"),
            text("type", "type"),
            *(counted(name, name) for name in ("attempts", "completed", "failed", "crashed", "released", "stopped")),
            shared("failure_rate", "share failed"),
            shared("crash_rate", "share crashed"),
            counted("jobs_dead", "jobs dead"),
        ],
        by_type,
    )


def _by_type(outcomes: DataFrame) -> DataFrame:
    counts = ("attempts", "completed", "failed", "crashed", "released", "stopped", "jobs_dead")
    return (
        outcomes.groupBy("queue", "type")
        .agg(*(F.sum(name).alias(name) for name in counts))
        .withColumns({f"{part}_rate": F.try_divide(name, "attempts") for part, name in _RATES.items()})
        .orderBy(F.desc(F.col("failed") + F.col("crashed")), F.desc("attempts"), "queue", "type")
    )


_RATES = {"failure": "failed", "crash": "crashed"}


def _heat(gold: Gold, names: list[tuple[str, str]], known: dict[tuple[str, str, int], Any]) -> Markup:
    periods = gold.by_hour

    def told(place: int, number: int) -> str:
        row = known[(*names[place], number)]
        wrong, attempts = row["wrong"], row["attempts"]
        return f"{share(wrong / attempts)}: {count(wrong)} of {count(attempts)} attempts"

    rows = []
    for queue, kind in names:
        found = [known.get((queue, kind, number)) for number in range(periods.count)]
        name = kind if len(gold.queues) == 1 else f"{queue} · {kind}"
        rows.append((name, [row["wrong"] / row["attempts"] if row else None for row in found]))
    edges = [*(f"over {share(edge)}" for edge in HEAT[1:])]
    legend = key(["none failed", f"up to {share(HEAT[1])}", *edges], [f"heat{shade}" for shade in range(len(HEAT) + 1)])
    return Markup(legend + heatmap(periods, rows, "share of attempts that failed or crashed", told))


def retries(gold: Gold) -> Section:
    """Attempts in each period, first ones and others."""
    outcomes = gold.of_queues("outcomes")
    grouped = outcomes.groupBy(period(gold.by_hour)).agg(
        F.sum("attempts").alias("all"), F.sum("retries").alias("again")
    )
    hours = gold.by_hour.step / 3_600
    rows = grouped.collect()
    first = [(row["period"], "first tries", (row["all"] - row["again"]) / hours) for row in rows]
    again = [(row["period"], "tries again", row["again"] / hours) for row in rows]
    names = ["first tries", "tries again"]
    found = lines([*first, *again], names, gold.by_hour)
    colours = {"first tries": "c1", "tries again": "c2"}
    drawing = stacked(
        Canvas(height=220),
        gold.by_hour,
        [(name, colours[name], values) for name, values in found.items()],
        "attempts per hour",
        lambda _, rate: f"{short(rate)} an hour",
    )
    counts = ("attempts", "retries", "jobs_finished", "jobs_completed", "jobs_dead", "jobs_cancelled")
    table = outcomes.groupBy("queue", "type").agg(*(F.sum(name).alias(name) for name in counts))
    table = table.withColumn("retry_rate", F.try_divide("retries", "attempts"))
    return Section(
        "retries",
        "Retries",
        "Attempts per hour: the first of a job, and those after a failure, a crash or a release.",
        Markup(key(list(found), [colours[name] for name in found]) + drawing) if found else None,
        [
            text("queue", "queue"),
            text("type", "type"),
            counted("attempts", "attempts"),
            counted("retries", "of them again"),
            shared("retry_rate", "share"),
            *(counted(name, name.replace("_", " ")) for name in counts[2:]),
        ],
        table.orderBy(F.desc("retries"), F.desc("attempts"), "queue", "type"),
    )


def top_errors(gold: Gold) -> Section:
    """Errors that are the same but for numbers and names, the most frequent first."""
    errors = gold.of_queues("errors")
    where = F.array_join(F.slice(F.sort_array(F.collect_set("queue")), 1, 3), ", ")
    table = (
        errors.groupBy("fingerprint", "outcome", "error_type")
        .agg(
            F.sum("count").alias("count"),
            F.sum("jobs").alias("jobs"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.max_by("sample", "last_at").alias("sample"),
            where.alias("queues"),
        )
        .orderBy(F.desc("count"), "fingerprint", "outcome", "error_type")
    )
    rows = [(_error(row), row["count"], _told(row)) for row in table.limit(_ERRORS).collect()]
    return Section(
        "top_errors",
        "Top errors",
        "Errors that differ only in numbers and the like count as one.",
        bars(rows, "attempts that ended so", "bad") if rows else None,
        [
            text("error_type", "error"),
            text("sample", "what it said last", 160),
            text("outcome", "outcome"),
            text("queues", "queues"),
            counted("count", "times"),
            counted("jobs", "jobs"),
            timed("first_at", "first"),
            timed("last_at", "last"),
            Column("fingerprint", "fingerprint", kind="still"),
        ],
        table,
    )


def _error(row: Any) -> str:
    kind, sample = row["error_type"], shown(row["sample"] or "")
    if not kind or sample.startswith(kind):
        return sample or str(row["outcome"])
    return f"{kind}: {sample}" if sample else str(kind)


def _told(row: Any) -> str:
    return (
        f"{row['sample'] or row['outcome']}\n{count(row['count'])} times, {count(row['jobs'])} jobs; in {row['queues']}"
    )
