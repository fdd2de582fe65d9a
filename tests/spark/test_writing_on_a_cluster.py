"""Jobs written from a real cluster, of which an executor is killed with -9: nothing lost, nothing doubled."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from longshore.backends.connect import connect
from longshore.core.status import JobStatus
from longshore.spark.sink import enqueue_report
from longshore.testing.conformance.scenarios import all_jobs, audit
from tests.spark.cluster import standalone_cluster

ROWS = 4_000
WRITER = """
from pathlib import Path

folder = Path(sys.argv[3])

def slowly(batches):  # slow, so that the kill hits the middle; a task reports when it has passed on some rows
    import os, time, uuid
    for batch in batches:
        for start in range(0, batch.num_rows, 50):
            yield batch.slice(start, 50)
            (folder / f"{os.getppid()}-{uuid.uuid4().hex}").touch()
            time.sleep(0.02)

rows = spark.range(int(sys.argv[4]), numPartitions=4).selectExpr("'send' AS type", "named_struct('n', id) AS data")
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
rows.mapInArrow(slowly, rows.schema).write.format("longshore").option("url", sys.argv[2]).option(
    "runId", "the write"
).mode("append").save("jobs")
"""


def staged_rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        (count,) = connection.execute("SELECT count(*) FROM longshore.staged_jobs").fetchone() or (0,)
        return int(count)


@pytest.mark.cluster
async def test_after_an_executor_is_killed_during_a_write_every_row_is_exactly_one_job(
    postgres_url: str, tmp_path: Path
) -> None:
    async with connect(postgres_url) as backend:
        await backend.count_jobs()
    handed = tmp_path / "handed"
    handed.mkdir()
    with standalone_cluster(tmp_path) as cluster:
        writer = cluster.start(WRITER, postgres_url, str(handed), str(ROWS))
        cluster.wait_for(lambda: "some" if len(list(handed.iterdir())) > 5 else "", within=120)
        cluster.kill_an_executor()
        assert enqueue_report(postgres_url, "the write") is None  # it was in the midst
        cluster.finish(writer)
    report = enqueue_report(postgres_url, "the write")
    assert report == (ROWS, ROWS)
    assert staged_rows(postgres_url) == 0
    async with connect(postgres_url) as backend:
        await audit(backend)
        jobs = await all_jobs(backend)
    assert sorted(job.data["n"] for job in jobs) == list(range(ROWS))
    assert {job.status for job in jobs} == {JobStatus.INITIAL_PENDING}
    print(f"one of two executors killed while {ROWS} rows were written: {len(jobs)} jobs, each row once")


@pytest.mark.cluster
async def test_a_driver_killed_during_a_write_leaves_no_job_and_the_next_write_inserts_all(
    postgres_url: str, tmp_path: Path
) -> None:
    async with connect(postgres_url) as backend:
        await backend.count_jobs()
    handed = tmp_path / "handed"
    handed.mkdir()
    with standalone_cluster(tmp_path) as cluster:
        writer = cluster.start(WRITER, postgres_url, str(handed), str(ROWS))
        cluster.wait_for(lambda: "some" if staged_rows(postgres_url) else "", within=120)
        cluster.kill(writer)
        async with connect(postgres_url) as backend:
            assert await all_jobs(backend) == []
        cluster.finish(cluster.start(WRITER, postgres_url, str(handed), str(ROWS)))
    async with connect(postgres_url) as backend:
        jobs = await all_jobs(backend)
    assert sorted(job.data["n"] for job in jobs) == list(range(ROWS))
    assert staged_rows(postgres_url) == 0
    print(f"the driver killed while {ROWS} rows were written: no job; the same run again: {len(jobs)}, each row once")
