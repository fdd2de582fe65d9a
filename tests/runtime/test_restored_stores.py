"""An older copy of a store is restored under a live worker, listener, stream and server: each reports it."""

# R4, F32
from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import apsw
import pytest

from longshore import JobEvent, JobStatus, Queue
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job
from longshore.runtime.running_job import RunningJob
from longshore.server.event_tail import Tail
from tests.runtime.streaming import receive_ids
from tests.runtime.working import comes_to, until, working

LEASE = 0.6
"""Seconds."""


def copy(source: Path, target: Path) -> None:
    """Restore like `sqlite3 TARGET ".restore SOURCE"`: in one transaction, into the same file."""
    with apsw.Connection(str(source)) as old, apsw.Connection(str(target)) as new:
        new.set_busy_timeout(10_000)
        with new.backup("main", old, "main") as restoring:
            restoring.step()


async def some_events(backend: SQLiteBackend, queue: str, count: int = 5) -> None:
    for number in range(count):
        await backend.enqueue_job(Job(id=f"{queue} {number}", type="t", queue=queue))


async def test_a_worker_drops_a_lease_that_is_newer_than_the_store_and_says_that_the_store_went_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    runs: list[int] = []
    first = asyncio.Event()

    async def process(job: RunningJob) -> str:
        runs.append(job.epoch)
        if len(runs) == 1:
            first.set()
            await asyncio.Event().wait()  # until its lease is lost
        return "done"

    async with Queue(SQLiteBackend(path)) as queue:
        await queue.add("x", job_id="a")
        copy(path, tmp_path / "copy")
        async with working(queue, process, lock_duration=LEASE):
            await until(first.is_set)
            copy(tmp_path / "copy", path)
            job = await comes_to(queue.backend, "a")
        events = await queue.read_events()
    assert (job.status, job.result) == (JobStatus.COMPLETED, b'"done"')
    assert len(runs) == 2
    assert Counter(event.event for event in events)["job.completed"] == 1
    said = [record for record in caplog.records if "the store was replaced by an older copy" in record.getMessage()]
    assert [record.levelname for record in said] == ["ERROR"], caplog.text
    assert "restart" not in caplog.text


async def test_listeners_say_that_the_log_went_back_and_hear_new_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    heard: list[str | None] = []
    async with Queue(SQLiteBackend(path)) as queue:
        await queue.add("x", job_id="old")
        copy(path, tmp_path / "copy")
        queue.on("job.added", lambda event: heard.append(event.job_id))
        for number in range(10):
            await queue.add("x", job_id=f"lost {number}")
        await until(lambda: len(heard) == 10)
        copy(tmp_path / "copy", path)
        await until(lambda: "replaced by an older copy" in caplog.text)
        await queue.add("x", job_id="new")
        await until(lambda: "new" in heard)
    assert heard[10:] == ["new"]


async def test_a_server_says_that_the_log_went_back_and_follows_new_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    heard: list[JobEvent] = []
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="old", type="t"))
        copy(path, tmp_path / "copy")
        tail = Tail(backend, heard.extend)
        await tail.open()
        try:
            await tail.catch_up()
            await some_events(backend, "lost", 10)
            await tail.catch_up()
            copy(tmp_path / "copy", path)
            await until(lambda: "replaced by an older copy" in caplog.text)
            await backend.enqueue_job(Job(id="new", type="t"))
            await tail.catch_up()
        finally:
            await tail.close()
    assert [event.job_id for event in heard if not (event.job_id or "").startswith("lost")] == ["new"]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, caplog.text


async def test_a_stream_says_that_the_log_went_back_and_frees_the_slot_of_a_disowned_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    async with Queue(SQLiteBackend(path)) as queue, Queue(SQLiteBackend(path)) as elsewhere:
        await queue.add("x", job_id="a")
        copy(path, tmp_path / "copy")
        for number in range(10):
            await elsewhere.add("x", job_id=f"lost {number}", delay=3_600)
        async with queue.stream_jobs("worker-1", max_assigned_jobs=1) as stream:
            assert await receive_ids(stream) == ["a"]
            await elsewhere.cancel_jobs(job_ids=["a"])
            await elsewhere.acknowledge_cancellation("a", False)
            await until(lambda: "a" in stream._disowned)
            copy(tmp_path / "copy", path)
            assert await receive_ids(stream) == ["a"]
            assert "a stream of worker-1 missed events" in caplog.text
