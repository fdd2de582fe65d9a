"""An older copy of PostgreSQL is restored under live workers: they report it, and each job has one outcome."""

# R4, F32
from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from longshore import Job, JobEvent, JobStatus, connect
from tests.postgres_server import Server

JOBS = 8
SECONDS = 1
"""Seconds that each job takes."""
LEASE = 4
TIMEOUT = 90
"""Seconds."""
TRIES = 20
"""The workers' transactions and pg_restore may meet in a deadlock, and PostgreSQL ends one of them."""
OUTCOMES = {"job.completed", "job.failed", "job.stopped", "job.dead"}


async def until_status(url: str, status: JobStatus, least: int) -> None:
    async with asyncio.timeout(TIMEOUT), connect(url, wait_seconds=30) as backend:
        while (await backend.count_jobs())[status] < least:
            await backend.wait_for_change(0.2)


def make_a_copy(form: str, server: Server, url: str, dumped: Path) -> None:
    if form == "files":
        server.stop()
        subprocess.run(["cp", "--archive", server.folder / "data", server.folder / "copy"], check=True)
        server.start()
    else:
        subprocess.run([server.program("pg_dump"), "--format=custom", f"--file={dumped}", url], check=True)


def restore(form: str, server: Server, url: str, dumped: Path) -> None:
    if form == "files":
        server.stop("immediate")
        shutil.rmtree(server.folder / "data")
        (server.folder / "copy").rename(server.folder / "data")
        server.start()
        return
    options = ["--single-transaction", f"--dbname={url}", str(dumped)]
    if form == "dump in place":
        options += ["--clean", "--if-exists"]
    else:
        name = urlsplit(url).path.removeprefix("/")
        server.drop_database(name)
        server.create_database(name)
    for _ in range(TRIES):
        restored = subprocess.run([server.program("pg_restore"), *options], capture_output=True, text=True)
        if restored.returncode == 0:
            return
        assert "deadlock" in restored.stderr, restored.stderr
    raise AssertionError(f"pg_restore met a deadlock {TRIES} times")


def start_worker(url: str, name: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.processes.worker_process", "loop", url, name, "2", str(LEASE), "30"]
    with (folder / f"{name}.out").open("w") as out, (folder / f"{name}.err").open("w") as err:
        return subprocess.Popen(command, stdout=out, stderr=err)


def claims_of(name: str, folder: Path) -> list[tuple[str, int, str]]:
    """The job, the epoch and the token of each claim that this worker ran."""
    output = map(json.loads, (folder / f"{name}.out").read_text().splitlines())
    return [(values[0], values[1], values[2]) for what, *values in output if what == "claimed"]


async def whole_log(url: str) -> list[JobEvent]:
    async with connect(url, wait_seconds=30) as backend:
        return await backend.read_events(limit=1_000)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("form", ["files", "dump into a new database", "dump in place"])
async def test_workers_notice_an_older_copy_and_finish_its_jobs_once(form: str, tmp_path: Path) -> None:
    with Server() as server:
        url = server.create_database("harbour")
        async with connect(url) as backend:
            kind = {"type": "shows its lease", "payload": json.dumps(SECONDS).encode()}
            await backend.enqueue_jobs([Job(id=f"j{n}", **kind) for n in range(JOBS)])  # type: ignore[arg-type]  # both fit
        make_a_copy(form, server, url, tmp_path / "dump")
        workers: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in ("first", "second"):
                workers[name] = start_worker(url, name, tmp_path)
            await until_status(url, JobStatus.COMPLETED, 3)  # others run and hold leases
            old_log = (await whole_log(url))[0].cursor.partition("-")[0]
            restore(form, server, url, tmp_path / "dump")
            await until_status(url, JobStatus.COMPLETED, JOBS)
            assert [worker.poll() for worker in workers.values()] == [None, None]
        finally:
            for worker in workers.values():
                worker.terminate()
            for worker in workers.values():
                worker.wait(60)
        events = await whole_log(url)
    new_log = events[-1].cursor.partition("-")[0]
    assert new_log != old_log

    # each worker reports the restore
    for name in workers:
        said = (tmp_path / f"{name}.err").read_text()
        assert "was replaced by an older copy" in said, said
        assert "Traceback" not in said, said

    # in the new log each job has one outcome, and each epoch was used once
    assert Counter(event.job_id for event in events if event.event in OUTCOMES) == {f"j{n}": 1 for n in range(JOBS)}
    started = Counter((event.job_id, event.epoch) for event in events if event.event == "job.active")
    assert set(started.values()) == {1}

    # the copy reused epochs, but no two claims have the same token
    claims = [claim for name in workers for claim in claims_of(name, tmp_path)]
    assert max(Counter((job_id, epoch) for job_id, epoch, _ in claims).values()) > 1
    assert len(set(claims)) == len(claims)
    if form == "dump in place":  # keeps connections: for up to a second claims have the name of the old log
        return
    named = Counter((job_id, epoch, token.partition("-")[0]) for job_id, epoch, token in claims)
    assert set(named.values()) == {1}
    completed = {(event.job_id, event.epoch) for event in events if event.event == "job.completed"}
    assert completed <= {(job_id, epoch) for job_id, epoch, log in named if log == new_log}
