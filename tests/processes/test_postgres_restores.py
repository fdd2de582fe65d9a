"""An older copy of PostgreSQL's files is put back under live workers: they say so, and each job has one outcome."""

# R4, F32
from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from longshore import Job, JobStatus, connect
from tests.cli.terminal import PROGRAM
from tests.postgres_server import Server

JOBS = 8
PATIENCE = 90
"""Seconds."""


async def until_status(url: str, status: JobStatus, least: int) -> None:
    async with asyncio.timeout(PATIENCE), connect(url, wait_seconds=30) as backend:
        while (await backend.count_jobs())[status] < least:
            await backend.wait_for_change(0.2)


def keep_a_copy(server: Server) -> None:
    server.stop()
    subprocess.run(["cp", "--archive", server.folder / "data", server.folder / "copy"], check=True)
    server.start()


def put_it_back(server: Server) -> None:
    server.stop("immediate")
    shutil.rmtree(server.folder / "data")
    (server.folder / "copy").rename(server.folder / "data")
    server.start()


def start_worker(url: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as told:
        return subprocess.Popen([*PROGRAM, "worker", "--url", url, "--concurrency", "2"], stdout=told, stderr=told)


@pytest.mark.timeout(200)
async def test_workers_notice_an_older_copy_and_finish_its_jobs_once(tmp_path: Path) -> None:
    with Server() as server:
        url = server.create_database("harbour")
        async with connect(url) as backend:
            jobs = [Job(id=f"j{n}", type="sleep", payload=b'{"seconds": 2}') for n in range(JOBS)]
            await backend.enqueue_jobs(jobs)
        keep_a_copy(server)
        logs = [tmp_path / f"worker{n}" for n in range(2)]
        workers: list[subprocess.Popen[bytes]] = []
        try:
            workers = [start_worker(url, log) for log in logs]
            await until_status(url, JobStatus.COMPLETED, 5)
            put_it_back(server)
            await until_status(url, JobStatus.COMPLETED, JOBS)
            assert [worker.poll() for worker in workers] == [None, None]
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(60)
        told = "".join(log.read_text() for log in logs)
        assert "was replaced by an older copy" in told, told
        async with connect(url) as backend:
            events = await backend.read_events()
        ends = Counter(event.job_id for event in events if event.event == "job.completed")
        assert ends == {f"j{n}": 1 for n in range(JOBS)}
        epochs = Counter((event.job_id, event.epoch) for event in events if event.event == "job.active")
        assert max(epochs.values()) == 1
