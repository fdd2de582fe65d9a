"""Histories: the events of each job ordered by `job_seq`, and the watermark up to which they are complete."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.backends.export import LogPosition
from longshore.core.status import JobStatus

SWEPT_WITHIN = timedelta(seconds=60)
"""The time after the end of a lease in which a sweep must reclaim the job."""


@dataclass(frozen=True)
class Watermark:
    """Up to where the log and the jobs can be compared. By default everywhere: both are one snapshot."""

    until: LogPosition | None = None
    """Events up to here were committed before the jobs were read; the next audit covers later ones."""
    covered: bool = True
    """Whether the log reaches as far as the jobs that were read."""
    now: datetime | None = None
    """When the jobs were read, by the store's clock; leases are checked against it."""
    swept_within: timedelta = SWEPT_WITHIN


EVENT_COLUMNS = (
    *("xid", "number", "job_uid", "job_id", "job_seq", "queue", "event", "from_status", "to_status", "epoch"),
    *("execution", "occurred_at", "detail"),
)
JOB_COLUMNS = (
    *("uid", "id", "queue", "status", "executions", "retry_count", "crashes", "epoch", "job_seq", "updated_at"),
    *("lease_expires_at", "expires_at"),
)
"""The columns of the two tables that the audit reads."""

_UNCOUNTED = -1
"""The crashes of a job that crashed while it was being cancelled: that event carries no number."""
_COUNTS_FAILURES = ["job.failed", "job.stopped"]
_SO_FAR = (Window.unboundedPreceding, Window.currentRow)
_NEW_TIME = ["job.failed", "job.stalled", "job.released", "job.retried", "job.promoted"]
"""Events after which an earlier `job.delayed` no longer holds; a new one follows if the job must wait again."""


def steps(events: DataFrame, until: LogPosition | None = None) -> DataFrame:
    """Events as steps of a history, with their counters and times; events without a job are left out."""
    kind, detail = F.col("event"), F.col("detail")
    reset = (kind == "job.retried") & (F.get_json_object(detail, "$.reset") == "true")
    added = kind == "job.added"
    failures = F.when(kind.isin(_COUNTS_FAILURES), F.get_json_object(detail, "$.failures").cast("long"))
    crashes = F.when(kind == "job.stalled", F.get_json_object(detail, "$.crashes").cast("long"))
    uncounted = (F.col("from_status") == JobStatus.CANCELLING) & (F.col("to_status") == JobStatus.UNKNOWN_STOPPED)
    return events.where("job_uid IS NOT NULL").select(
        "job_uid",
        "job_seq",
        "number",
        F.lit(False).alias("stored"),
        "job_id",
        "queue",
        "event",
        "from_status",
        "to_status",
        "epoch",
        "execution",
        "occurred_at",
        failures.alias("failures"),
        crashes.alias("crashes"),
        F.coalesce(failures, F.when(reset | added, 0)).alias("failures_after"),
        F.coalesce(crashes, F.when(reset | added, 0), F.when(uncounted, _UNCOUNTED)).alias("crashes_after"),
        F.when(kind == "job.delayed", F.get_json_object(detail, "$.until").cast("long"))
        .when(kind.isin(_NEW_TIME), 0)
        .alias("not_before"),
        _lies_before(until).alias("settled"),
    )


def _lies_before(until: LogPosition | None) -> Column:
    if until is None:
        return F.lit(True)
    transaction = F.coalesce(F.col("xid"), F.lit(0))
    same = (transaction == until.xid) & (F.col("number") <= until.number)
    return (transaction < until.xid) | same


def standings(jobs: DataFrame) -> DataFrame:
    """Stored jobs in the columns of a step; each follows the last event of its job."""
    return jobs.select(
        F.col("uid").alias("job_uid"),
        "job_seq",
        F.lit(0).cast("long").alias("number"),
        F.lit(True).alias("stored"),
        F.col("id").alias("job_id"),
        "queue",
        F.col("status").alias("to_status"),
        "epoch",
        F.col("executions").alias("execution"),
        F.col("updated_at").alias("occurred_at"),
        F.col("retry_count").alias("failures"),
        "crashes",
        F.lit(True).alias("settled"),
        "lease_expires_at",
        "expires_at",
    )


def with_what_came_before(steps: DataFrame) -> DataFrame:
    """Add to each step the event before it (`before`) and the state of the job: `was`, `failures_were`,
    `crashes_were` and `due`.

    `since` is the last number before which events are missing or duplicated (`broken`). Earlier values are not used
    for later steps.
    """
    is_event = ~F.col("stored")
    earlier = _in_order().rowsBetween(Window.unboundedPreceding, -1)
    event = F.struct("job_seq", "epoch", "execution", "event", "job_id", "queue")
    known = {
        "before": F.last(F.when(is_event, event), ignorenulls=True).over(earlier),
        "last_status": _last_value("to_status", earlier),
        "last_failures": _last_value("failures_after", earlier),
        "last_crashes": _last_value("crashes_after", earlier),
        "last_not_before": _last_value("not_before", earlier),
    }
    broken = is_event & (F.col("job_seq") != F.coalesce(F.col("before.job_seq") + 1, F.lit(1)))
    since = F.max(F.when(F.col("broken"), F.col("job_seq"))).over(_in_order().rowsBetween(*_SO_FAR))
    return (
        steps.withColumns(known)
        .withColumn("broken", broken)
        .withColumn("since", since)
        .withColumns(
            {
                "was": _if_fresh("last_status"),
                "failures_were": _if_fresh("last_failures"),
                "crashes_were": _if_fresh("last_crashes"),
                "due": _if_fresh("last_not_before"),
            }
        )
    )


def with_the_whole_life(lives: DataFrame) -> DataFrame:
    """Add to each step the end of its history, and whether the store has the job."""
    is_event, number = ~F.col("stored"), F.col("job_seq")
    whole = _in_order().rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return lives.withColumns(
        {
            "stored_seq": F.max(F.when(~is_event, number)).over(whole),
            "last_seq": F.max(F.when(is_event, number)).over(whole),
            "ever_settled": F.max(F.when(is_event, F.col("settled"))).over(whole),
        }
    )


def _in_order() -> WindowSpec:
    return Window.partitionBy("job_uid").orderBy("job_seq", "stored", "number")


def _last_value(column: str, frame: WindowSpec) -> Column:
    """The last value of this column, with the number of its event."""
    is_event = ~F.col("stored") & F.col(column).isNotNull()
    return F.last(F.when(is_event, F.struct(F.col("job_seq"), F.col(column).alias("value"))), ignorenulls=True).over(
        frame
    )


def _if_fresh(name: str) -> Column:
    fresh = F.col("since").isNull() | (F.col(f"{name}.job_seq") >= F.col("since"))
    return F.when(fresh, F.col(f"{name}.value"))
