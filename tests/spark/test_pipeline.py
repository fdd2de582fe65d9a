"""The pipeline on a real Spark: events become tables, once, however a run goes."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from longshore.backends.opening import connect
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.spark.lake.lake import Lake
from longshore.spark.lake.manifest import LakeError
from longshore.spark.lake.tables import EVENTS, GOLD
from longshore.spark.pipeline import Days, PipelineReport, run_pipeline
from tests.spark.history import Life
from tests.spark.lakes import assert_same, files_below, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def life(tmp_path: Path, seed: int) -> Life:
    """A store in which nothing has happened yet."""
    return Life(f"sqlite:///{tmp_path / 'jobs.db'}", seed)


def run(spark: "SparkSession", life: Life, lake: Path, **options: object) -> PipelineReport:
    return run_pipeline(life.url, str(lake), spark=spark, **options)  # type: ignore[arg-type]  # as given by the test


async def test_runs_that_add_a_little_make_the_same_lake_as_one_run_over_everything(
    spark: "SparkSession", life: Life, tmp_path: Path
) -> None:
    little, whole = tmp_path / "little", tmp_path / "whole"
    for _ in range(3):
        await life.pass_days(1)
        assert run(spark, life, little, events_at_once=150).events > 0
    report = run(spark, life, whole)
    assert report.batches == 1
    assert_same(spark, little, whole)
    assert {step.name for step in report.steps} >= {"events landed", "attempts", "jobs", "throughput", "depth"}
    for table in GOLD:
        assert rows_of(spark, whole, table), f"{table} is empty"

    # a run over nothing changes nothing
    version = Lake.open(str(little)).version
    assert run(spark, life, little).events == 0
    assert Lake.open(str(little)).version == version

    # days worked out again are what they were, and so is everything
    run(spark, life, little, again=Days(date(2026, 5, 2), date(2026, 5, 3)))
    assert_same(spark, little, whole)
    run(spark, life, little, again=Days(date(2026, 1, 1)))
    assert_same(spark, little, whole)
    assert Lake.open(str(little)).version == version + 2
