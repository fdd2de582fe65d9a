"""Gold: throughput, queue depth, durations, outcomes, errors, workers and schedules, one function for each table."""

from __future__ import annotations

from math import log

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.spark.lake.error_fingerprints import first_line_of
from longshore.spark.lake.silver import date_of, one_of, seconds_between, start_of

_OUTCOMES = ("completed", "failed", "crashed", "released", "stopped", "unknown")
_JOBS = {
    "jobs_completed": (JobStatus.COMPLETED,),
    "jobs_dead": (JobStatus.DEAD,),
    "jobs_cancelled": (JobStatus.STOPPED, JobStatus.UNSCHEDULED, JobStatus.UNKNOWN_STOPPED),
}


def place_of(moment: str) -> list[Column]:
    """The hour, queue, type and key that a row counts for."""
    hour = start_of(F.col(moment), 3600).alias("at")
    return [F.col("event_date"), hour, F.col("queue"), F.col("type"), F.coalesce("key", F.lit("")).alias("key")]


def outcomes_per_hour(attempts: DataFrame, jobs: DataFrame) -> DataFrame:
    """Attempts and jobs that ended in each hour, for each queue, type and key."""
    one, none = F.lit(1), F.lit(0)
    ended_attempts = attempts.select(
        *place_of("ended_at"),
        one.alias("attempts"),
        *((F.col("outcome") == name).cast("int").alias(name) for name in _OUTCOMES),
        (F.col("epoch") > 1).cast("int").alias("retries"),
        *(none.alias(name) for name in ("jobs_finished", *_JOBS)),
    )
    ended_jobs = jobs.select(
        *place_of("finalized_at"),
        *(none.alias(name) for name in ("attempts", *_OUTCOMES, "retries")),
        one.alias("jobs_finished"),
        *(
            F.col("status").isin([s.value for s in statuses]).cast("int").alias(name)
            for name, statuses in _JOBS.items()
        ),
    )
    numbers = ("attempts", *_OUTCOMES, "retries", "jobs_finished", *_JOBS)
    summed = (
        ended_attempts.unionByName(ended_jobs)
        .groupBy("event_date", "at", "queue", "type", "key")
        .agg(*(F.sum(name).alias(name) for name in numbers))
    )
    rates = {"failure_rate": "failed", "crash_rate": "crashed", "retry_rate": "retries"}
    return summed.withColumns({rate: F.try_divide(F.col(of), F.col("attempts")) for rate, of in rates.items()})


_HELD = frozenset({JobStatus.CREATED, JobStatus.WAITING_CHILDREN})
_TO = {"started": JobStatus.RUNNING, "completed": JobStatus.COMPLETED, "dead": JobStatus.DEAD}
_EVENTS = {"added": "job.added", "retried": "job.retried", "removed": "job.removed", "released": "job.released"}
_ENDS = frozenset({JobStatus.STOPPED, JobStatus.UNSCHEDULED, JobStatus.UNKNOWN_STOPPED})


def throughput_per_minute(events: DataFrame, of_unknown_origin: DataFrame) -> DataFrame:
    """Events of each minute, queue and type, counted by what they did.

    Jobs that were there before the history began never came into the line as far as the lake knows, and so they do not
    leave it either: they change nothing in the last three columns.
    """
    unknown = F.broadcast(of_unknown_origin.select("job_uid", F.lit(True).alias("unknown")))
    to, event = F.col("to_status"), F.col("event")
    counts = {name: F.count_if(event == of) for name, of in _EVENTS.items()}
    counts |= {name: F.count_if(to == status.value) for name, status in _TO.items()}
    counts["failed"] = F.count_if((event == "job.failed") & to.isNotNull())
    counts["crashed"] = F.count_if(event == "job.stalled")
    counts["stopped"] = F.count_if(one_of(to, _ENDS))
    changes = {"waiting": ELIGIBLE, "held": _HELD, "running": HOLDS_CAPACITY}
    return (
        events.join(unknown, "job_uid", "left")
        .groupBy(
            "event_date",
            start_of(F.col("occurred_at"), 60).alias("at"),
            "queue",
            F.coalesce("type", F.lit("")).alias("type"),
        )
        .agg(
            F.count(F.lit(1)).alias("events"),
            *(count.alias(name) for name, count in counts.items()),
            *(_change(statuses).alias(f"{name}_change") for name, statuses in changes.items()),
        )
    )


def _change(statuses: frozenset[JobStatus]) -> Column:
    came = F.coalesce(one_of(F.col("to_status"), statuses).cast("int"), F.lit(0))
    left = F.coalesce(one_of(F.col("from_status"), statuses).cast("int"), F.lit(0))
    return F.sum(F.when(F.col("unknown").isNull(), came - left).otherwise(0))


_MEASURES = ("waiting", "held", "running")
_PLACE = ("queue", "type")


def closing_depth(depth: DataFrame) -> DataFrame:
    """Where a day ended."""
    last = F.max_by(F.struct(*_MEASURES), "at").alias("last")
    return depth.groupBy(*_PLACE).agg(last).select(*_PLACE, *(f"last.{name}" for name in _MEASURES))


def depth_over_time(throughput: DataFrame, opening: DataFrame) -> DataFrame:
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
    return filled.withColumn("at", _midnight()).withColumn("midnight", F.lit(True))


def _one_row_for_each_minute(rows: DataFrame) -> DataFrame:
    """Where something changed in the first minute of a day, that row stands for its beginning, too."""
    twice = Window.partitionBy(*_PLACE, "at").orderBy("midnight")
    empty = F.col("midnight") & F.expr(" AND ".join(f"{name} = 0" for name in _MEASURES))
    return rows.withColumn("place", F.row_number().over(twice)).where((F.col("place") == 1) & ~empty)


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


def measured_durations(attempts: DataFrame, jobs: DataFrame) -> DataFrame:
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


def duration_histogram(times: DataFrame) -> DataFrame:
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


def duration_percentiles(times: DataFrame, hourly: DataFrame) -> DataFrame:
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


_BAD = ("failed", "crashed")


def errors_per_day(attempts: DataFrame) -> DataFrame:
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


_HOUR = 3600


def workers_per_hour(attempts: DataFrame) -> DataFrame:
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
    """One that ends when another begins does not overlap it."""
    changes = parts.select("worker", "at", F.col("begin").alias("when"), F.lit(1).alias("change")).unionByName(
        parts.select("worker", "at", F.col("end").alias("when"), F.lit(-1).alias("change"))
    )
    course = Window.partitionBy("worker", "at").orderBy("when", "change")
    running = F.sum("change").over(course.rowsBetween(Window.unboundedPreceding, 0))
    most = F.greatest(F.max("running"), F.lit(1)).cast("bigint")
    return changes.withColumn("running", running).groupBy("worker", "at").agg(most.alias("most_at_once"))


def schedules_per_day(jobs: DataFrame) -> DataFrame:
    """Of runs that ended on each day; one made by hand has no planned time, and is not late."""
    made = seconds_between(F.col("planned_at"), F.col("created_at"))
    began = seconds_between(F.col("planned_at"), F.col("started_at"))
    status = F.col("status")
    return (
        jobs.where(F.col("schedule_id").isNotNull())
        .groupBy("event_date", "schedule_id", "queue", "type")
        .agg(
            F.count(F.lit(1)).alias("runs"),
            F.count("started_at").alias("started"),
            F.count_if(status == JobStatus.COMPLETED.value).alias("completed"),
            F.count_if(status == JobStatus.DEAD.value).alias("dead"),
            F.percentile(made, 0.5).alias("made_late_p50"),
            F.max(made).alias("made_late_most"),
            F.percentile(began, 0.5).alias("late_p50"),
            F.percentile(began, 0.95).alias("late_p95"),
            F.max(began).alias("late_most"),
        )
    )
