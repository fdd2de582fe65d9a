"""Gold: what happened in each minute, and by how much the line grew or shrank."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.spark.lake.silver import one_of, start_of

_HELD = frozenset({JobStatus.CREATED, JobStatus.WAITING_CHILDREN})
_TO = {"started": JobStatus.RUNNING, "completed": JobStatus.COMPLETED, "dead": JobStatus.DEAD}
_EVENTS = {"added": "job.added", "retried": "job.retried", "removed": "job.removed", "released": "job.released"}
_ENDS = frozenset({JobStatus.STOPPED, JobStatus.UNSCHEDULED, JobStatus.UNKNOWN_STOPPED})


def per_minute(events: DataFrame, of_unknown_origin: DataFrame) -> DataFrame:
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
