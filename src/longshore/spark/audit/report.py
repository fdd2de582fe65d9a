"""One audit: everything is read and judged once, and what was found is kept at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.audit.findings import findings, judged_lives
from longshore.spark.audit.kinds import PRUNED, Kind
from longshore.spark.audit.reading import Material

YOUNG = timedelta(seconds=60)
"""Before the end of a log that several write to at once, an event may be there before the one it follows."""


@dataclass(frozen=True)
class AuditReport:
    """What an audit found."""

    events: int
    jobs: int
    """Jobs that the events tell of."""
    counts: dict[Kind, int]
    """How often each was found; what was not is not in it."""
    pruned: dict[Kind, int]
    """Jobs of which old events are no longer kept: no defect."""
    compared: bool | None
    """Whether log and stored jobs could be held against each other; None where there were no stored jobs."""
    seconds: float
    findings: DataFrame
    """All of them; kept by Spark until its session ends."""

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def listed(self, most: int) -> list[dict[str, Any]]:
        """The first so many, in the order of kinds and jobs."""
        return [row.asDict() for row in self.findings.orderBy("kind", "job_uid", "job_seq").limit(most).collect()]

    def all(self) -> Iterator[dict[str, Any]]:
        """Each of them, however many; a part of them is in memory at a time."""
        for row in self.findings.toLocalIterator():
            yield row.asDict()


def audit(material: Material) -> AuditReport:
    """Judges every step of every job, in one pass."""
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
