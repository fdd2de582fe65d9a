"""Workers over HTTP in real processes: they and their server are killed. Nothing is lost or done twice."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from longshore import Job, JobStatus
from tests.processes.process_group import ROOT, ProcessGroup
from tests.processes.test_workers import add, checked, many, read_until, start_process, until_all_are

LINE_ENDS = 30


class Served:
    """A server on a file, killed and restarted on the same port."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = "0"
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        command = [sys.executable, "-m", "tests.processes.server_process", self.url, self.port, ""]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self.port = self.address.rpartition(":")[2]
        assert self.port.isdigit(), self.address

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate(timeout=LINE_ENDS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    opened = Served(f"sqlite:///{tmp_path / 'jobs.db'}")
    opened.start()
    yield opened
    opened.kill()


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_every_job_is_done_although_remote_workers_and_their_server_are_killed(
    server: Served, seed: int, proving: bool
) -> None:
    """F01 F02 F08."""
    kills, jobs = (12, 600) if proving else (2, 120)
    chance = Random(seed)
    add(server.url, many(jobs))
    with ProcessGroup(server.address) as processes:
        start_process(processes, "w0")
        start_process(processes, "w1")
        for number in range(kills):
            remaining = chance.randint(5, 25)
            while remaining > 0:
                started_process, what, _ = processes.next_line()
                assert what != "over" or started_process.process.returncode is not None, started_process.errors
                remaining -= what == "started"
            if number % 2:
                processes.started_processes[-1].kill()
                start_process(processes, f"w{number + 2}")
            else:
                server.kill()
                server.start()
            add(server.url, many(jobs // 4, f"slow {number}"))
        until_all_are(server.url, {JobStatus.COMPLETED}, within=120)
        stored, _ = checked(server.url)
        started = Counter((job_id, epoch) for job_id, epoch in processes.lines_of("started"))
    assert max(started.values()) == 1  # no claim was run twice, even if its answer was lost
    assert len(stored) == jobs + kills * (jobs // 4)
    assert all(job.retry_count == 0 for job in stored.values())


def test_the_jobs_of_a_killed_remote_worker_are_reclaimed_when_its_lease_expires(server: Served) -> None:
    """F01."""
    add(server.url, [Job(id="a", type="until killed")])
    with ProcessGroup(server.address) as processes:
        first = start_process(processes, "first")
        read_until(processes, lambda _, what: what == "started")
        first.kill()
        start_process(processes, "second")
        until_all_are(server.url, {JobStatus.COMPLETED})
        stored, _ = checked(server.url)
    job = stored["a"]
    assert (job.executions, job.crashes) == (2, 1)
