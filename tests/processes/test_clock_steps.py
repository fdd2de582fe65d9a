"""The machine's clock is set while worker processes share a file: each job runs once, and no job waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from longshore import Job, JobStatus, Queue, connect
from longshore.core.clock import HeldClock, machine_time
from longshore.core.health import Finding
from longshore.runtime.doctor import examine
from tests.backends.audit import audit_at
from tests.machine import SteppedMachine, install
from tests.processes.process_group import ProcessGroup
from tests.processes.test_workers import add, many, read_until, until_all_are

LEASE = 4.0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A durable store that several processes share."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def test_doctor_reports_a_store_clock_behind_the_newest_event(url: str) -> None:
    # R2: the clock of PostgreSQL's server was set back; no test can set it, so another clock writes the newest event
    async def look() -> list[Finding]:
        async with Queue(connect(url)) as queue:
            return [finding for finding in await examine(queue) if finding.check == "clock"]

    async def write_ahead() -> None:
        async with connect(url, clock=HeldClock(machine_time() + timedelta(hours=1))) as backend:
            await backend.enqueue_jobs([Job(id="j", type="x")])

    add(url, [Job(id="i", type="x")])
    assert [finding.level for finding in asyncio.run(look())] == ["ok"]
    asyncio.run(write_ahead())
    (finding,) = asyncio.run(look())
    assert finding.level == "problem"
    assert finding.found.startswith("the store's clock is 60 min behind the newest event")
    assert "time server" in finding.fix


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_clock_runs_no_job_twice_and_stalls_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    # R2
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    file = tmp_path / "step"
    machine = SteppedMachine(file)
    install(monkeypatch, machine)  # for this process
    running = [Job(id=f"running {n}", type="blocks the loop", payload=b"3") for n in range(2)]
    add(url, running)
    with ProcessGroup(url) as processes:
        for number in range(2):
            processes.start_process("loop", f"w{number}", "1", str(LEASE), "30", str(file), program="clock_process")
        read_until(processes, lambda _, what: what == "started" and len(processes.lines_of("started")) == 2)
        waiting = [*many(5), Job(id="delayed", type="slow", delay=3)]
        add(url, waiting)
        machine.step(step)
        add(url, many(5, "a while"))
        until_all_are(url, {JobStatus.COMPLETED})
        started = Counter(job_id for job_id, _ in processes.lines_of("started"))
    stored, _ = asyncio.run(audit_at(url))
    assert all((job.epoch, job.crashes) == (1, 0) for job in stored.values()), started
    assert set(started.values()) == {1}


def test_the_jobs_of_a_dead_worker_are_swept_on_time_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R2: the sweep is not stalled
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    machine = SteppedMachine(tmp_path / "step")
    install(monkeypatch, machine)

    async def take_and_vanish() -> None:
        async with connect(url) as backend:
            await backend.enqueue_jobs([Job(id="j", type="slow")])
            await backend.dequeue_jobs("gone", lease=LEASE)

    asyncio.run(take_and_vanish())
    machine.step(-3600)
    with ProcessGroup(url) as processes:
        processes.start_process("loop", "w", "1", str(LEASE), "30", str(tmp_path / "step"), program="clock_process")
        until_all_are(url, {JobStatus.COMPLETED})
    stored, _ = asyncio.run(audit_at(url))
    assert (stored["j"].crashes, stored["j"].assignee_id) == (1, "w")
