"""`df.write.format("longshore")`: every row becomes a job, or none does."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from longshore.backends.base import Backend
from longshore.backends.bulk_insert import KEEP_UNFINISHED, SupportsBulkInsert
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.job_options import job_from
from longshore.core.status import JobStatus
from longshore.core.times import SECOND
from longshore.spark.sink import RowsAsTexts, enqueue_report
from longshore.testing.conformance.scenarios import audit, log_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(frame: "DataFrame", url: str, *, mode: str = "append", **options: str) -> None:
    frame.write.format("longshore").option("url", url).options(**options).mode(mode).save("jobs")


async def make(url: str) -> None:
    async with connect(url) as backend:
        await backend.count_jobs()


async def jobs_in(url: str) -> list[Job]:
    async with connect(url) as backend:
        return list((await backend.list_jobs(JobFilter(), limit=1000)).items)


def staging(backend: Backend) -> SupportsBulkInsert:
    assert isinstance(backend, SupportsBulkInsert)
    return backend


def bodies(*rows: dict[str, Any]) -> list[str]:
    texts = RowsAsTexts(data_is_text=False)
    return [texts.text(row) for row in rows]


async def test_every_row_becomes_a_job_with_the_options_of_its_columns(spark: "SparkSession", store_url: str) -> None:
    await make(store_url)
    frame = spark.range(100).selectExpr(
        "'send' AS type",
        "named_struct('to', id, 'names', array('ada')) AS data",
        "concat('queue-', id % 2) AS queue",
        "array('eu', concat('n', id % 3)) AS tags",
        "id % 5 AS priority",
        "IF(id = 7, timestamp '2030-01-01 00:00:00', NULL) AS run_at",
        "1.5D AS timeout",
        "3 AS attempts",
        "concat('key-', id) AS idempotency_key",
    )
    write(frame.repartition(3), store_url, runId="first")
    jobs = {job.data["to"]: job for job in await jobs_in(store_url)}
    assert len(jobs) == 100
    job = jobs[7]
    assert (job.type, job.queue, set(job.tags), job.priority) == ("send", "queue-1", {"eu", "n1"}, 2)
    assert (job.max_attempts, job.idempotency_key, job.data["names"]) == (3, "key-7", ["ada"])
    assert job.run_at is not None
    assert jobs[8].run_at is None
    assert enqueue_report(store_url, "first") == (100, 100)
    write(frame, store_url, runId="first")  # the same run again
    write(frame, store_url, runId="second")  # the same keys again
    assert len(await jobs_in(store_url)) == 100
    report = enqueue_report(store_url, "second")
    assert report is not None
    assert (report.offered, report.inserted, report.already_there) == (100, 0, 100)


async def test_plain_rows_become_the_jobs_and_events_that_others_become(store_url: str) -> None:
    """A store may make jobs of plain rows by itself; a job enqueued by hand is the pattern, in every column."""
    columns: dict[str, Any] = {"priority": 4, "attempts": 3, "timeout": 1.5, "max_crashes": 1}
    rows: list[dict[str, Any]] = [
        {"type": f"kind-{n % 2}", "queue": f"queue-{n % 3}", "data": {"n": n, "text": "\x01 é \\u0000"}}
        for n in range(9)
    ]
    async with connect(store_url) as backend:
        store = staging(backend)
        texts = bodies(*({**row, **columns} for row in rows), {"type": "kind-0", "queue": "queue-0"})
        await store.stage_jobs("run", "plain", texts)
        await store.stage_jobs("run", "not told of", texts)
        await store.stage_jobs("run", "keyed", bodies({**rows[0], **columns, "idempotency_key": "k"}))
        assert await store.commit_run("run", ["plain", "keyed"]) == (11, 11)
        by_hand = [job_from(**row, **columns) for row in rows]
        await backend.enqueue_jobs(by_hand)
        jobs = list((await backend.list_jobs(JobFilter(), limit=100)).items)
        written = {
            job.data["n"]: job for job in jobs if job.data and job.idempotency_key is None and job not in by_hand
        }
        for pattern in [job for job in jobs if job.id in {each.id for each in by_hand}]:
            job = written[pattern.data["n"]]
            same = {
                "id": pattern.id,
                "uid": pattern.uid,
                "created_at": pattern.created_at,
                "updated_at": pattern.updated_at,
            }
            assert job.replace(**same) == pattern
        events = await log_of(backend)
        assert [(event.event, event.job_seq, event.detail or None) for event in events if event.job_id] == [
            ("job.added", 1, None)
        ] * 20
        counts = await backend.count_jobs()
        assert counts[JobStatus.INITIAL_PENDING] == 20
        claimed = await backend.dequeue_jobs("worker", limit=100, queues=("queue-0", "queue-1", "queue-2"))
        assert len(claimed) == 20
        await audit(backend)


async def test_a_task_that_is_tried_again_brings_its_rows_once(
    spark: "SparkSession", store_url: str, tmp_path: Path
) -> None:
    await make(store_url)
    flag = tmp_path / "failed"

    def fail_once(batches):  # type: ignore[no-untyped-def]  # runs in another process
        yield from batches
        if not flag.exists():
            flag.touch()
            raise RuntimeError("after all rows were staged")

    rows = spark.range(40, numPartitions=2).selectExpr("'send' AS type", "concat('job-', id) AS job_id")
    write(rows.mapInArrow(fail_once, rows.schema), store_url)
    assert flag.exists()
    assert sorted(job.id for job in await jobs_in(store_url)) == sorted(f"job-{number}" for number in range(40))


async def test_a_row_that_cannot_be_a_job_leaves_nothing_of_the_others(spark: "SparkSession", store_url: str) -> None:
    await make(store_url)
    rows = spark.range(50, numPartitions=2).selectExpr("'send' AS type", "IF(id = 33, -1, 1) AS attempts")
    with pytest.raises(Exception, match="column attempts: must be"):
        write(rows, store_url, runId="bad")
    assert await jobs_in(store_url) == []
    assert enqueue_report(store_url, "bad") is None


def test_an_impossible_write_is_refused_before_anything_is_written(spark: "SparkSession", tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for columns, mode, words in (
        (["'a' AS type", "1 AS colour"], "append", "column colour: is not an option of a job; use one of type"),
        (["'a' AS type", "'x' AS tags"], "append", "column tags: must be an array of text, not string"),
        (["'a' AS queue"], "append", "column type: is missing"),
        (["'a' AS type"], "overwrite", "overwrite would delete jobs"),
    ):
        with pytest.raises(Exception, match=words):
            write(spark.range(1).selectExpr(*columns), url, mode=mode)
    assert not (tmp_path / "jobs.db").exists()


async def test_rows_staged_by_a_failed_attempt_are_not_committed(store_url: str) -> None:
    async with connect(store_url) as backend:
        store = staging(backend)
        await store.stage_jobs("run", "first-try", bodies({"type": "send", "job_id": "a"}))
        await store.stage_jobs("run", "second-try", bodies({"type": "send", "job_id": "a"}))
        assert await backend.count_jobs() == dict.fromkeys(await backend.count_jobs(), 0)
        assert await store.commit_run("run", ["second-try"]) == (1, 1)
        assert await store.commit_run("run", ["second-try"]) == (1, 0)
        assert (await backend.get_job("a")).type == "send"


async def test_rows_with_an_existing_id_or_key_are_counted_separately(store_url: str) -> None:
    async with connect(store_url) as backend:
        store = staging(backend)
        await backend.enqueue_jobs([Job(id="old", type="send"), Job(id="keyed", type="send", idempotency_key="k")])
        rows = bodies(
            {"type": "send", "job_id": "old"},
            {"type": "send", "idempotency_key": "k"},
            {"type": "send", "job_id": "new"},
            {"type": "send", "job_id": "new"},
        )
        await store.stage_jobs("run", "part", rows)
        report = await store.commit_run("run", ["part"])
        assert (report.offered, report.inserted, report.already_there) == (4, 1, 3)


async def test_rows_staged_by_a_killed_run_are_removed_later(store_url: str) -> None:
    clock = HeldClock()
    async with connect(store_url, clock=clock) as backend:
        store = staging(backend)
        await store.stage_jobs("killed", "part", bodies({"type": "send"}))
        clock.advance(KEEP_UNFINISHED / SECOND / 2)
        await store.stage_jobs("at-work", "part", bodies({"type": "send"}))
        assert await store.clear_silent_runs() == 0
        clock.advance(KEEP_UNFINISHED / SECOND / 2 + 1)
        assert await store.clear_silent_runs() == 1
        assert await store.commit_run("killed", ["part"]) == (0, 0)
        assert await store.commit_run("at-work", ["part"]) == (1, 1)
        await store.stage_jobs("given-up", "part", bodies({"type": "send"}))
        await store.abandon_run("given-up")
        assert await store.commit_run("given-up", ["part"]) == (0, 0)
