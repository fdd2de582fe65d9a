"""Silver, brought up to date: what jobs under way were carried over for, what came, and what has to be told anew.

Steps of jobs that are not over are carried from run to run, so that a run reads what came and what is under way, and
never the whole history. A job that comes back after it was over, or whose steps came out of order (on PostgreSQL one
may commit late), is worked out anew from all its events, and its rows are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake.attempts import ended_attempts, running_attempts
from longshore.spark.lake.jobs import jobs_of

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
    """Jobs of which something came that belongs before what is known, or that were over and go on."""
    known = carried.groupBy("job_uid").agg(F.max("job_seq").alias("known"))
    came = fresh.groupBy("job_uid").agg(F.min("job_seq").alias("came"))
    joined = came.join(known, "job_uid", "left")
    returned = F.col("known").isNull() & (F.col("came") > 1)
    late = F.col("came") < F.col("known")
    return joined.where(returned | late).select("job_uid")


def together(carried: DataFrame, fresh: DataFrame) -> DataFrame:
    """Old steps and new ones, told apart."""
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
