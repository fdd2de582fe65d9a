"""The pipeline on a real Spark: events become tables, once, however a run goes."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.spark.lake import lake as lakes
from longshore.spark.lake.files import HadoopFiles, files_at
from longshore.spark.lake.lake import Lake
from longshore.spark.lake.manifest import LakeError
from longshore.spark.lake.silver import out_of_order
from longshore.spark.lake.tables import CARRIED, GOLD, JOBS, schema_of
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


@pytest.mark.prove
async def test_incremental_runs_produce_the_same_lake_as_one_full_run(
    spark: "SparkSession", life: Life, tmp_path: Path, proving: bool
) -> None:
    little, whole = tmp_path / "little", tmp_path / "whole"
    for _ in range(12 if proving else 2):
        await life.pass_days(1, jobs=60 if proving else 30)
        assert run(spark, life, little, events_at_once=200 if proving else 120).batches > 1
    report = run(spark, life, whole)
    assert report.batches == 1
    assert_same(little, whole)
    assert {step.name for step in report.steps} >= {"events landed", "attempts", "jobs", "throughput", "depth"}
    for table in GOLD:
        assert rows_of(whole, table), f"{table} is empty"

    # a run without new events changes nothing, and a rebuilt day is unchanged
    version = Lake.open(str(little)).version
    assert run(spark, life, little).events == 0
    assert Lake.open(str(little)).version == version
    run(spark, life, little, again=Days(date(2026, 5, 2), date(2026, 5, 2)))
    assert Lake.open(str(little)).version == version + 1
    assert_same(little, whole)
    if proving:
        run(spark, life, little, again=Days(date(2026, 1, 1)))
        assert_same(little, whole)


async def test_a_run_that_is_stopped_leaves_the_lake_as_it_was_and_its_tables_can_be_asked_for(
    spark: "SparkSession", life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event from far ahead: what has landed is kept for a run that is let through."""
    lake = tmp_path / "lake"
    await life.pass_days(1, jobs=10)
    run(spark, life, lake, form="orc")
    tables_can_be_asked_for(spark, Lake.open(str(lake)), monkeypatch)
    before, files = Lake.open(str(lake)).manifest, files_below(lake)
    async with connect(life.url, clock=HeldClock(datetime(2999, 1, 1, tzinfo=UTC))) as backend:
        await backend.enqueue_job(Job(id="of tomorrow", type="t"))
    with pytest.raises(
        LakeError, match=r"the lake has not changed: an event is dated 2999-01-01 00:00 .* correct the clocks"
    ):
        run(spark, life, lake)
    assert Lake.open(str(lake)).manifest == before
    assert files_below(lake) >= files
    other = Life(f"sqlite:///{tmp_path / 'other.db'}", 1)
    await other.pass_days(1, jobs=1)
    with pytest.raises(LakeError, match=r"the history of another log: .* use another folder"):
        run(spark, other, lake)
    with pytest.raises(InvalidArgument, match="format: this lake uses orc; create a lake in another folder for delta"):
        run(spark, life, lake, form="delta")
    with files_at(str(lake)).alone(), pytest.raises(LakeError, match="another run is using"):
        run(spark, life, lake)


def tables_can_be_asked_for(spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In SQL, by days, and in formats that are more than files."""
    assert "gold_throughput" in lake.create_views(spark)
    counted = spark.sql("SELECT sum(events) AS events FROM gold_throughput").first()
    assert counted is not None
    assert counted.events == lake.manifest.totals["events"]
    (day, *_) = lake.days(JOBS)
    as_files = sorted(map(str, lake.table(spark, JOBS, {day}).collect()))
    with monkeypatch.context() as other:
        other.setattr(lakes, "PLAIN_FILES", ())
        assert sorted(map(str, lake.table(spark, JOBS, {day}).collect())) == as_files
    assert lake.table(spark, "archive.jobs").count() == 0
    with pytest.raises(InvalidArgument, match=r"'gold' is not a table of the lake; use one of bronze\.events"):
        lake.table(spark, "gold")


def test_retried_jobs_and_steps_out_of_order_are_detected(spark: "SparkSession") -> None:
    names = schema_of(CARRIED).fieldNames()

    def steps(*known: tuple[int, int]) -> "object":
        rows = [tuple({"job_uid": uid, "job_seq": seq}.get(name) for name in names) for uid, seq in known]
        return spark.createDataFrame(rows, schema_of(CARRIED))

    carried = steps((1, 1), (1, 2), (2, 1), (2, 4))
    fresh = steps((1, 3), (2, 3), (3, 1), (3, 2), (4, 7))
    found = out_of_order(carried, fresh)  # type: ignore[arg-type]  # they are DataFrames
    assert sorted(row.job_uid for row in found.collect()) == [2, 4]


@pytest.mark.parametrize("where", ["here", "hadoop"])
def test_small_files_of_a_lake_are_written_atomically(spark: "SparkSession", tmp_path: Path, where: str) -> None:
    files = files_at(str(tmp_path)) if where == "here" else HadoopFiles(tmp_path.as_uri(), spark)
    assert files.read("a/one.json") is None
    assert files.names("a") == []
    assert files.put_new("a/one.json", "first ü")
    assert not files.put_new("a/one.json", "second")
    assert files.read("a/one.json") == "first ü"
    files.put("a/one.json", "third")
    assert files.read("a/one.json") == "third"
    assert [name for name in files.names("a") if not name.startswith(".")] == ["one.json"]
    files.remove("a")
    assert files.names("a") == []


def test_a_folder_that_spark_would_take_for_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"lake: must not contain \[ \], which Spark reads as a pattern"):
        Lake.open(str(tmp_path / "lake[1]"))


def test_a_manifest_that_cannot_be_read_says_which_one(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no lake at"):
        Lake.open(str(tmp_path))
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "00000001.json").write_text(json.dumps({"layout": 9}))
    with pytest.raises(LakeError, match=r"00000001\.json has layout 9"):
        Lake.open(str(tmp_path))
