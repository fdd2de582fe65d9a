"""Jobs as rows of Spark batches: each has its own outcome, whatever becomes of its neighbours and their tasks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.runtime.executors.base import Target
from longshore.runtime.queue import Queue
from longshore.runtime.worker import Worker
from longshore.spark.executor.batch import MOST_BYTES, gathered, how_many, may_begin
from longshore.spark.executor.spark import SparkExecutor
from tests.runtime.working import comes_to, happens, until
from tests.spark import rows_to_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = JobStatus
PATIENCE = 60.0


@pytest.fixture
async def backend(spark: SparkSession) -> AsyncIterator[Backend]:
    async with connect("memory://") as store:
        yield store


async def enqueued(backend: Backend, *rows: dict[str, Any], **fields: Any) -> list[str]:
    specs: list[Any] = [{"type": "row", "data": row, **fields} for row in rows]
    return [job.id for job in await Queue(backend).add_bulk(specs)]


def runs_in(folder: Path) -> list[int]:
    """The number of each row that was run, as often as it was."""
    return sorted(int(path.name.split("-")[0]) for path in folder.iterdir())


async def worked_off(backend: Backend, function: Any = rows_to_run.as_told, **options: Any) -> dict[int, Job]:
    """All jobs, by their number, once there is nothing left that could be claimed."""
    executor = SparkExecutor(function, cancel_grace=0.5)
    how = {"concurrency": 500, "until_empty": True, "autorun": False, **options}
    await Worker(Queue(backend), executor, **how).run()
    return {job.data["n"]: job for job in (await backend.list_jobs(JobFilter(), limit=1000)).items}


async def test_every_row_has_an_outcome_of_its_own(backend: Backend, tmp_path: Path) -> None:
    strange = {7: "raise", 50: "bury", 99: "snooze", 130: "no JSON"}
    rows = [{"n": n, "do": strange.get(n, ""), "folder": str(tmp_path)} for n in range(200)]
    await enqueued(backend, *rows, attempts=2)
    jobs = await worked_off(backend)
    good = [jobs[n] for n in range(200) if n not in (7, 50, 130)]
    assert {job.status for job in good} == {S.COMPLETED}
    assert [job.result for job in good] == [str(job.data["n"] * 2).encode() for job in good]
    assert {n: (jobs[n].status, jobs[n].retry_count) for n in strange} == {
        7: (S.DEAD, 2),
        50: (S.DEAD, 1),
        99: (S.COMPLETED, 0),
        130: (S.DEAD, 2),
    }
    assert "ValueError: bad row 7" in (jobs[7].error_message or "")
    assert "rows_to_run.py" in (jobs[7].error_message or "")
    assert "cannot be stored" in (jobs[130].error_message or "") or "result" in (jobs[130].error_message or "")
    assert runs_in(tmp_path) == sorted([*range(200), 7, 99, 130])


async def test_a_row_that_takes_its_process_down_is_buried_alone(backend: Backend, tmp_path: Path) -> None:
    rows = [{"n": n, "do": "segfault" if n in (11, 12) else "", "folder": str(tmp_path)} for n in range(40)]
    await enqueued(backend, *rows, max_crashes=1)
    jobs = await worked_off(backend)
    assert {n: (job.status, job.crashes) for n, job in jobs.items() if job.status is not S.COMPLETED} == {
        11: (S.DEAD, 2),
        12: (S.DEAD, 2),
    }
    assert "ended without a word while it ran the job" in (jobs[11].error_message or "")
    assert all(job.executions == 1 and job.crashes == 0 for n, job in jobs.items() if n not in (11, 12))
    assert runs_in(tmp_path) == sorted([*range(40), 11, 12])  # who had ended when a task died was not run again


async def test_notes_are_written_as_from_everywhere_else(backend: Backend) -> None:
    (id,) = await enqueued(backend, {"n": 4}, attempts=2)
    jobs = await worked_off(backend, rows_to_run.with_notes)
    assert (jobs[4].status, jobs[4].retry_count) == (S.COMPLETED, 1)
    assert jobs[4].result == f'[{{"from":4}},"{id}"]'.encode()
    assert jobs[4].progress == {"half": 4}
    assert [(entry.message, entry.level) for entry in await backend.read_logs(id)] == [("half way", "warn")]


async def test_rows_are_cancelled_in_steps(backend: Backend, spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"n": n, "manners": "polite" if n < 3 else "deaf", "folder": str(tmp_path)} for n in range(24)]
    ids = await enqueued(backend, *rows)
    executor = SparkExecutor(rows_to_run.until_called_off, cancel_grace=3)  # within which the polite one must answer
    async with Worker(Queue(backend), executor, concurrency=100, cancel_grace=3) as worker:
        await until(lambda: len(runs_in(tmp_path)) == 2, within=PATIENCE)  # the first of two tasks, three rows each
        begun, waiting = [ids[0], ids[3]], [*ids[1:3], *ids[4:]]
        await backend.cancel_jobs(job_ids=waiting)
        for id in waiting:  # while those before them keep them from their turn
            await comes_to(backend, id, within=PATIENCE)
        await backend.cancel_jobs(job_ids=begun)
        ended = [await comes_to(backend, id, within=PATIENCE) for id in ids]
        await until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
        assert worker.running == 0
    assert runs_in(tmp_path) == [0, 3]  # the others were skipped before they started
    assert [job.status for job in ended] == [S.COMPLETED] + [S.STOPPED] * 23


async def test_a_slow_row_does_not_block_others(backend: Backend) -> None:
    await enqueued(backend, *[{"n": n, "manners": "rude" if n else "deaf"} for n in range(4)], timeout=0.3)
    jobs = await worked_off(backend, rows_to_run.until_called_off, cancel_grace=0.5)
    assert {job.status for job in jobs.values()} == {S.DEAD}
    assert all("TimeoutError" in (job.error_message or "") for job in jobs.values())


async def test_a_row_that_lets_no_python_run_is_ended_by_spark(backend: Backend) -> None:
    await enqueued(backend, {"n": 0, "do": "freeze"}, timeout=0.3)
    await enqueued(backend, *[{"n": n} for n in range(1, 20)])
    jobs = await worked_off(backend, cancel_grace=0.5)
    assert [n for n, job in jobs.items() if job.status is not S.COMPLETED] == [0]
    assert (jobs[0].status, jobs[0].crashes) == (S.DEAD, 0)
    assert "TimeoutError" in (jobs[0].error_message or "")


async def test_leases_are_renewed_for_rows_that_wait_for_their_turn(backend: Backend) -> None:
    await enqueued(backend, *[{"n": n, "do": "sleep", "seconds": 0.3} for n in range(20)])
    jobs = await worked_off(backend, lock_duration=1.5)
    assert {(job.status, job.executions, job.crashes) for job in jobs.values()} == {(S.COMPLETED, 1, 0)}


async def test_a_worker_that_stops_hands_its_rows_back(backend: Backend) -> None:
    ids = await enqueued(backend, *[{"n": n, "manners": "rude"} for n in range(10)])
    executor = SparkExecutor(rows_to_run.until_called_off, cancel_grace=0.5)
    async with Worker(Queue(backend), executor, concurrency=100, cancel_grace=0.5) as worker:
        await happens(backend, "job.progress")
        await worker.close(grace=0)
    jobs = [await backend.get_job(id) for id in ids]
    assert {(job.status, job.crashes, job.retry_count) for job in jobs} == {(S.UNKNOWN_RETRY, 0, 0)}


async def test_a_job_that_tasks_cannot_import_is_released_with_the_reason(backend: Backend) -> None:
    (id,) = await enqueued(backend, {"n": 0})
    executor = SparkExecutor(Target("no_such_module", "function"))
    async with Worker(Queue(backend), executor):
        released = await happens(backend, "job.released")
    assert "No module named 'no_such_module'" in released.detail["reason"]
    assert (await backend.get_job(id)).crashes == 0


async def test_a_harbors_tasks_run_on_spark(spark: SparkSession) -> None:
    handles = await rows_to_run.measure.enqueue_many([rows_to_run.measure.call(f"m{n}", [n, n]) for n in range(30)])
    later = await rows_to_run.measure_later.enqueue("a")
    async with rows_to_run.harbor.worker(["rows"], concurrency=100):
        assert [await handle.result() for handle in handles] == [{f"m{n}": 2.0 * n} for n in range(30)]
        assert await later.result() == "A"


async def test_a_client_without_the_secret_is_disconnected(backend: Backend) -> None:
    executor = SparkExecutor(rows_to_run.as_told)
    port = await executor._server.open("127.0.0.1")
    try:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b'\0\0\0\x0c\0\0\0\0{"hello":""}')
            assert await asyncio.to_thread(stranger.recv, 1) == b""
    finally:
        await executor.close()


def test_functions_that_tasks_could_not_find_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="lambda"):
        SparkExecutor(lambda job: job)
    with pytest.raises(InvalidArgument, match="batch_size"):
        SparkExecutor(rows_to_run.as_told, batch_size=0)
    with pytest.raises(InvalidArgument, match="Spark Connect"):
        rows_to_run.harbor.use_spark(master="sc://there")
    with pytest.raises(InvalidArgument, match="must be at the top level of a module"):
        rows_to_run.harbor.task(executor="spark")(lambda: None)


def test_jobs_are_gathered_while_more_come_and_not_for_ever() -> None:
    assert not gathered(jobs=1, before=-1, waited=0, most=10)
    assert not gathered(jobs=5, before=1, waited=0.05, most=10)
    assert gathered(jobs=5, before=5, waited=0.1, most=10)
    assert gathered(jobs=10, before=5, waited=0.1, most=10)
    assert gathered(jobs=7, before=6, waited=0.5, most=10)


def test_a_batch_starts_while_others_run_if_it_is_large_enough() -> None:
    assert may_begin(jobs=1, under_way=[], slots=1, most=10)
    assert not may_begin(jobs=3, under_way=[4], slots=1, most=10)
    assert may_begin(jobs=4, under_way=[4], slots=1, most=10)
    assert may_begin(jobs=10, under_way=[400], slots=1, most=10)
    assert not may_begin(jobs=10, under_way=[1, 1], slots=1, most=10)


def test_a_batch_is_bounded_by_jobs_and_bytes() -> None:
    assert how_many([10] * 7, 5) == 5
    assert how_many([10] * 3, 5) == 3
    assert how_many([MOST_BYTES + 1, 1], 5) == 1
    assert how_many([MOST_BYTES // 2] * 5, 5) == 2
