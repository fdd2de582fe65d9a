"""`longshore pipeline audit` and `report` from end to end: a store, its lake, a page, and a job lost on purpose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from typer.testing import CliRunner

from longshore import Job, connect
from longshore.cli.main import app
from longshore.spark.pipeline import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = Callable[..., Any]


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The command, in this process and in the session that is there: a Spark for each would take a minute."""

    @contextmanager
    def shared(_master: object, _conf: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("longshore.cli.pipeline.spark_session", shared)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["pipeline", *arguments])


def fill(path: Path) -> str:
    """A store in which some jobs are done, under names that mean harm."""
    url = f"sqlite:///{path}"

    async def work() -> None:
        async with connect(url) as backend:
            await backend.enqueue_jobs([Job(id=f"job-{number}", type="<b>t</b>", queue="=q") for number in range(9)])
            for job in await backend.dequeue_jobs("w", limit=5):
                await backend.complete_job(job.id, lease=job.lease)

    asyncio.run(work())
    return url


def lose(path: Path, job_id: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
    connection.close()


def test_a_lake_is_reported_and_audited_and_a_lost_job_is_found(
    spark: SparkSession, command: Command, tmp_path: Path
) -> None:
    url, lake = fill(tmp_path / "jobs.db"), str(tmp_path / "lake")
    run_pipeline(url, lake, spark=spark)
    written = command("report", "--lake", lake, "--output", "out", "--title", "<i>", "--json")
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["tables"]["throughput.csv"] == 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;t&lt;/b&gt;" in page
    assert "<b>t" not in page
    assert "'=q" in (tmp_path / "out" / "throughput.csv").read_text()
    later = command("report", "--lake", lake, "--output", "later", "--since", "2999-01-01")
    assert (later.exit_code, list((tmp_path / "later").iterdir())) == (0, [tmp_path / "later" / "report.html"])
    clean = command("audit", "--lake", lake)
    assert (clean.exit_code, "no problems found" in clean.stdout) == (0, True)
    lose(tmp_path / "jobs.db", "job-7")
    told = command("audit", "--lake", lake, "--url", url, "--output", "all.jsonl", "--json")
    assert told.exit_code == 1, told.output
    found = json.loads(told.stdout)
    assert (found["clean"], found["events"], found["jobs"], found["counts"]) == (False, 19, 9, {"lost": 1})
    assert [finding["job_id"] for finding in found["findings"]] == ["job-7"]
    assert [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()] == found["findings"]
    shown = command("audit", "--url", url)
    assert shown.exit_code == 1
    assert "lost: job job-7 (uid 8) of queue =q, event 1 job.added: the log ends at INITIAL_PENDING" in shown.stdout


def test_missing_or_invalid_options_are_named(command: Command, tmp_path: Path) -> None:
    for arguments, words in (
        (["audit"], "give --lake with a folder, --url with a store, or both"),
        (["audit", "--lake", str(tmp_path / "none")], "there is no lake at"),
        (["report", "--lake", "none", "--output", __file__], "is a file; name a folder"),
        (["report", "--lake", "none", "--output", "out", "--since", "May"], "must be a date such as 2026-05-01"),
    ):
        assert words in str(command(*arguments).exception)
