"""Batches on a real cluster, whose executors and whose Java are killed with -9: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from longshore.backends.connect import connect
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.runtime.queue import Queue
from longshore.testing.conformance.scenarios import all_jobs, audit, log_of
from tests.spark.cluster import Cluster, standalone_cluster
from tests.spark.test_batches import runs_in

ROOT = Path(__file__).parents[2]
ROWS = 600
WORKER = """
import asyncio
sys.path.insert(0, sys.argv[2])  # the import path of the rows' function; the tasks get it too
from longshore import Queue, Worker, connect
from longshore.spark.executor.spark import SparkExecutor
from tests.spark import rows_to_run

mine = ("spark.executor.", "spark.driver.host", "spark.driver.bind", "spark.driver.memory", "spark.ui.", "spark.log.")
settings = {name: value for name, value in spark.sparkContext.getConf().getAll() if name.startswith(mine)}
print(spark.sparkContext._gateway.proc.pid, flush=True)

async def main():
    executor = SparkExecutor(rows_to_run.as_told, master=sys.argv[1], config=settings)
    async with Queue(connect(sys.argv[3])) as queue:
        await Worker(queue, executor, concurrency=1000, until_empty=True, autorun=False).run()

asyncio.run(main())
"""


async def enqueued(url: str, runs: Path) -> None:
    async with connect(url) as backend:
        rows = [{"n": n, "do": "sleep", "seconds": 0.02, "folder": str(runs)} for n in range(ROWS)]
        await Queue(backend).add_bulk([("row", row, {"max_crashes": 3}) for row in rows])


def at_work(cluster: Cluster, url: str, runs: Path) -> subprocess.Popen[str]:
    """A worker that has run some of the rows."""
    worker = cluster.start(WORKER, str(ROOT), url)
    cluster.wait_for(lambda: "some" if len(runs_in(runs)) > ROWS // 10 else "", within=120)
    return worker


async def completed_once(url: str, runs: Path, most_crashes: int) -> list[Job]:
    """All jobs; each has one outcome, and was run as often as the log says."""
    async with connect(url) as backend:
        await audit(backend)
        jobs = await all_jobs(backend)
        events = await log_of(backend)
    assert [job.status for job in jobs] == [JobStatus.COMPLETED] * ROWS
    assert {job.result for job in jobs} == {str(2 * n).encode() for n in range(ROWS)}
    assert Counter(event.job_id for event in events if event.to_status is JobStatus.COMPLETED) == Counter(
        {job.id: 1 for job in jobs}
    )
    again = [job for job in jobs if job.executions > 1]
    assert sum(job.crashes for job in again) <= most_crashes
    assert Counter(runs_in(runs)) <= Counter({job.data["n"]: job.executions for job in jobs})
    return again


@pytest.mark.cluster
async def test_a_killed_executor_repeats_only_the_rows_that_it_was_running(tmp_path: Path) -> None:
    url, runs = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "runs"
    runs.mkdir()
    await enqueued(url, runs)
    with standalone_cluster(tmp_path) as cluster:
        worker = at_work(cluster, url, runs)
        cluster.kill_an_executor()
        cluster.finish(worker)
    again = await completed_once(url, runs, most_crashes=1)
    print(f"one of two executors killed in a batch of {ROWS}: {len(again)} job run again, each completed once")


@pytest.mark.cluster
async def test_a_worker_whose_java_is_killed_starts_another_and_loses_nothing(tmp_path: Path) -> None:
    url, runs = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "runs"
    runs.mkdir()
    await enqueued(url, runs)
    with standalone_cluster(tmp_path) as cluster:
        worker = at_work(cluster, url, runs)
        assert worker.stdout is not None
        os.kill(int(worker.stdout.readline()), signal.SIGKILL)
        cluster.finish(worker)
    again = await completed_once(url, runs, most_crashes=2)
    print(f"the driver's Java killed in a batch of {ROWS}: {len(again)} jobs claimed again, each completed once")
