"""The refresh of silver and gold: which days a run computes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter

from pyspark import StorageLevel, inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake import checks, gold, silver, tables
from longshore.spark.lake.draft import Draft
from longshore.spark.lake.manifest import OPEN, Piece, Receipt
from longshore.spark.lake.silver import as_steps, date_of, only_steps, with_course

_AT_ONCE = 2
MOST_PIECES = 8
"""A day with more pieces than this is compacted into one."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step of a run."""

    name: str
    rows: int
    seconds: float


StepDone = Callable[[Step], None]


class Refresh:
    """One run from bronze to gold, in a draft."""

    def __init__(self, spark: SparkSession, draft: Draft, on_step: StepDone) -> None:
        self._spark = spark
        self._draft = draft
        self._on_step = on_step

    # -- new events

    def take_in(self, receipts: Sequence[Receipt]) -> None:
        """Add the landed batches to bronze, and update silver and gold."""
        if not receipts:
            return
        for receipt in receipts:
            self._draft.add(tables.EVENTS, receipt.events)
        events = self._draft.read_pieces(tables.EVENTS, [receipt.events for receipt in receipts])
        first = not self._draft.manifest.pieces(tables.JOBS)
        came = {day for receipt in receipts for day in receipt.events.days}
        changed = self._bring_silver_up_to_date(as_steps(events), anew=first)
        self._work_out_gold(came, changed)

    def _bring_silver_up_to_date(self, fresh: DataFrame, *, anew: bool) -> set[str]:
        """Update silver; return the days on which rows changed."""
        carried = self._draft.read(tables.CARRIED).drop("event_date")
        gone: set[str] = set()
        with ExitStack() as held:
            if not anew:
                fresh = _held(fresh, held)
                strays = _held(silver.out_of_order(carried, fresh), held)
                if strays.count():
                    gone = self._take_out(strays)
                    whole = as_steps(self._draft.read(tables.EVENTS).join(F.broadcast(strays), "job_uid", "left_semi"))
                    gone |= _dates(whole.select(date_of(F.col("occurred_at")).alias("event_date")))
                    fresh = fresh.join(strays, "job_uid", "left_anti").unionByName(whole)
                    carried = carried.join(strays, "job_uid", "left_anti")
            course = _held(with_course(silver.together(carried, fresh)), held)
            rows = silver.made_of(course)
            with self._timed("attempts") as add:
                ended = add(self._draft.write(tables.ATTEMPTS, rows.ended.unionByName(rows.running)))
            with self._timed("jobs") as add:
                finished = add(self._draft.write(tables.JOBS, rows.finished.unionByName(rows.unfinished)))
            with self._timed("carried over") as add:
                kept = add(self._draft.write(tables.CARRIED, rows.carried))
        self._draft.replace_days(tables.ATTEMPTS, {OPEN}, ended)
        self._draft.replace_days(tables.JOBS, {OPEN}, finished)
        self._draft.replace_days(tables.CARRIED, {OPEN}, kept)
        return gone | (set(ended.days) | set(finished.days)) - {OPEN}

    def _take_out(self, jobs: DataFrame) -> set[str]:
        """Remove the rows of these jobs, day by day; return the days."""
        gone: set[str] = set()
        for table in (tables.ATTEMPTS, tables.JOBS):
            rows = self._draft.read(table)
            found = rows.where(F.col("event_date").isNotNull()).join(F.broadcast(jobs), "job_uid", "left_semi")
            days = _dates(found)
            if days:
                left = self._draft.read(table, days).join(F.broadcast(jobs), "job_uid", "left_anti")
                self._draft.replace_days(table, days, self._draft.write(table, left))
            gone |= days
        return gone

    # -- gold

    def _work_out_gold(self, came: Collection[str], changed: Collection[str]) -> None:
        """Compute gold for the days with new events and the days on which silver changed."""
        days = set(came) | set(changed)
        if not days:
            return
        attempts, jobs = self._draft.read(tables.ATTEMPTS, changed), self._draft.read(tables.JOBS, changed)

        def line() -> None:
            self._throughput(days)
            self._depth(min(days))

        def times() -> None:
            took = gold.measured_durations(attempts, jobs)
            self._replace(tables.HISTOGRAM, changed, gold.duration_histogram(took))
            self._replace(
                tables.DURATIONS, changed, gold.duration_percentiles(took, self._draft.read(tables.HISTOGRAM, changed))
            )

        def rest() -> None:
            self._replace(tables.OUTCOMES, changed, gold.outcomes_per_hour(attempts, jobs))
            self._replace(tables.ERRORS, changed, gold.errors_per_day(attempts))
            self._replace(tables.SCHEDULES, changed, gold.schedules_per_day(jobs))

        self._side_by_side(line, *([times, rest, lambda: self._workers(changed)] if changed else []))

    def _side_by_side(self, *works: Callable[[], None]) -> None:
        """Run several tables in parallel: small tables need more planning than work, and planning uses one core."""
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="longshore-gold") as threads:
            for done in [threads.submit(inheritable_thread_target(self._spark)(work)) for work in works]:
                done.result()

    def _throughput(self, days: Collection[str]) -> None:
        unknown = self._draft.read(tables.JOBS).where("first_seq > 1").select("job_uid")
        events = self._draft.read(tables.EVENTS, days)
        self._replace(tables.THROUGHPUT, days, gold.throughput_per_minute(events, unknown))
        counted = self._draft.read(tables.THROUGHPUT, days).groupBy("event_date").agg(F.sum("events").alias("events"))
        there = self._draft.manifest.days(tables.EVENTS)
        found = {str(row["event_date"]): int(row["events"]) for row in counted.collect()}
        for day in days:
            checks.check_counted(day, there.get(day, 0), found.get(day, 0))

    def _depth(self, first: str) -> None:
        days = [day for day in self._draft.manifest.days(tables.THROUGHPUT) if day >= first]
        before = [day for day in self._draft.manifest.days(tables.DEPTH) if day < first]
        opening = gold.closing_depth(self._draft.read(tables.DEPTH, before[-1:]))
        rows = gold.depth_over_time(self._draft.read(tables.THROUGHPUT, days), opening)
        self._replace(tables.DEPTH, [day for day in self._draft.manifest.days(tables.DEPTH) if day >= first], rows)

    def _workers(self, changed: Collection[str]) -> None:
        """Compute workers per hour. An attempt counts in every hour it ran, so earlier days change too."""
        ended = self._draft.read(tables.ATTEMPTS, changed)
        (row,) = ended.agg(F.min(date_of(F.col("started_at"))).alias("first")).collect()
        first = min([*changed, *([str(row["first"])] if row["first"] else [])])
        last = max(changed)
        later = [day for day in self._draft.manifest.days(tables.ATTEMPTS) if day >= first and day != OPEN]
        rows = gold.workers_per_hour(self._draft.read(tables.ATTEMPTS, later))
        rows = rows.where((F.col("event_date") >= F.lit(first)) & (F.col("event_date") <= F.lit(last)))
        self._replace(
            tables.WORKERS, [day for day in self._draft.manifest.days(tables.WORKERS) if first <= day <= last], rows
        )

    def _replace(self, table: str, days: Collection[str], rows: DataFrame) -> None:
        with self._timed(table.removeprefix("gold.").replace("_", " ")) as add:
            piece = add(self._draft.write(table, rows))
        self._draft.replace_days(table, days, piece)

    # -- rebuild from bronze

    def rebuild(self, days: Collection[str]) -> None:
        """Rebuild silver and gold of some days from bronze."""
        there = self._draft.manifest.days(tables.EVENTS)
        wanted = {day for day in days if day in there}
        if not wanted:
            return
        if wanted == set(there):
            for table in (tables.ATTEMPTS, tables.JOBS, tables.CARRIED, *tables.GOLD):
                self._draft.replace_days(table, list(self._draft.manifest.days(table)))
            fresh = as_steps(self._draft.read(tables.EVENTS))
            changed = self._bring_silver_up_to_date(fresh, anew=True)
            self._work_out_gold(wanted, changed)
            return
        jobs = only_steps(self._draft.read(tables.EVENTS, wanted)).select("job_uid").distinct()
        steps = as_steps(self._draft.read(tables.EVENTS).join(jobs, "job_uid", "left_semi"))
        on_these = F.col("event_date").cast("string").isin(sorted(wanted))
        with ExitStack() as held:
            rows = silver.made_of(_held(with_course(silver.together(steps.limit(0), steps)), held))
            self._replace(tables.ATTEMPTS, wanted, rows.ended.where(on_these))
            self._replace(tables.JOBS, wanted, rows.finished.where(on_these))
        self._work_out_gold(wanted, wanted)

    # -- pieces

    def compact(self) -> None:
        """Merge the pieces of days that have many."""
        for table in (tables.EVENTS, tables.ATTEMPTS, tables.JOBS):
            pieces = self._draft.manifest.pieces(table)
            days = {day for piece in pieces for day in piece.days}
            scattered = {day for day in days if sum(day in piece.days for piece in pieces) > MOST_PIECES}
            if scattered:
                rows = self._draft.read(table, scattered)
                with self._timed(f"{table} put together") as add:
                    whole = add(self._draft.write(table, rows))
                self._draft.replace_days(table, scattered, whole)

    @contextmanager
    def _timed(self, name: str) -> Iterator[Callable[[Piece], Piece]]:
        begun = perf_counter()
        rows = 0

        def add(piece: Piece) -> Piece:
            nonlocal rows
            rows += piece.rows
            return piece

        yield add
        self._on_step(Step(name, rows, perf_counter() - begun))


def _held(rows: DataFrame, until: ExitStack) -> DataFrame:
    """Persist rows until the stack is closed, so that they are computed once."""
    held = rows.persist(StorageLevel.DISK_ONLY)
    until.callback(held.unpersist)
    return held


def _dates(rows: DataFrame) -> set[str]:
    return {str(row["event_date"]) for row in rows.select("event_date").distinct().collect()}
