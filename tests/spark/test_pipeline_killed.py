"""The pipeline killed without a word, at random points, and run again: the lake is as if nothing had happened."""

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from threading import Event
from typing import TYPE_CHECKING

import pytest

from longshore.spark.lake.lake import Lake
from longshore.spark.pipeline import run_pipeline
from tests.spark.conftest import QUICK
from tests.spark.history import Life
from tests.spark.lakes import assert_same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = 14
"""Lines that a run prints, one for each step."""


def start(life: Life, lake: Path) -> subprocess.Popen[str]:
    settings = [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]
    command = ["pipeline", "run", "--url", life.url, "--lake", str(lake), "--events-at-once", "120", *settings]
    return subprocess.Popen(
        [sys.executable, "-m", "longshore.cli", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def kill_at_random(running: subprocess.Popen[str], chance: Random) -> int:
    """After some of its lines, and a moment more; how many lines it was."""
    assert running.stderr is not None
    lines = chance.randrange(STEPS)
    for _ in range(lines):
        running.stderr.readline()
    # a random delay, so that the kill hits any step
    Event().wait(chance.uniform(0, 0.8 if lines else 12))
    running.kill()
    running.communicate()
    return lines


@pytest.mark.prove
@pytest.mark.timeout(1_800)
def test_a_run_killed_at_any_moment_continues_when_run_again(
    spark: "SparkSession", tmp_path: Path, seed: int, proving: bool
) -> None:
    chance = Random(seed)
    life = Life(f"sqlite:///{tmp_path / 'jobs.db'}", seed)
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    points = []
    for _ in range(10 if proving else 2):
        asyncio.run(life.pass_days(1, jobs=40))
        points.append(kill_at_random(start(life, disturbed), chance))
    if proving:
        last = start(life, disturbed)
        _, told = last.communicate(timeout=280)
        assert last.returncode == 0, told
    else:
        run_pipeline(life.url, str(disturbed), spark=spark)
    print(f"killed {len(points)} times, after {', '.join(map(str, points))} steps of its run")
    run_pipeline(life.url, str(undisturbed), spark=spark)
    assert_same(disturbed, undisturbed)
    kept = Lake.open(str(disturbed)).manifest
    assert kept.totals == Lake.open(str(undisturbed)).manifest.totals
