"""What the lake holds, the store may forget: copied, compared row for row, and only then removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from time import perf_counter

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.backends.archive import AT_ONCE, Archived, SupportsArchive
from longshore.core.status import FINAL
from longshore.spark.lake.draft import Draft
from longshore.spark.lake.lake import Lake, refuse_another_log
from longshore.spark.lake.manifest import LakeError
from longshore.spark.lake.silver import date_of, one_of
from longshore.spark.lake.tables import ARCHIVED_JOBS, ARCHIVED_LOGS, EVENTS
from longshore.spark.options import Address, address, answer

_POSITION_BITS = 63


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What was removed from the store, or could be."""

    events: int
    jobs: int
    logs: int
    """Lines of these jobs' logs that the lake took in."""
    seconds: float


def archive(
    url: str,
    lake: str,
    *,
    spark: SparkSession,
    schema: str | None = None,
    older_than: timedelta = timedelta(days=7),
    dry_run: bool = False,
) -> ArchiveReport:
    """Remove events and finished jobs from the store that are older, once the lake has proven to hold them.

    LakeError if the store has an older event, among those that landed, that the lake does not hold as it is: then
    nothing is removed. A job of which the lake does not know the last event stays in the store.
    """
    begun = perf_counter()
    store = address({"url": url} if schema is None else {"url": url, "schema": schema})
    with Lake.open(lake, spark).files.alone():
        work = _Archive(spark, store, Lake.open(lake, spark), older_than)
        events = work.prove_events()
        if dry_run:
            return ArchiveReport(events, work.could_go().count(), 0, perf_counter() - begun)
        logs = work.copy_jobs()
        jobs = work.remove_jobs()
        pruned = work.prune_events()
    return ArchiveReport(pruned, jobs, logs, perf_counter() - begun)


class _Archive:
    def __init__(self, spark: SparkSession, store: Address, lake: Lake, older_than: timedelta) -> None:
        self._spark = spark
        self._store = store
        self._lake = lake
        refuse_another_log(lake, store.log_ends().log)
        with store.opened() as backend:
            self._before: datetime = answer(backend.now()) - older_than
        self._reached = list(lake.manifest.reached)

    # -- events

    def prove_events(self) -> int:
        """How many events could go; LakeError if the lake lacks any of them, or has it otherwise."""
        landed = self._old_events()
        days = [day for day in self._lake.days(EVENTS) if day <= self._before.date().isoformat()]
        held = self._lake.table(self._spark, EVENTS, days)
        missing = _not_in(landed, held, ["number"])
        found = missing.agg(F.count(F.lit(1)).alias("count"), F.min("number").alias("first")).collect()[0]
        if found["count"]:
            raise LakeError(
                f"nothing was removed: the store has {found['count']} old events that the lake does not hold as they "
                f"are, the first with the number {found['first']}; run the pipeline, or look at what changed the log"
            )
        return landed.count()

    def _old_events(self) -> DataFrame:
        place = F.struct(F.coalesce("xid", F.lit(0)), "number")
        reached = F.struct(*(F.lit(part).cast("bigint") for part in self._reached))
        return self._read("events").where((F.col("occurred_at") <= F.lit(self._before)) & (place <= reached))

    def prune_events(self) -> int:
        """Remove them, a few at a time."""
        transaction, number = self._reached
        pruned = 0
        with self._store.opened() as backend:
            assert isinstance(backend, SupportsArchive)  # as every store that has an address
            while some := answer(backend.prune_archived_events(self._before, transaction << _POSITION_BITS | number)):
                pruned += some
        return pruned

    # -- jobs

    def could_go(self) -> DataFrame:
        """Finished jobs whose last event has landed."""
        over = one_of(F.col("status"), FINAL) & (F.col("finalized_at") <= F.lit(self._before))
        jobs = self._read("jobs").where(over)
        landed = self._lake.table(self._spark, EVENTS).where(F.col("job_uid").isNotNull())
        last = landed.groupBy("job_uid").agg(F.max("job_seq").alias("landed"))
        known = jobs.join(last, F.col("uid") == F.col("job_uid")).where(F.col("landed") == F.col("job_seq"))
        return known.drop("job_uid", "landed").withColumn("event_date", date_of(F.col("finalized_at")))

    def copy_jobs(self) -> int:
        """Bring jobs and their logs to the lake that it does not have yet; the lines it took in."""
        have = self._lake.table(self._spark, ARCHIVED_JOBS)
        new = _not_in(self.could_go(), have, ["uid"])
        logs = self._read("logs").join(new.select(F.col("uid").alias("job_uid"), "event_date"), "job_uid")
        draft = Draft(self._spark, self._lake, self._lake.manifest.format)
        jobs_piece = draft.write(ARCHIVED_JOBS, new)
        if not jobs_piece.rows:
            return 0
        logs_piece = draft.write(ARCHIVED_LOGS, logs)
        draft.add(ARCHIVED_JOBS, jobs_piece)
        draft.add(ARCHIVED_LOGS, logs_piece)
        self._lake = draft.commit()
        return logs_piece.rows

    def remove_jobs(self) -> int:
        """Remove the rows that the lake returns exactly as the store has them."""
        held = self._lake.table(self._spark, ARCHIVED_JOBS)
        candidates = self.could_go()
        proven = candidates.join(_not_in(candidates, held, ["uid"]).select("uid"), "uid", "left_anti")
        rows = proven.select("id", "job_seq").toLocalIterator()
        removed = 0
        with self._store.opened() as backend:
            assert isinstance(backend, SupportsArchive)  # as every store that has an address
            for some in _in_parts((Archived(row["id"], row["job_seq"]) for row in rows), AT_ONCE):
                removed += answer(backend.remove_archived_jobs(some))
        return removed

    def _read(self, table: str) -> DataFrame:
        options = {name: str(value) for name, value in self._store.options.items()}
        return self._spark.read.format("longshore").option("url", self._store.url).options(**options).load(table)


def _not_in(rows: DataFrame, held: DataFrame, by: list[str]) -> DataFrame:
    """Rows of which there is none that is the same in every column they share."""
    shared = [name for name in rows.columns if name in held.columns]
    there = held.select(*(F.col(name).alias(f"held_{name}") for name in shared))
    same: Column = F.lit(True)
    for name in shared:
        equal = F.col(name) == F.col(f"held_{name}")
        same = same & (equal if name in by else F.col(name).eqNullSafe(F.col(f"held_{name}")))
    return rows.join(there, same, "left_anti")


def _in_parts(archived: Iterator[Archived], size: int) -> Iterator[list[Archived]]:
    while some := list(islice(archived, size)):
        yield some
