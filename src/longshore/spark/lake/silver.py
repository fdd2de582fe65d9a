"""Silver: one row for each attempt and one for each job, from the events that move a job."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, JobStatus
from longshore.spark.lake.error_fingerprints import error_type_of, fingerprint_of
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
    """Events that change a job's status or its due time; progress, logs and removals are left out."""
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

    # all over the same window, so that Spark sorts the steps once
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


def seconds_between(start: Column, end: Column) -> Column:
    """As the times say; clocks may have been set back in between."""
    return (F.unix_micros(end) - F.unix_micros(start)) / F.lit(1_000_000.0)


def ended_attempts(course: DataFrame) -> DataFrame:
    """Attempts that a step ended: the job's next status or, in a log out of order, the next claim."""
    ended = course.where(F.col("mark").isNotNull() & F.col("before.begun"))
    return ended.select(*_attempt("before"), *_ending(), date_of(F.col("occurred_at")).alias("event_date"))


def running_attempts(course: DataFrame) -> DataFrame:
    """Attempts that have not ended; a final job has none."""
    last = Window.partitionBy("job_uid").orderBy("job_seq")
    marks = course.where(~F.col("over") & F.col("mark").isNotNull()).withColumn("next", F.lead("job_seq").over(last))
    running = marks.where(F.col("next").isNull() & F.col("mark.begun"))
    nothing = {"ended_at": "timestamp", "ran_seconds": "double", "outcome": "string", "error": "string"}
    nothing |= {"error_type": "string", "fingerprint": "string", "ended_seq": "bigint", "event_date": "date"}
    columns = [F.lit(None).cast(kind).alias(name) for name, kind in nothing.items()]
    return running.select(*_attempt("mark"), *columns, F.lit(False).alias("final"))


def _attempt(mark: str) -> list[Column]:
    begun = F.col(mark)
    return [
        *(F.col(name) for name in ("job_uid", "job_id", "queue", "type", "key", "schedule_id")),
        *(begun[name].alias(name) for name in ("epoch", "execution", "worker", "eligible_at")),
        begun["occurred_at"].alias("started_at"),
        seconds_between(begun["eligible_at"], begun["occurred_at"]).alias("waited_seconds"),
        begun["job_seq"].alias("started_seq"),
    ]


def _ending() -> list[Column]:
    return [
        F.col("occurred_at").alias("ended_at"),
        seconds_between(F.col("before.occurred_at"), F.col("occurred_at")).alias("ran_seconds"),
        _outcome().alias("outcome"),
        F.col("error"),
        error_type_of(F.col("error")).alias("error_type"),
        fingerprint_of(F.col("error")).alias("fingerprint"),
        F.col("final"),
        F.col("job_seq").alias("ended_seq"),
    ]


def _outcome() -> Column:
    status, event = F.col("to_status"), F.col("event")
    return (
        F.when(status == JobStatus.COMPLETED.value, "completed")
        .when(status == JobStatus.FAILED_RETRY.value, "failed")
        .when(event == "job.stalled", "crashed")
        .when(status == JobStatus.UNKNOWN_RETRY.value, "released")
        .when(status == JobStatus.STOPPED.value, "stopped")
        .otherwise("unknown")
    )


_PLANNED = r"@([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z)$"
_KNOWN = ("job_id", "queue", "type", "key", "schedule_id", "parent_id")


def jobs_of(course: DataFrame) -> DataFrame:
    """One row for each job: where it stands and what it took to come there."""
    moves = F.col("to_status").isNotNull()
    starts = F.col("to_status") == JobStatus.RUNNING.value
    attempt = F.col("mark").isNotNull() & F.col("before.begun")
    last_move = F.max_by(F.struct("to_status", "occurred_at"), F.when(moves, F.col("job_seq")))
    summed = course.groupBy("job_uid").agg(
        *(F.max(name).alias(name) for name in _KNOWN),
        last_move.alias("last"),
        F.min(F.when(F.col("event") == "job.added", F.col("occurred_at"))).alias("created_at"),
        F.min_by(F.when(starts, F.col("occurred_at")), F.when(starts, F.col("job_seq"))).alias("started_at"),
        F.count_if(starts).alias("attempts"),
        F.count_if(moves & (F.col("event") == "job.failed")).alias("failures"),
        F.count_if(F.col("event") == "job.stalled").alias("crashes"),
        F.count_if(F.col("event") == "job.released").alias("releases"),
        _total(starts, F.col("eligible_at"), F.col("occurred_at")).alias("waited_seconds"),
        _total(attempt, F.col("before.occurred_at"), F.col("occurred_at")).alias("ran_seconds"),
        F.max_by("error", F.when(F.col("error").isNotNull(), F.col("job_seq"))).alias("error"),
        F.min("job_seq").alias("first_seq"),
        F.max("job_seq").alias("last_seq"),
    )
    return summed.transform(_finished)


def _total(where: Column, start: Column, end: Column) -> Column:
    """Added as whole microseconds: fractions would add up differently in another order."""
    micros = F.when(where, F.unix_micros(end) - F.unix_micros(start))
    return F.coalesce(F.sum(micros), F.lit(0)) / F.lit(1_000_000.0)


def _finished(jobs: DataFrame) -> DataFrame:
    status = F.col("last.to_status")
    finalized = F.when(one_of(status, FINAL), F.col("last.occurred_at"))
    failed = status != JobStatus.COMPLETED.value
    return (
        jobs.withColumn("status", status)
        .withColumn("finalized_at", finalized)
        .withColumn("lifetime_seconds", seconds_between(F.col("created_at"), F.col("finalized_at")))
        .withColumn("planned_at", _planned_at())
        .withColumn("error", F.when(failed, F.col("error")))
        .withColumn("error_type", error_type_of(F.col("error")))
        .withColumn("fingerprint", fingerprint_of(F.col("error")))
        .withColumn("event_date", date_of(F.col("finalized_at")))
    )


def _planned_at() -> Column:
    """The time that the run of a schedule was planned for is in its id; one made by hand has none."""
    planned = F.try_to_timestamp(F.regexp_extract("job_id", _PLANNED, 1))
    return F.when(F.col("schedule_id").isNotNull(), planned)


_FRESH = "fresh"


@dataclass(frozen=True)
class Silver:
    """What a run makes of the steps it was given."""

    ended: DataFrame
    running: DataFrame
    finished: DataFrame
    unfinished: DataFrame
    carried: DataFrame


def out_of_order(carried: DataFrame, fresh: DataFrame) -> DataFrame:
    """Jobs with a new event that belongs before known ones, or that were final and have new events."""
    known = carried.groupBy("job_uid").agg(F.max("job_seq").alias("known"))
    came = fresh.groupBy("job_uid").agg(F.min("job_seq").alias("came"))
    joined = came.join(known, "job_uid", "left")
    returned = F.col("known").isNull() & (F.col("came") > 1)
    late = F.col("came") < F.col("known")
    return joined.where(returned | late).select("job_uid")


def together(carried: DataFrame, fresh: DataFrame) -> DataFrame:
    """Old and new steps, with a column that marks the new ones."""
    return carried.withColumn(_FRESH, F.lit(False)).unionByName(fresh.withColumn(_FRESH, F.lit(True)))


def made_of(course: DataFrame) -> Silver:
    """The rows of silver; of attempts that ended only what ended by what came."""
    jobs = jobs_of(course)
    return Silver(
        ended=ended_attempts(course.where(F.col(_FRESH))),
        running=running_attempts(course),
        finished=jobs.where(F.col("finalized_at").isNotNull()),
        unfinished=jobs.where(F.col("finalized_at").isNull()),
        carried=course.where(~F.col("over")).withColumn("event_date", F.lit(None).cast("date")),
    )
