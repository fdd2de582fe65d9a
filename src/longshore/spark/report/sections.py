"""The sections of the report: throughput and backlog, durations, failures, workers and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.report import charts
from longshore.spark.report.data import HOUR, OTHERS, Gold, coloured, lines, percentiles, period
from longshore.spark.report.markup import Markup, clipped, shown, tag
from longshore.spark.report.scales import Periods, count, share, short, span
from longshore.spark.report.tables import Column, Row, counted, shared, spanned, text, timed


@dataclass(frozen=True)
class Section:
    """A section of the report; `name` is its anchor on the page and the name of its file."""

    name: str
    title: str
    caption: str
    """How to read the chart."""
    drawing: Markup | None
    """None without data."""
    columns: Sequence[Column]
    table: DataFrame
    """All rows in order; the page shows the first ones."""

    @property
    def file(self) -> str:
        """The file name of its table."""
        return f"{self.name}.csv"

    def rows(self) -> Iterable[Row]:
        """Iterate over all rows with a part of them in memory; every call computes them again."""
        return (row.asDict() for row in self.table.coalesce(1).toLocalIterator())


_DRAWN = ("p50", "p75", "p95", "p99")
_SMALL = charts.Canvas(width=320, height=150, left=54, right=6, top=20, bottom=22)
_MOST_SMALL = 6
_SLOWEST = 12
_COLUMNS: Sequence[Column] = (
    counted("count", "measured"),
    spanned("mean", "mean"),
    *(spanned(name, f"{name[1:]} % within") for name in ("p50", "p90", "p95", "p99")),
    spanned("most", "longest"),
)


def waiting(gold: Gold) -> Section:
    """The time from due to the start of an attempt."""
    caption = "Time from when a job was due until its attempt started. The dark line is the median."
    return _fans(gold, "waiting", "Waiting time", caption)


def running(gold: Gold) -> Section:
    """The duration of attempts."""
    caption = "Time from the start of an attempt to its end, with any outcome. The dark line is the median."
    return _fans(gold, "running", "Run time", caption)


def _fans(gold: Gold, measure: str, title: str, caption: str) -> Section:
    histogram = gold.of_queues("duration_histogram").where(F.col("measure") == measure)
    timed = histogram.withColumn("period", period(gold.by_hour))
    rows = percentiles(timed, "period").collect()
    of_queues = timed.where(F.col("queue").isin(list(gold.queues[:_MOST_SMALL])))
    small = percentiles(of_queues, "queue", "period").collect() if rows and len(gold.queues) > 1 else []
    drawing = None
    if rows:
        unit = f"{title.lower()}, logarithmic"
        whole = charts.fan(charts.Canvas(), gold.by_hour, _lines(rows, gold.by_hour), unit)
        names = ["half within", "75 % within", "95 % within", "99 % within"]
        shades = ["median", "fan close", "fan near", "fan far"]
        drawing = Markup(charts.key(names, shades) + whole + _in_small(small, gold))
    return Section(
        measure,
        title,
        caption,
        drawing,
        [text("queue", "queue"), *_COLUMNS],
        percentiles(histogram, "queue").orderBy(F.desc("p95"), "queue"),
    )


def _in_small(rows: Sequence[Any], gold: Gold) -> Markup:
    found = {queue: [row for row in rows if row["queue"] == queue] for queue in gold.queues[:_MOST_SMALL]}
    fans = {queue: _lines(of_queue, gold.by_hour) for queue, of_queue in found.items() if of_queue}
    between = charts.ends(fans.values())
    pictures = [
        tag("div", tag("h3", clipped(queue, 34), title=queue), charts.fan(_SMALL, gold.by_hour, lines, "", between))
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


def slowest_types(gold: Gold) -> Section:
    """Run times by type, the slowest first."""
    histogram = gold.of_queues("duration_histogram").where("measure = 'running'")
    table = percentiles(histogram, "queue", "type").withColumn("total", F.col("mean") * F.col("count"))
    table = table.orderBy(F.desc("p95"), "queue", "type")
    rows = table.limit(_SLOWEST).collect()
    drawing = None
    if rows:
        names = charts.key(["half within", "95 % within; the line ends at 99 %"], ["half", "most"])
        drawing = Markup(names + charts.spreads([_spread(row, gold) for row in rows], "run time, logarithmic"))
    return Section(
        "slowest_types",
        "Slowest types",
        "Job types by the 95th percentile of their run time.",
        drawing,
        [text("queue", "queue"), text("type", "type"), *_COLUMNS, spanned("total", "in all")],
        table,
    )


def _spread(row: Any, gold: Gold) -> charts.Spread:
    name = row["type"] if len(gold.queues) == 1 else f"{row['queue']} · {row['type']}"
    caption = ", ".join(f"{part[1:]} % within {span(row[part])}" for part in ("p50", "p95", "p99"))
    hint = f"{name}: {caption}; longest {span(row['most'])}, {count(row['count'])} measured"
    return charts.Spread(name, row["p50"], row["p95"], row["p99"], hint)


_ERROR_ROWS = 14
_ERRORS = 12


def failures(gold: Gold) -> Section:
    """The share of attempts that failed or crashed, by type and period."""
    outcomes = gold.of_queues("outcomes")
    wrong = F.col("failed") + F.col("crashed")
    by_type = _by_type(outcomes)
    names = [(row["queue"], row["type"]) for row in by_type.limit(_ERROR_ROWS).collect()]
    cells = (
        outcomes.groupBy("queue", "type", period(gold.by_hour))
        .agg(F.sum("attempts").alias("attempts"), F.sum(wrong).alias("wrong"))
        .join(F.broadcast(by_type.limit(_ERROR_ROWS).select("queue", "type")), ["queue", "type"])
    )
    known = {(row["queue"], row["type"], row["period"]): row for row in cells.collect() if row["attempts"]}
    return Section(
        "failures",
        "Failures",
        "The share of attempts that failed or crashed, the highest first.",
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

    def caption(place: int, number: int) -> str:
        row = known[(*names[place], number)]
        wrong, attempts = row["wrong"], row["attempts"]
        return f"{share(wrong / attempts)}: {count(wrong)} of {count(attempts)} attempts"

    rows = []
    for queue, kind in names:
        found = [known.get((queue, kind, number)) for number in range(periods.count)]
        name = kind if len(gold.queues) == 1 else f"{queue} · {kind}"
        rows.append((name, [row["wrong"] / row["attempts"] if row else None for row in found]))
    edges = [*(f"over {share(edge)}" for edge in charts.HEAT[1:])]
    legend = charts.key(
        ["none failed", f"up to {share(charts.HEAT[1])}", *edges],
        [f"heat{shade}" for shade in range(len(charts.HEAT) + 1)],
    )
    return Markup(legend + charts.heatmap(periods, rows, "share of attempts that failed or crashed", caption))


def retries(gold: Gold) -> Section:
    """Attempts in each period, first ones and others."""
    outcomes = gold.of_queues("outcomes")
    groups = outcomes.groupBy(period(gold.by_hour)).agg(F.sum("attempts").alias("all"), F.sum("retries").alias("again"))
    hours = gold.by_hour.step / 3_600
    rows = groups.collect()
    first = [(row["period"], "first tries", (row["all"] - row["again"]) / hours) for row in rows]
    again = [(row["period"], "tries again", row["again"] / hours) for row in rows]
    colours = {"first tries": "c1", "tries again": "c2"}
    found = lines([*first, *again], list(colours), gold.by_hour)
    drawing = charts.stacked(
        charts.Canvas(height=220),
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
        "Attempts per hour: first attempts, and attempts after a failure, a crash or a release.",
        Markup(charts.key(list(found), [colours[name] for name in found]) + drawing) if found else None,
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
    """Errors grouped by fingerprint, the most frequent first."""
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
        "Errors that differ only in numbers, names and addresses are grouped.",
        charts.bars(rows, "attempts with this error", "bad") if rows else None,
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
    drawing = _by_queue(
        gold, found, charts.stacked, "jobs completed per minute", lambda _, rate: f"{short(rate)} a minute"
    )
    return Section(
        "throughput",
        "Throughput",
        "Jobs completed per minute, each queue in its own colour.",
        drawing,
        [
            text("queue", "queue"),
            *(counted(name, name) for name in _COUNTED),
            counted("most_in_a_minute", "most in a minute"),
        ],
        table.orderBy(F.desc("completed"), F.desc("added"), "queue"),
    )


def backlog(gold: Gold) -> Section:
    """Jobs that waited, at the end of each period.

    The table has a row where the depth changed; the changes of each queue and type are added up.
    """
    depth = gold.of_queues("depth")
    line = Window.partitionBy("queue", "type").orderBy("at")
    change = F.col("waiting") - F.coalesce(F.lag("waiting").over(line), F.lit(0))
    changed = depth.withColumn("value", change).groupBy(period(gold.by_minute), coloured(gold))
    changes = changed.agg(F.sum("value").alias("value")).collect()
    found = lines([(row["period"], row["name"], row["value"]) for row in changes], _names(gold), gold.by_minute)
    standing = {name: _added_up(values) for name, values in found.items()}
    drawing = _by_queue(gold, standing, charts.stepped, "jobs waiting", lambda _, jobs: f"{count(round(jobs))} waiting")
    return Section(
        "backlog",
        "Backlog",
        "Waiting, delayed and retrying jobs at the end of each period.",
        drawing,
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


def _added_up(changes: charts.Values) -> list[float]:
    total = 0.0
    standing = []
    for change in changes:
        total += change
        standing.append(max(total, 0.0))
    return standing


def _names(gold: Gold) -> list[str]:
    return [*gold.queues, OTHERS]


def _by_queue(
    gold: Gold, found: dict[str, list[float]], draw: Callable[..., Markup], unit: str, caption: charts.Caption
) -> Markup | None:
    """A drawing of values per queue and minute, under the key of the queues' colours; None without values."""
    if not found:
        return None
    colours = [gold.colour(name) for name in found]
    series = list(zip(found, colours, found.values(), strict=True))
    return Markup(charts.key(list(found), colours) + draw(charts.Canvas(), gold.by_minute, series, unit, caption))


_WORKER_ROWS = 20
_BUSY = (0.2, 0.4, 0.6, 0.8)


def workers(gold: Gold) -> Section:
    """The utilisation of each worker."""
    frame = gold.frame("workers").where("worker IS NOT NULL")
    # what a worker could have done in the hours in which it did anything
    capacity = F.try_divide("busy_seconds", "utilisation")
    busy = F.sum("busy_seconds").alias("busy_seconds")
    rate = F.try_divide(F.sum("busy_seconds"), F.coalesce(F.sum(capacity), F.count("*") * HOUR)).alias("utilisation")
    counts = (F.sum("attempts").alias("attempts"), busy, F.max("most_at_once").alias("most_at_once"), rate)
    table = frame.groupBy("worker").agg(*counts).orderBy(F.desc("busy_seconds"), "worker")
    names = [row["worker"] for row in table.limit(_WORKER_ROWS).collect()]
    cells = frame.where(F.col("worker").isin(names)).groupBy("worker", period(gold.by_hour)).agg(*counts).collect()
    known = {(row["worker"], row["period"]): row for row in cells}

    def caption(place: int, number: int) -> str:
        row = known[(names[place], number)]
        return f"{share(row['utilisation'])} busy, {span(row['busy_seconds'])} in {count(row['attempts'])} attempts"

    drawing = None
    if names:
        found = [[known.get((name, number)) for number in range(gold.by_hour.count)] for name in names]
        rows = [
            (name, [None if row is None else row["utilisation"] or 0.0 for row in cells])
            for name, cells in zip(names, found, strict=True)
        ]
        legend = charts.key(
            ["busy up to 20 %", "40 %", "60 %", "80 %", "above"], [f"work{shade}" for shade in range(1, len(_BUSY) + 2)]
        )
        drawing = Markup(
            legend + charts.heatmap(gold.by_hour, rows, "share of its capacity that was busy", caption, _shade)
        )
    return Section(
        "workers",
        "Workers",
        "The used share of each worker's capacity. The capacity is the most concurrent jobs of that day.",
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
    """The delay of scheduled jobs."""
    frame = gold.frame("schedules")
    counts = ("runs", "started", "completed", "dead")
    worst = ("made_late_most", "late_p50", "late_p95", "late_most")
    table = frame.groupBy("schedule_id", "queue", "type").agg(
        *(F.sum(name).alias(name) for name in counts), *(F.max(name).alias(name) for name in worst)
    )
    return Section(
        "schedules",
        "Schedules",
        "The delay from the planned time until a job was enqueued and started, on each schedule's worst day.",
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
