"""The pipeline as an application of a real cluster, sent there by `spark-submit`; an executor is killed on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import longshore.cli.__main__ as entry
from longshore.spark.lake.lake import Lake
from longshore.spark.pipeline import run_pipeline
from tests.spark.cluster import standalone_cluster
from tests.spark.history import Life
from tests.spark.lakes import assert_same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_submitted_pipeline_produces_the_same_lake_although_an_executor_dies(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    life = Life(f"sqlite:///{tmp_path / 'jobs.db'}", seed)
    asyncio.run(life.pass_days(2))
    there, here = tmp_path / "there", tmp_path / "here"
    program, where = entry.__file__, ("--url", life.url, "--lake", str(there))
    with standalone_cluster(tmp_path) as cluster:
        running = cluster.submit(program, "pipeline", "run", *where, "--events-at-once", "200", "--json")
        cluster.wait_for(lambda: "some" if any((there / "receipts").glob("*.json")) else "", within=300)
        cluster.kill_an_executor()
        told = json.loads(cluster.finish(running, within=500).splitlines()[-1])
        again = cluster.submit(program, "pipeline", "audit", *where, "--json")
        audited = json.loads(cluster.finish(again, within=300).splitlines()[-1])
    run_pipeline(life.url, str(here), spark=spark)
    assert_same(there, here)
    assert told["events"] == Lake.open(str(here)).manifest.totals["events"] == audited["events"]
    assert audited["clean"], audited["findings"]
    print(f"{told['events']} events processed and audited by spark-submit, an executor killed meanwhile: the same lake")
