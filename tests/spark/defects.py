"""Defects planted in a correct log, each as SQL on a few rows of events and jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longshore.spark.audit.rules import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Defect:
    """What is changed of one life, by the number of the event; and the finding that must come of it."""

    kind: Kind
    life: str
    events: tuple[tuple[str, str, str], ...] = ()
    """Where, which column, what it becomes."""
    dropped: str = "false"
    doubled: str = "false"
    jobs: tuple[tuple[str, str], ...] = ()
    """Of the stored job: which column, what it becomes."""
    job_dropped: bool = False
    without_store: bool = True
    """Whether the events alone show it."""


DEFECTS = (
    Defect(
        Kind.ILLEGAL_TRANSITION,
        "failing",
        (("job_seq = 3", "to_status", "'INITIAL_PENDING'"), ("job_seq = 5", "from_status", "'INITIAL_PENDING'")),
    ),
    Defect(
        Kind.DOUBLE_CLAIM,
        "crashing",
        (("job_seq = 5", "from_status", "'RUNNING'"), ("job_seq > 4", "job_seq", "job_seq - 2")),
        dropped="job_seq IN (3, 4)",
        jobs=(("job_seq", "job_seq - 2"), ("crashes", "0")),
    ),
    Defect(Kind.EPOCH_BACK, "crashing", (("job_seq > 4", "epoch", "1"),), jobs=(("epoch", "1"),)),
    Defect(Kind.EPOCH_BACK, "noted", (("job_seq > 3", "epoch", "0"),), jobs=(("epoch", "0"),)),
    Defect(Kind.COUNTER_OFF, "crashing", (("job_seq > 4", "execution", "1"),), jobs=(("executions", "1"),)),
    Defect(
        Kind.COUNTER_OFF,
        "failing",
        (("job_seq = 6", "detail", """'{"error": "no route", "failures": 1}'"""),),
        jobs=(("retry_count", "1"),),
    ),
    Defect(Kind.BROKEN_CHAIN, "failing", (("job_seq = 5", "from_status", "'UNKNOWN_RETRY'"),)),
    Defect(
        Kind.WRONG_BEGINNING,
        "plain",
        (("job_seq = 1", "to_status", "'FAILED_RETRY'"), ("job_seq = 2", "from_status", "'FAILED_RETRY'")),
    ),
    Defect(Kind.STARTED_EARLY, "failing", (("job_seq = 5", "occurred_at", "occurred_at - INTERVAL 1 SECOND"),)),
    Defect(Kind.GAP, "noted", dropped="job_seq = 4"),
    Defect(Kind.DOUBLED_EVENT, "noted", doubled="job_seq = 4"),
    Defect(Kind.LATE_BEGINNING, "plain", dropped="job_seq = 1"),
    Defect(Kind.CHANGED_NAME, "plain", (("job_seq = 3", "queue", "'another'"),)),
    Defect(Kind.BAD_REMOVAL, "once", (("job_seq = 4", "job_seq", "3"),), dropped="job_seq = 3"),
    Defect(Kind.LOST, "waiting", job_dropped=True, without_store=False),
    Defect(Kind.LOST, "noted", job_dropped=True, without_store=False),
    Defect(Kind.UNRECORDED, "plain", dropped="job_seq = 3", without_store=False),
    Defect(Kind.WITHOUT_EVENTS, "plain", dropped="true", without_store=False),
    Defect(Kind.STANDS_ELSEWHERE, "plain", jobs=(("status", "'DEAD'"),), without_store=False),
    Defect(Kind.STANDS_ELSEWHERE, "noted", jobs=(("job_seq", "5"), ("status", "'RUNNING'")), without_store=False),
    Defect(
        Kind.STUCK,
        "running",
        jobs=(("lease_expires_at", "lease_expires_at - INTERVAL 95 SECONDS"),),
        without_store=False,
    ),
)


def plant(events: DataFrame, jobs: DataFrame, uids: dict[Defect, int]) -> tuple[DataFrame, DataFrame]:
    """The same events and jobs, with each defect in the life of its uid."""
    changed: dict[str, list[str]] = {}
    of_jobs: dict[str, list[str]] = {}
    dropped, doubled, gone = ["false"], ["false"], ["false"]
    for defect, uid in uids.items():
        for where, column, value in defect.events:
            changed.setdefault(column, []).append(f"WHEN job_uid = {uid} AND {where} THEN {value}")
        for column, value in defect.jobs:
            of_jobs.setdefault(column, []).append(f"WHEN uid = {uid} THEN {value}")
        dropped.append(f"job_uid = {uid} AND {defect.dropped}")
        doubled.append(f"job_uid = {uid} AND {defect.doubled}")
        if defect.job_dropped:
            gone.append(f"uid = {uid}")
    twins = events.where(" OR ".join(doubled)).selectExpr("*", "number + 1000000000 AS twin").drop("number")
    events = events.where(f"NOT coalesce({' OR '.join(dropped)}, false)")
    events = events.unionByName(twins.withColumnRenamed("twin", "number"))
    return _with(events, changed), _with(jobs.where(f"NOT ({' OR '.join(gone)})"), of_jobs)


def _with(frame: DataFrame, cases: dict[str, list[str]]) -> DataFrame:
    """All conditions are asked of the rows as they were."""
    return frame.selectExpr(
        *(
            f"CASE {' '.join(cases[name])} ELSE {name} END AS {name}" if name in cases else name
            for name in frame.columns
        )
    )
