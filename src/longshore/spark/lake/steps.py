"""Silver's ground: the events that move a job, with what they say taken out of their details."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, JobStatus
from longshore.spark.lake.tables import CARRIED, schema_of

_TELLS_OF_TIME = ("job.delayed", "job.promoted")
_TELLS_OF_ERRORS = ("job.failed", "job.stalled", "job.stopped", "job.dead")
_BELONGS = ("key", "schedule_id", "parent_id")
_DAY = 86_400_000_000


def date_of(moment: Column) -> Column:
    """The date in UTC, whatever time zone the session is set to."""
    return F.date_from_unix_date(F.floor(F.unix_micros(moment) / F.lit(_DAY)).cast("int"))


def start_of(moment: Column, seconds: int) -> Column:
    """The beginning of the minute or hour, in UTC."""
    return F.timestamp_seconds(F.floor(F.unix_micros(moment) / F.lit(seconds * 1_000_000)) * F.lit(seconds))


def one_of(column: Column, statuses: frozenset[JobStatus]) -> Column:
    """Whether a status is one of these."""
    return column.isin(sorted(status.value for status in statuses))


def only_steps(events: DataFrame) -> DataFrame:
    """Events that move a job, or tell when it may move; progress, logs and removals are no part of its course."""
    told = F.col("event").isin(*_TELLS_OF_TIME, "job.failed")
    return events.where(F.col("job_uid").isNotNull() & (F.col("to_status").isNotNull() | told))


def with_details(events: DataFrame) -> DataFrame:
    """What the details say of time, of errors and of what a job belongs to, as columns."""
    errors = F.col("event").isin(*_TELLS_OF_ERRORS)
    schema = (
        "until bigint, error string, reason string, final boolean, key string, schedule_id string, parent_id string"
    )
    needed = F.when(errors | F.col("event").isin("job.added", "job.delayed"), F.from_json("detail", schema))
    return (
        events.withColumn("details", needed)
        .withColumn("until", F.timestamp_micros("details.until"))
        .withColumn("error", F.when(errors, F.coalesce("details.error", "details.reason")))
        .withColumn("final", F.coalesce("details.final", F.lit(False)))
        .withColumns({name: F.col(f"details.{name}") for name in _BELONGS})
        .withColumnRenamed("assignee_id", "worker")
    )


def as_steps(events: DataFrame) -> DataFrame:
    """From raw events to steps."""
    steps = events.transform(only_steps).transform(with_details)
    return steps.select(*(field for field in schema_of(CARRIED).fieldNames() if field != "event_date"))


def with_course(steps: DataFrame) -> DataFrame:
    """Beside each step, what the job's other steps (by its own sequence, never by time) say of it.

    `eligible_at` is since when it could have been claimed before this step, and `mark` whether the step begins or ends
    an attempt; `before` is the mark before it. `over` is whether the job is, after all its steps.
    """
    course = Window.partitionBy("job_uid").orderBy("job_seq")
    earlier = course.rowsBetween(Window.unboundedPreceding, -1)
    whole = course.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    moves = F.when(F.col("to_status").isNotNull(), F.struct("job_seq", "to_status"))

    def latest(condition: Column, *columns: str) -> Column:
        return F.last(F.when(condition, F.struct(*columns)), ignorenulls=True).over(earlier)

    # all over one order, so that one pass over the sorted steps brings them all
    seen = steps.withColumns(
        {
            **{name: F.max(name).over(whole) for name in _BELONGS},
            "_last": F.max(moves).over(whole),
            "_entered": latest(one_of(F.col("to_status"), ELIGIBLE), "job_seq", "occurred_at"),
            "_delayed": latest(F.col("event") == "job.delayed", "job_seq", "until"),
            "_promoted": latest(F.col("event") == "job.promoted", "job_seq", "occurred_at"),
        }
    )
    return (
        seen.withColumn("over", F.coalesce(one_of(F.col("_last.to_status"), FINAL), F.lit(False)))
        .withColumn("eligible_at", _eligible_at())
        .withColumn("mark", _mark())
        .withColumn("before", F.last("mark", ignorenulls=True).over(earlier))
        .drop("_last", "_entered", "_delayed", "_promoted")
    )


def _eligible_at() -> Column:
    """When it came to the line, or when its time came if that was later; sooner if it was promoted by hand."""
    entered = F.col("_entered.occurred_at")
    until = F.when(F.col("_delayed.job_seq") > F.col("_entered.job_seq"), F.col("_delayed.until"))
    promoted = F.when(F.col("_promoted.job_seq") > F.col("_delayed.job_seq"), F.col("_promoted.occurred_at"))
    return F.when(until.isNull(), entered).otherwise(F.greatest(entered, F.least(until, promoted)))


def _mark() -> Column:
    starts = F.col("to_status") == JobStatus.RUNNING.value
    leaves = one_of(F.col("from_status"), HOLDS_CAPACITY) & ~one_of(F.col("to_status"), HOLDS_CAPACITY)
    ends = F.col("to_status").isNotNull() & (F.coalesce(leaves, F.lit(False)) | one_of(F.col("to_status"), FINAL))
    told = [F.col(name) for name in ("job_seq", "occurred_at", "epoch", "execution", "worker", "eligible_at")]
    begun, over = (F.struct(F.lit(begins).alias("begun"), *told) for begins in (True, False))
    return F.when(starts, begun).when(ends, over)
