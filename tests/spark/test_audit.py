"""The audit finds what is wrong with a log, all of it and nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.backends.export import LogPosition
from longshore.spark.audit.audit import AuditReport, Material, run_audit
from longshore.spark.audit.histories import Watermark
from longshore.spark.audit.rules import PRUNED, Kind
from tests.spark.defects import DEFECTS, plant
from tests.spark.histories import Pattern, copied, led_by_the_engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def pattern() -> Pattern:
    return asyncio.run(led_by_the_engine())


def found_by(report: AuditReport) -> set[tuple[str, int]]:
    return {(finding["kind"], finding["job_uid"]) for finding in report.all()}


def short_log(spark: SparkSession, pattern: Pattern) -> tuple[DataFrame, DataFrame]:
    return copied(spark, pattern, len(DEFECTS) + 3)


@pytest.fixture
def long_log(spark: SparkSession, pattern: Pattern, proving: bool) -> tuple[DataFrame, DataFrame]:
    events = 1_000_000 if proving else 20_000
    return copied(spark, pattern, 1 + events // len(pattern.events))


def told_at_odd_times(events: DataFrame, pattern: Pattern) -> DataFrame:
    """A copy whose times run against its order, and one in which all happened at once: no defects."""
    first, second, third = (copy * pattern.width for copy in (1, 2, 3))
    plain = "(job_id LIKE 'plain %' OR job_id LIKE 'noted %' OR job_id LIKE 'crashing %')"
    return events.withColumn(
        "occurred_at",
        F.expr(f"""
        CASE WHEN job_uid >= {first} AND job_uid < {second} AND {plain}
             THEN occurred_at - make_dt_interval(0, 0, 0, job_seq)
             WHEN job_uid >= {second} AND job_uid < {third} THEN timestamp '2030-01-01 00:00:00'
             ELSE occurred_at END"""),
    )


@pytest.mark.prove
def test_the_audit_finds_all_planted_defects_and_nothing_else(
    long_log: tuple[DataFrame, DataFrame], pattern: Pattern, proving: bool
) -> None:
    events, jobs = long_log
    uids = {defect: (3 + place) * pattern.width + pattern.uid(defect.life) for place, defect in enumerate(DEFECTS)}
    events, jobs = plant(events.transform(told_at_odd_times, pattern), jobs, uids)
    report = run_audit(Material(events, jobs, Watermark(now=pattern.now)))
    assert found_by(report) == {(defect.kind, uid) for defect, uid in uids.items()}
    assert report.events > (1_000_000 if proving else 20_000)
    print(f"{len(DEFECTS)} defects among {report.events} events found in {report.seconds:.0f} s")


def test_of_events_alone_all_is_found_that_they_can_show(spark: SparkSession, pattern: Pattern) -> None:
    uids = {defect: (3 + place) * pattern.width + pattern.uid(defect.life) for place, defect in enumerate(DEFECTS)}
    events, _ = plant(*short_log(spark, pattern), uids)
    report = run_audit(Material(events))
    assert found_by(report) == {(defect.kind, uid) for defect, uid in uids.items() if defect.without_store}
    assert report.compared is None


def test_every_verb_of_the_engine_is_found_in_order(spark: SparkSession, pattern: Pattern) -> None:
    events, jobs = short_log(spark, pattern)
    report = run_audit(Material(events, jobs, Watermark(now=pattern.now)))
    assert (report.counts, report.clean, report.compared) == ({}, True, True)
    assert report.jobs == events.select("job_uid").distinct().where("job_uid IS NOT NULL").count()


def test_where_old_events_were_pruned_a_life_may_begin_anywhere(spark: SparkSession, pattern: Pattern) -> None:
    """Any number of the first events of any life may be gone, all of them too."""
    events, jobs = short_log(spark, pattern)
    kept = events.where("job_seq > pmod(job_uid * 7, 11)")
    report = run_audit(Material(kept, jobs, Watermark(now=pattern.now), pruned=True))
    assert report.counts == {}
    assert report.pruned.keys() == PRUNED
    strict = run_audit(Material(kept, jobs, Watermark(now=pattern.now)))
    assert strict.counts == report.pruned


def test_events_after_the_read_of_the_jobs_are_left_to_the_next_audit(spark: SparkSession, pattern: Pattern) -> None:
    """Some jobs came or went on since they were read, and what is not certain yet has gaps."""
    events, jobs = short_log(spark, pattern)
    certain = Watermark(LogPosition(0, len(pattern.events)), now=pattern.now)  # the jobs were read after the first copy
    once = jobs.where(f"uid < {pattern.width}")
    holes = events.where(f"job_uid < {pattern.width} OR job_seq != 2")
    assert run_audit(Material(holes, once, certain)).counts == {}
    assert Kind.LOST in run_audit(Material(events, jobs.where(f"uid > {pattern.width}"), certain)).counts
    behind = dataclasses.replace(certain, until=None, covered=False)
    assert run_audit(Material(events.where(f"job_uid < {pattern.width}"), jobs, behind)).counts == {}
