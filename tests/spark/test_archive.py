"""`pipeline archive`: the store forgets what the lake has proven to hold, and nothing else."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from longshore.backends.archive import Archived, SupportsArchive
from longshore.backends.connect import connect
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.spark.lake.archive import archive
from longshore.spark.lake.lake import Lake
from longshore.spark.lake.manifest import LakeError
from longshore.spark.pipeline import run_pipeline
from tests.spark.lakes import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = timedelta(0)


async def work_off(url: str, *ids: str) -> None:
    """Jobs that were added, run and completed, each with a result and a line in its log."""
    async with connect(url) as backend:
        await backend.enqueue_jobs([Job(id=name, type="mail", payload=b'{"to": 1}', tags=["a"]) for name in ids])
        for job in await backend.dequeue_jobs("worker", limit=len(ids)):
            await backend.append_log(job.id, f"about {job.id}")
            await backend.complete_job(job.id, b'"done"', lease=job.lease)


async def ids_in(url: str) -> set[str]:
    async with connect(url) as backend:
        return {job.id for job in (await backend.list_jobs(JobFilter(), limit=1000)).items}


async def events_in(url: str) -> list[str]:
    async with connect(url) as backend:
        return [event.event for event in await backend.read_events()]


@pytest.mark.prove
async def test_the_archive_removes_from_the_store_only_what_the_lake_holds(
    spark: "SparkSession", postgres_url: str, tmp_path: Path, proving: bool
) -> None:
    await archive_twice(spark, postgres_url, tmp_path / "on a server")
    if proving:
        await archive_twice(spark, f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "in a file")


async def archive_twice(spark: "SparkSession", store_url: str, lake: Path) -> None:
    await work_off(store_url, "a", "b", "c")
    run_pipeline(store_url, str(lake), spark=spark)
    await work_off(store_url, "late")  # of which the lake knows nothing yet
    async with connect(store_url) as backend:
        await backend.enqueue_job(Job(id="waiting", type="mail"))
        await backend.append_log("c", "one more line")  # so that the lake does not hold all of it

    could = archive(store_url, str(lake), spark=spark, older_than=NOW, dry_run=True)
    assert (could.jobs, could.events) == (2, 12)
    await refuse_while_an_event_is_another(spark, store_url, lake)
    assert await ids_in(store_url) == {"a", "b", "c", "late", "waiting"}

    report = archive(store_url, str(lake), spark=spark, older_than=NOW)
    assert (report.jobs, report.events, report.logs) == (2, 12, 2)
    assert await ids_in(store_url) == {"c", "late", "waiting"}
    assert (await events_in(store_url)).count("job.completed") == 1
    assert (await events_in(store_url)).count("job.removed") == 2
    held = {row["id"]: row for row in Lake.open(str(lake)).table(spark, "archive.jobs").collect()}
    assert {name: bytes(row["payload"]) for name, row in held.items()} == dict.fromkeys("ab", b'{"to": 1}')
    assert {bytes(row["result"]) for row in held.values()} == {b'"done"'}
    assert len(rows_of(lake, "archive.logs")) == 2

    # the history is complete and continues
    run_pipeline(store_url, str(lake), spark=spark)
    assert len(rows_of(lake, "silver.jobs")) == 5
    assert archive(store_url, str(lake), spark=spark, older_than=NOW).jobs == 2
    assert await ids_in(store_url) == {"waiting"}


async def refuse_while_an_event_is_another(spark: "SparkSession", store_url: str, lake: Path) -> None:
    await write_detail(store_url, "{}")
    with pytest.raises(LakeError, match="nothing was removed: the store has 1 old events that the lake does not hold"):
        archive(store_url, str(lake), spark=spark, older_than=NOW)
    await write_detail(store_url, None)


async def write_detail(url: str, detail: str | None) -> None:
    """Change an event that has no detail behind the engine's back, or makes it again what it was."""
    change = "UPDATE {}job_events SET detail = {} WHERE job_id = 'a' AND job_seq = 2"
    if url.startswith("sqlite"):
        async with connect(url) as backend:
            connection = backend.new_connection()  # type: ignore[attr-defined]  # a store in a file has this
            connection.execute(change.format("", "?"), (detail,))
            connection.close()
    else:
        with psycopg.connect(url) as server:
            server.execute(change.format("longshore.", "%s"), (detail,))


def test_of_a_lake_that_is_not_there_nothing_is_removed(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no lake at"):
        archive(f"sqlite:///{tmp_path / 'jobs.db'}", str(tmp_path / "nowhere"), spark=spark, older_than=NOW)


async def test_a_job_that_went_on_after_it_was_archived_stays(store_url: str) -> None:
    async with connect(store_url) as backend:
        assert isinstance(backend, SupportsArchive)
        await backend.enqueue_jobs([Job(id=name, type="mail") for name in ("dead", "done", "running")])
        for job in await backend.dequeue_jobs("worker", limit=3):
            if job.id == "dead":
                await backend.bury_job(job.id, "no", lease=job.lease)
            elif job.id == "done":
                await backend.complete_job(job.id, lease=job.lease)
        seen = {event.job_id: event.job_seq for event in await backend.read_events()}
        marks = [Archived(str(name), seq) for name, seq in seen.items()]
        await backend.retry_job("dead")
        assert await backend.remove_archived_jobs(marks) == 1
        left = {job.id: job.status for job in (await backend.list_jobs(JobFilter())).items}
        assert left == {"dead": JobStatus.FAILED_RETRY, "running": JobStatus.RUNNING}


async def test_events_are_pruned_no_further_than_they_are_held(store_url: str) -> None:
    async with connect(store_url) as backend:
        assert isinstance(backend, SupportsArchive)
        await backend.enqueue_jobs([Job(id=f"j{n}", type="mail") for n in range(3)])
        with backend.bulk_reader() as reader:  # type: ignore[attr-defined]  # every store that has an address can
            held = reader.log_ends().last
        await backend.enqueue_job(Job(id="later", type="mail"))
        now = await backend.now()
        pruned = 0
        while some := await backend.prune_archived_events(now, held):
            pruned += some
        assert pruned == 3
        assert [event.job_id for event in await backend.read_events()] == ["later"]
