"""How long jobs waited and ran: percentile fans, and the slowest types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.report.canvas import Canvas, key
from longshore.spark.report.gold import Gold, percentiles, period
from longshore.spark.report.in_rows import Spread, spreads
from longshore.spark.report.markup import Markup, clipped, tag
from longshore.spark.report.over_time import ends, fan
from longshore.spark.report.periods import Periods
from longshore.spark.report.scales import count, span
from longshore.spark.report.section import Section
from longshore.spark.report.tables import Column, counted, spanned, text

_DRAWN = ("p50", "p75", "p95", "p99")
_SMALL = Canvas(width=320, height=150, left=54, right=6, top=20, bottom=22)
_MOST_SMALL = 6
_SLOWEST = 12
_COLUMNS: Sequence[Column] = (
    counted("count", "measured"),
    spanned("mean", "mean"),
    *(spanned(name, f"{name[1:]} % within") for name in ("p50", "p90", "p95", "p99")),
    spanned("most", "longest"),
)


def waiting(gold: Gold) -> Section:
    """From when a job could run to when it did."""
    told = "From the moment a job could be run to its start. Half of all started within the dark line."
    return _fans(gold, "waiting", "Waiting time", told)


def running(gold: Gold) -> Section:
    """From start to end."""
    told = "From the start of an attempt to its end, however it ended. Half of all ended within the dark line."
    return _fans(gold, "running", "Run time", told)


def _fans(gold: Gold, measure: str, title: str, told: str) -> Section:
    histogram = gold.of_queues("duration_histogram").where(F.col("measure") == measure)
    timed = histogram.withColumn("period", period(gold.by_hour))
    rows = percentiles(timed, "period").collect()
    of_queues = timed.where(F.col("queue").isin(list(gold.queues[:_MOST_SMALL])))
    small = percentiles(of_queues, "queue", "period").collect() if rows and len(gold.queues) > 1 else []
    drawing = None
    if rows:
        unit = f"{title.lower()}, logarithmic"
        whole = fan(Canvas(), gold.by_hour, _lines(rows, gold.by_hour), unit)
        drawing = Markup(_key() + whole + _in_small(small, gold))
    return Section(
        measure,
        title,
        told,
        drawing,
        [text("queue", "queue"), *_COLUMNS],
        percentiles(histogram, "queue").orderBy(F.desc("p95"), "queue"),
    )


def _in_small(rows: Sequence[Any], gold: Gold) -> Markup:
    found = {queue: [row for row in rows if row["queue"] == queue] for queue in gold.queues[:_MOST_SMALL]}
    fans = {queue: _lines(of_queue, gold.by_hour) for queue, of_queue in found.items() if of_queue}
    between = ends(fans.values())
    pictures = [
        tag("div", tag("h3", clipped(queue, 34), title=queue), fan(_SMALL, gold.by_hour, lines, "", between))
        for queue, lines in fans.items()
    ]
    return tag("div", pictures, class_="small") if pictures else Markup()


def _lines(rows: Sequence[Any], periods: Periods) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {name: [None] * periods.count for name in _DRAWN}
    for row in rows:
        if 0 <= row["period"] < periods.count:
            for name in _DRAWN:
                found[name][row["period"]] = row[name]
    return found


def _key() -> Markup:
    names = ["half within", "75 % within", "95 % within", "99 % within"]
    return key(names, ["median", "fan close", "fan near", "fan far"])


def slowest_types(gold: Gold) -> Section:
    """Run times by type, the slowest first."""
    histogram = gold.of_queues("duration_histogram").where("measure = 'running'")
    table = percentiles(histogram, "queue", "type").withColumn("total", F.col("mean") * F.col("count"))
    table = table.orderBy(F.desc("p95"), "queue", "type")
    rows = table.limit(_SLOWEST).collect()
    drawing = None
    if rows:
        names = key(["half within", "95 % within; the line ends at 99 %"], ["half", "most"])
        drawing = Markup(names + spreads([_spread(row, gold) for row in rows], "run time, logarithmic"))
    return Section(
        "slowest_types",
        "Slowest types",
        "Types of jobs by the time that 95 % of their attempts took at most.",
        drawing,
        [text("queue", "queue"), text("type", "type"), *_COLUMNS, spanned("total", "in all")],
        table,
    )


def _spread(row: Any, gold: Gold) -> Spread:
    name = row["type"] if len(gold.queues) == 1 else f"{row['queue']} · {row['type']}"
    told = ", ".join(f"{part[1:]} % within {span(row[part])}" for part in ("p50", "p95", "p99"))
    hint = f"{name}: {told}; longest {span(row['most'])}, {count(row['count'])} measured"
    return Spread(name, row["p50"], row["p95"], row["p99"], hint)
