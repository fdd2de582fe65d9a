"""Real processes on one store, killed at any moment or writing together: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from longshore.backends.connect import connect
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable
from longshore.core.job import Job
from longshore.core.status import JobStatus
from tests.backends.audit import audit, audit_at
from tests.checker import History
from tests.processes.process_group import ProcessGroup

EXPECTED_REFUSALS = {"LeaseLost", "JobNotInflight"}
"""The errors of a process whose machine was so busy that its lease expired; any other is a failure."""


def check_promises(processes: ProcessGroup, jobs: dict[str, Job], history: History) -> None:
    """Compare the clients' own logs with the store."""
    assert not processes.lines_of("error")
    acknowledged = [job_id for (ids,) in processes.lines_of("enqueued") for job_id in ids]
    tried = {job_id for (ids,) in processes.lines_of("trying") for job_id in ids}
    lost = [job_id for job_id in acknowledged if job_id not in jobs]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged jobs are gone: {lost[:5]}"
    assert len(acknowledged) == len(set(acknowledged))
    assert jobs.keys() <= tried, "jobs that no process enqueued"
    claims = Counter((job_id, epoch) for (pairs,) in processes.lines_of("claimed") for job_id, epoch in pairs)
    assert max(claims.values()) == 1, "two workers got the same claim"
    settled = Counter((job_id, epoch) for (rows,) in processes.lines_of("settled") for job_id, epoch, _ in rows)
    assert max(settled.values()) == 1, "one claim was settled twice"
    assert settled.keys() <= claims.keys()
    completed = [
        job_id for (rows,) in processes.lines_of("settled") for job_id, _, status in rows if status == "COMPLETED"
    ]
    assert len(completed) == len(set(completed)), "a job was completed twice"
    undone = [job_id for job_id in completed if jobs[job_id].status is not JobStatus.COMPLETED]
    assert not undone, f"completed, and then not: {undone}"
    assert {kind for _, _, kind in processes.lines_of("refused")} <= EXPECTED_REFUSALS
    lives = {life.id: life for life in history.lives.values()}
    for (job_id, epoch), times in settled.items():
        assert lives[job_id].ended[epoch] == times


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A durable store that several processes share."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


async def work_off(url: str) -> None:
    """Check that all jobs of the killed processes can still be run."""
    async with connect(url) as backend:
        await backend.reset_running_jobs()
        while jobs := await backend.dequeue_jobs("the last one", limit=1000):
            for job in jobs:
                await backend.complete_job(job.id, lease=job.lease)
        left = {status: number for status, number in (await backend.count_jobs()).items() if number}
        assert left.keys() == {JobStatus.COMPLETED}


@pytest.mark.prove
def test_kill_9_at_any_moment_loses_nothing_that_was_acknowledged(url: str, seed: int, proving: bool) -> None:
    kills = 60 if proving else 4
    chance = Random(seed)
    with ProcessGroup(url) as processes:
        processes.start_process("both", "p0")
        remaining = {"p0": chance.randint(20, 200)}
        killed = 0
        processes.start_process("both", "steady")
        while killed < kills:
            started_process, what, values = processes.next_line()
            assert what != "error", values
            if started_process.name == "steady":
                continue
            remaining[started_process.name] -= 1
            if remaining[started_process.name] == 0:
                started_process.kill()
                killed += 1
                remaining[f"p{killed}"] = chance.randint(20, 200)
                processes.start_process("both", f"p{killed}")
        for started_process in processes.started_processes:
            if started_process.process.returncode is None:
                started_process.finish()
        jobs, history = asyncio.run(audit_at(url))
        check_promises(processes, jobs, history)
        print(f"{killed} kills, {len(jobs)} jobs, {history.events} events, seed {seed}")
        assert killed == kills
    asyncio.run(work_off(url))
    asyncio.run(audit_at(url))


@pytest.mark.prove
def test_many_processes_write_one_store_and_each_job_has_one_owner(url: str, proving: bool) -> None:
    """No caller ever gets the error that the database is locked."""
    writers, claimers, calls = (6, 4, 300) if proving else (2, 2, 120)
    with ProcessGroup(url) as processes:
        busy = {processes.start_process("writer", f"writer{number}", str(calls)) for number in range(writers)}
        workers = [processes.start_process("claimer", f"claimer{number}") for number in range(claimers)]
        settled = enqueued = 0
        while busy or settled < enqueued:
            started_process, what, values = processes.next_line()
            assert what not in ("error", "refused"), values
            if what == "over":
                busy.discard(started_process)
            elif what == "enqueued":
                enqueued += len(values[0])
            elif what == "settled":
                settled += sum(status == "COMPLETED" for _, _, status in values[0])
        for started_process in [
            *workers,
            *(started_process for started_process in processes.started_processes if started_process not in workers),
        ]:
            started_process.finish()
        jobs, history = asyncio.run(audit_at(url))
        check_promises(processes, jobs, history)
    assert len(jobs) == enqueued == settled
    assert {job.status for job in jobs.values()} == {JobStatus.COMPLETED}


async def test_callers_wait_while_another_process_holds_the_file_and_then_get_their_answers(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="before", type="t"))
        with ProcessGroup(path) as processes:
            holder = processes.start_process("holder", "holder")
            assert await asyncio.to_thread(processes.next_line) == (holder, "held", [])
            callers = [asyncio.create_task(backend.enqueue_job(Job(id=f"j{number}", type="t"))) for number in range(20)]
            done, _ = await asyncio.wait(callers, timeout=0.5)
            assert not done
            assert (await backend.get_job("before")).id == "before"  # readers do not wait
            await asyncio.to_thread(holder.finish)
            assert await asyncio.gather(*callers) == [f"j{number}" for number in range(20)]


async def test_a_file_held_for_too_long_is_a_clear_error_and_then_all_is_well_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path, busy_seconds=0.2) as backend:
        await backend.enqueue_job(Job(id="before", type="t"))
        with ProcessGroup(path) as processes:
            holder = processes.start_process("holder", "holder")
            assert await asyncio.to_thread(processes.next_line) == (holder, "held", [])
            with pytest.raises(BackendUnavailable, match="locked for too long"):
                await backend.enqueue_job(Job(id="refused", type="t"))
            await asyncio.to_thread(holder.finish)
        await backend.enqueue_job(Job(id="after", type="t"))
        jobs, _ = await audit(backend)
        assert {job.id for job in jobs} == {"before", "after"}
