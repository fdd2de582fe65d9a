"""One audit: read a store or kept events, apply the rules, and collect the findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.backends.export import LogPosition, log_position
from longshore.core.errors import InvalidArgument
from longshore.spark.audit import histories, rules
from longshore.spark.audit.rules import PRUNED, Kind, Rule
from longshore.spark.options import Address, address, answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WAITS_FOR_WRITERS = 10.0
"""Seconds to wait for transactions that were open when the jobs were read; the report names a longer one."""
_LOOKS_EVERY = 0.2


@dataclass(frozen=True)
class Material:
    """The input of an audit."""

    events: DataFrame
    jobs: DataFrame | None = None
    certain: histories.Watermark = field(default_factory=histories.Watermark)
    pruned: bool = False
    """Whether old events may have been removed, so that a history may begin anywhere."""


class History(NamedTuple):
    """Events of a store that were kept elsewhere, complete up to one position of its log."""

    events: DataFrame
    reached: LogPosition
    log: str
    """The id of the log; a store that was restored from a copy has a new log."""


def from_history(events: DataFrame) -> Material:
    """Audit events that were kept elsewhere, such as in a lake, without the jobs of the store."""
    return Material(events.select(*histories.EVENT_COLUMNS), pruned=True)


def from_store(
    spark: SparkSession,
    url: str,
    *,
    schema: str | None = None,
    history: History | None = None,
    swept_within: timedelta = histories.SWEPT_WITHIN,
    wait: float = WAITS_FOR_WRITERS,
) -> Material:
    """Events and jobs of a store that may be in full use; with a history, what was pruned of its events is known too.

    The jobs are read first, in one snapshot, and kept while the log is read: so the log has all that happened to them,
    up to where each stood. See docs/audit.md.
    """
    options = {"url": url} | ({} if schema is None else {"schema": schema})
    where = address(options)
    with where.opened() as backend:
        now = answer(backend.now())
    before = where.log_ends()
    if history is not None and history.log != before.log:
        raise InvalidArgument(
            "lake", "is the history of another log: of another store, or of this one before it was restored from a copy"
        )
    jobs = _read(spark, "jobs", histories.JOB_COLUMNS, options).localCheckpoint(eager=True)
    covered = _covers(where, where.log_ends().end, within=wait)
    events = _read(spark, "events", histories.EVENT_COLUMNS, options)
    if history is not None:
        events = _continued(history, events)
    certain = histories.Watermark(log_position(before.last), covered, now, swept_within)
    return Material(events, jobs, certain, pruned=where.log_ends().pruned_anywhere > 0)


def _read(spark: SparkSession, table: str, columns: tuple[str, ...], options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("longshore").options(**options).option("columns", ",".join(columns)).load(table)


def _continued(history: History, events: DataFrame) -> DataFrame:
    """The kept events, and the later events of the store."""
    xid, number = history.reached
    if xid:
        later = events.where(F.col("xid") >= xid).where(f"xid > {xid:d} OR number > {number:d}")
    else:
        later = events.where(F.col("number") > number)
    return history.events.select(*histories.EVENT_COLUMNS).unionByName(later)


def _covers(where: Address, position: int, within: float) -> bool:
    """Whether the log can be read up to this position, after waiting for open transactions."""
    began = perf_counter()
    while where.log_ends().certain < position:
        if perf_counter() - began > within:
            return False
        with where.opened() as backend:
            answer(backend.wait_for_change(_LOOKS_EVERY))
    return True


Group = Sequence[Rule]


def judged_lives(
    events: DataFrame, jobs: DataFrame | None = None, certain: histories.Watermark | None = None
) -> DataFrame:
    """Every step of every job with what is wrong about it in `wrong`, an array that is empty for most.

    `events` and `jobs` are as the data source `longshore` gives them, whatever the order of their rows.
    See docs/audit.md.
    """
    certain = certain or histories.Watermark()
    lives = histories.steps(events, certain.until)
    if jobs is None:
        return lives.transform(histories.with_what_came_before).withColumn("wrong", F.expr(_wrong(rules.OF_EVENTS)))
    lives = lives.unionByName(histories.standings(jobs), allowMissingColumns=True)
    lives = lives.transform(histories.with_what_came_before).transform(histories.with_the_whole_life)
    swept = None if certain.now is None else certain.now - certain.swept_within
    of_events, of_jobs = _judgements(certain)
    judged = f"IF(stored, {_wrong(of_jobs)}, {_wrong(of_events)})"
    return lives.withColumn("swept", F.lit(swept).cast("timestamp")).withColumn("wrong", F.expr(judged))


def findings(judged: DataFrame) -> DataFrame:
    """One row for everything that is wrong. See docs/audit.md."""
    return (
        judged.where("size(wrong) > 0")
        .withColumn("found", F.explode("wrong"))
        .select("found.kind", "job_uid", "job_id", "queue", "job_seq", "event", "occurred_at", "found.detail")
    )


def _judgements(certain: histories.Watermark) -> tuple[list[Group], list[Group]]:
    """The groups of rules for events, and those for stored jobs."""
    of_jobs: list[Group] = [rules.STANDING, rules.SWEEP]
    if not certain.covered:
        return list(rules.OF_EVENTS), of_jobs
    return [*rules.OF_EVENTS, rules.PRESENCE], [rules.RECORDED, *of_jobs]


def _wrong(groups: Sequence[Group]) -> str:
    return f"array_compact(array({', '.join(map(_first_that_holds, groups))}))"


def _first_that_holds(group: Group) -> str:
    cases = " ".join(
        f"WHEN {rule.when} THEN named_struct('kind', '{rule.kind}', 'detail', {_as_sql(rule.detail)})" for rule in group
    )
    return f"CASE {cases} END"


def _as_sql(text: str) -> str:
    """An SQL expression for a text with SQL in braces; a null becomes an empty text."""
    pieces = re.split(r"\{([^}]*)\}", text)
    spoken = [
        f"coalesce(string({piece}), 'nothing')" if place % 2 else f"'{piece}'" for place, piece in enumerate(pieces)
    ]
    return f"concat({', '.join(spoken)})"


YOUNG = timedelta(seconds=60)
"""Near the end of a log with concurrent writers, an event may be readable before the one that precedes it."""


@dataclass(frozen=True)
class AuditReport:
    """What an audit found. See docs/audit.md."""

    events: int
    jobs: int
    """The number of jobs that have events."""
    counts: dict[Kind, int]
    """The number of findings per kind; kinds without findings are omitted."""
    pruned: dict[Kind, int]
    """Jobs whose old events were pruned; this is expected."""
    compared: bool | None
    """Whether the log and the stored jobs could be compared; None without stored jobs."""
    seconds: float
    findings: DataFrame
    """All findings; Spark keeps them until its session ends."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.counts

    def listed(self, most: int) -> list[dict[str, Any]]:
        """The first findings, ordered by kind and job."""
        return [row.asDict() for row in self.findings.orderBy("kind", "job_uid", "job_seq").limit(most).collect()]

    def all(self) -> Iterator[dict[str, Any]]:
        """Iterate over all findings with a part of them in memory at a time."""
        for row in self.findings.toLocalIterator():
            yield row.asDict()


def run_audit(material: Material) -> AuditReport:
    """Judge every step of every job, in one pass. See docs/audit.md."""
    began = perf_counter()
    read, lived = Observation(), Observation()
    events = material.events.observe(
        read, F.count(F.lit(1)).alias("events"), F.max("occurred_at").alias("newest"), F.max("xid").alias("xid")
    )
    judged = judged_lives(events, material.jobs, material.certain).observe(
        lived, F.count_if(~F.col("stored") & F.col("before").isNull()).alias("jobs")
    )
    found = findings(judged).localCheckpoint(eager=True)
    seen = read.get
    if material.jobs is None and seen["xid"] is not None:
        young = F.col("occurred_at") > F.lit(seen["newest"] - YOUNG)
        found = found.where(~((F.col("kind") == Kind.GAP) & young))
    counts = {Kind(row["kind"]): row["count"] for row in found.groupBy("kind").count().collect()}
    excused = PRUNED if material.pruned else frozenset()
    return AuditReport(
        events=seen["events"],
        jobs=lived.get["jobs"],
        counts={kind: counts[kind] for kind in Kind if kind in counts and kind not in excused},
        pruned={kind: counts[kind] for kind in Kind if kind in counts and kind in excused},
        compared=None if material.jobs is None else material.certain.covered,
        seconds=perf_counter() - began,
        findings=found.where(~F.col("kind").isin([kind.value for kind in excused])) if excused else found,
    )
