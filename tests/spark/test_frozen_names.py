"""The frozen names that only a running Spark tells: fingerprints, the JSON of `pipeline`, and the columns of reports.

The files are those of tests/repo/test_frozen_names.py, in tests/repo/frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from longshore import Job, connect

# All private modules that this file needs; correct these lines when the modules move.
from longshore.cli import pipeline
from longshore.cli.exit_codes import Exit
from longshore.spark.lake.error_fingerprints import error_type_of, fingerprint_of, pattern_of
from tests.cli.terminal import longshore
from tests.repo.frozen_files import check_frozen, keys_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ERRORS = [
    "ValueError: no such order 1047",
    "ValueError: no such order 1048",
    "KeyError: 'name'\nTraceback (most recent call last)",
    'shop.errors.PaymentRefused: card "4711" of 8f14e45f-ceea-467f-a0e6-1b1a2b3c4d5e',
    "OSError: [Errno 2] at 0x7f01 in /srv/data/x.txt",
    "TimeoutError",
    "  spaces   and\ttabs 12.5  ",
    "größer als erlaubt: 10",
    "",
    None,
]
TABLE_NAMES = frozenset({"counts", "no_longer_kept", "tables", "totals"})
"""The fields of `--json` whose keys are names of tables or of findings."""


def test_the_same_error_keeps_its_pattern_and_fingerprint(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(place, text) for place, text in enumerate(ERRORS)], "place int, error string")
    told = frame.select("error", error_type_of(frame.error), pattern_of(frame.error), fingerprint_of(frame.error))
    rows = [json.dumps(list(row), ensure_ascii=False) for row in told.orderBy("place").collect()]
    check_frozen("error_fingerprints.txt", ["error, type, pattern, fingerprint", *rows])


def test_the_pipeline_keeps_the_keys_of_its_json_and_the_columns_of_its_reports(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def shared(_master: object, _conf: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline, "spark_session", shared)
    url, lake, output = f"sqlite:///{tmp_path / 'jobs.db'}", str(tmp_path / "lake"), tmp_path / "report"
    asyncio.run(_fill(url))
    runs = {
        "run": ["--url", url, "--lake", lake],
        "status": ["--lake", lake],
        "report": ["--lake", lake, "--output", str(output)],
        "archive": ["--url", url, "--lake", lake, "--older-than", "0", "--dry-run"],
        "audit": ["--lake", lake, "--url", url],
    }
    found: dict[str, Any] = {}
    for name, words in runs.items():
        if name == "audit":
            _lose_a_job(tmp_path / "jobs.db")
        done = longshore("pipeline", name, *words, "--json")
        assert done.code == (Exit.FAILED if name == "audit" else Exit.OK), done.err
        found[f"pipeline {name}"] = keys_of(json.loads(done.out), TABLE_NAMES)
    check_frozen("pipeline_json.txt", json.dumps(found, indent=1, sort_keys=True).splitlines())
    tables = sorted(output.glob("*.csv"))
    check_frozen("report_columns.txt", [f"{one.name}: {one.read_text('utf-8').splitlines()[0]}" for one in tables])


def _lose_a_job(path: Path) -> None:
    """Give the audit something to find."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("DELETE FROM jobs WHERE id = 'job-3'")


async def _fill(url: str) -> None:
    """Jobs that end in different ways, so that every table of the report has something to tell."""
    async with connect(url) as backend:
        await backend.enqueue_jobs([Job(id=f"job-{number}", type="t") for number in range(4)])
        first, second, third, _ = await backend.dequeue_jobs("w", limit=4)
        await backend.complete_job(first.id, lease=first.lease)
        await backend.fail_job(second.id, "ValueError: no", retry_at=60, lease=second.lease)
        await backend.bury_job(third.id, "ValueError: never", lease=third.lease)
