"""A backup while other processes write: one consistent moment of the queue, with its own event log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable, CursorExpired, InvalidArgument
from longshore.core.job import Job
from tests.backends.audit import audit
from tests.processes.process_group import ProcessGroup

LARGE = 6_000
"""Jobs of two pages each: many times what a copy takes in one step."""


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if not file.name.endswith(("-wal", "-shm", "-wake")))


async def test_a_backup_made_during_writes_ends_and_is_one_moment_of_the_queue(tmp_path: Path) -> None:
    path, copied_to = tmp_path / "jobs.db", tmp_path / "copy.db"
    async with SQLiteBackend(path) as backend:
        for start in range(0, LARGE, 1_000):
            batch = range(start, start + 1_000)
            await backend.enqueue_jobs([Job(id=f"before{n}", type="t", payload=b" " * 8_000) for n in batch])
        cursor = (await backend.read_events(limit=1))[0].cursor
        with ProcessGroup(path) as processes:
            started_processes = [processes.start_process("writer", name, "1000000") for name in ("one", "two")]
            while not all(started_process.lines_of("enqueued") for started_process in started_processes):
                await asyncio.to_thread(processes.next_line)
            await asyncio.wait_for(backend.backup(copied_to), timeout=20)
            written = len(processes.lines_of("enqueued"))
            for started_process in started_processes:
                assert started_process.process.poll() is None
                await asyncio.to_thread(started_process.finish)
            assert len(processes.lines_of("enqueued")) > written  # they wrote during and after the backup
            with pytest.raises(InvalidArgument, match="exists already; name a new file"):
                await backend.backup(copied_to)
            async with SQLiteBackend(copied_to) as copy:
                jobs, _ = await audit(copy)
                ids = {job.id for job in jobs}
                assert {f"before{n}" for n in range(LARGE)} <= ids
                for started_process in started_processes:  # the first calls of each writer, each one whole
                    calls = [set(call) for (call,) in started_process.lines_of("trying")]
                    there = [call <= ids for call in calls]
                    assert there == sorted(there, reverse=True)
                    assert all(call.isdisjoint(ids) for call, whole in zip(calls, there, strict=True) if not whole)
                with pytest.raises(CursorExpired, match="another event log"):
                    await copy.read_events(cursor)
                assert await copy.dequeue_jobs("w", limit=3)
    assert names_in(tmp_path) == ["copy.db", "jobs.db"]


async def test_a_backup_that_cannot_be_made_leaves_nothing_that_looks_like_one(tmp_path: Path) -> None:
    async with SQLiteBackend(tmp_path / "jobs.db") as backend:
        await backend.enqueue_job(Job(id="j", type="t"))
        with pytest.raises(BackendUnavailable, match="cannot be opened"):
            await backend.backup(tmp_path / "missing" / "copy.db")
        assert (await backend.get_job("j")).id == "j"
    assert names_in(tmp_path) == ["jobs.db"]
