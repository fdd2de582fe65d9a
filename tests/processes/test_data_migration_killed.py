"""A data migration that is killed, or whose server crashes, and then runs again: nothing is lost or duplicated."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.backends.connect import connect
from longshore.backends.data_migration import TABLES, Begun, Step, move
from longshore.backends.postgres.backend import PostgresBackend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable
from longshore.core.job import Job
from tests.backends.audit import all_events, all_jobs, audit, faults_inside
from tests.backends.two_stores import shown
from tests.postgres_server import DURABLE, Server

ROOT = Path(__file__).parents[2]
JOBS = 3_000


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file with jobs in many states, their tags, logs, edges and tombstones."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def fill() -> None:
        async with connect(url) as backend:
            for start in range(0, JOBS, 1_000):
                numbers = range(start, start + 1_000)
                await backend.enqueue_jobs([Job(id=f"j{n}", type="t", tags=("x", f"t{n % 7}")) for n in numbers])
            await backend.enqueue_jobs([Job(id=f"d{n}", type="t", depends_on=(f"j{n}",)) for n in range(0, JOBS, 5)])
            for number in range(0, JOBS, 20):
                await backend.append_log(f"j{number}", f"line of {number}")
            claimed = await backend.dequeue_jobs("w", limit=JOBS // 2)
            await backend.settle_jobs([Outcome(job.id, job.lease, result=b"\0ok") for job in claimed])
            await backend.delete_jobs(job_ids=[job.id for job in claimed[::9]])

    asyncio.run(fill())
    return url


async def same(source: str, target: str) -> None:
    """Check that both stores have the same jobs and events, and that the target is consistent."""
    async with connect(source) as old, connect(target) as new:
        assert await all_jobs(new) == await all_jobs(old)
        assert shown(await all_events(new)) == shown(await all_events(old))
        assert await new.count_jobs() == await old.count_jobs()
        assert faults_inside(new) == []
        await audit(new)
        await work_off(new)


async def work_off(backend: Backend) -> None:
    """Check that all jobs can be run there."""
    while jobs := await backend.dequeue_jobs("w", limit=1_000):
        await backend.settle_jobs([Outcome(job.id, job.lease) for job in jobs])
    assert all(job.status.final for job in await all_jobs(backend))


async def is_closed(target: str) -> bool:
    async with connect(target) as backend:
        try:
            await backend.dequeue_jobs("early")
        except BackendUnavailable as error:
            return "was not finished; run longshore migrate-data again" in str(error)
    return False


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.prove
def test_a_data_migration_killed_at_any_step_continues_when_restarted(
    source: str, postgres_url: str, seed: int, proving: bool
) -> None:
    chance = Random(seed)
    kills = 20 if proving else 4
    for kill in range(kills):
        # a repeated run quickly passes existing blocks, so later kills hit later blocks
        dying = start(
            "-m", "tests.processes.copy_process", source, postgres_url, str(chance.randint(1, 12 + 6 * (kill % 6)))
        )
        _, output = dying.communicate(timeout=30)
        assert dying.returncode == -9, output
        assert asyncio.run(is_closed(postgres_url))
    finishing = start("-m", "tests.processes.copy_process", source, postgres_url, "0")
    begun, output = finishing.communicate(timeout=30)
    assert finishing.returncode == 0, output
    assert begun.startswith("resumed")
    asyncio.run(same(source, postgres_url))


@pytest.mark.prove
def test_a_data_migration_out_of_postgres_killed_at_any_step_continues_when_restarted(
    source: str, postgres_url: str, tmp_path: Path, seed: int, proving: bool
) -> None:
    """PostgreSQL to SQLite."""
    chance = Random(seed)
    there = start("-m", "tests.processes.copy_process", source, postgres_url, "0")
    _, output = there.communicate(timeout=30)
    assert there.returncode == 0, output
    target = f"sqlite:///{tmp_path / 'back.db'}"
    for kill in range(20 if proving else 4):
        dying = start(
            "-m", "tests.processes.copy_process", postgres_url, target, str(chance.randint(1, 12 + 6 * (kill % 6)))
        )
        _, output = dying.communicate(timeout=30)
        assert dying.returncode == -9, output
        assert asyncio.run(is_closed(target))
        assert not (tmp_path / "back.db").exists()
    finishing = start("-m", "tests.processes.copy_process", postgres_url, target, "0")
    begun, output = finishing.communicate(timeout=30)
    assert finishing.returncode == 0, output
    assert begun.startswith("resumed")
    asyncio.run(same(source, target))


@pytest.mark.prove
def test_the_migration_command_killed_after_any_line_of_output_continues_when_run_again(
    source: str, postgres_url: str, seed: int, proving: bool
) -> None:
    """After the last line it compares and unlocks the target: a kill comes before or after that."""
    chance = Random(seed)
    command = ("-c", "from longshore.cli.main import run; run()", "migrate-data", source, postgres_url)
    for _ in range(25 if proving else 4):
        running = start(*command)
        assert running.stderr is not None
        for _ in range(chance.choice((1, 3, 5, 8, 9, 10))):
            running.stderr.readline()
        running.kill()
        running.communicate()
        assert running.returncode in (0, -9)
    last = start(*command)
    shown_to_people, output = last.communicate(timeout=30)
    assert last.returncode == 0, output
    assert "finished the move" in shown_to_people or "moved before, nothing to do" in shown_to_people
    asyncio.run(same(source, postgres_url))


def test_a_server_that_crashes_during_a_move_loses_nothing_that_the_next_run_does_not_bring_again(
    source: str, seed: int
) -> None:
    """Blocks are committed without waiting for the disk; the next run repeats what a crash removes."""
    old = SQLiteBackend(source.removeprefix("sqlite:///"))
    chance = Random(seed)
    with Server(DURABLE) as server:
        url = server.url()
        for _ in range(2):
            dies_at = chance.randint(2, 4)
            steps: list[Step] = []

            def crash(step: Step, dies_at: int = dies_at, steps: list[Step] = steps) -> None:
                steps.append(step)
                if len(steps) == dies_at:
                    server.restart("immediate")

            new = PostgresBackend(url)
            with pytest.raises(BackendUnavailable):
                move(old, new, on_step=crash)
            asyncio.run(new.close())
        new = PostgresBackend(url)
        report = move(old, new)
        assert report.begun is Begun.RESUMED
        assert report.inventory.tables.keys() > set(TABLES)
        asyncio.run(new.close())
        asyncio.run(same(source, url))
    asyncio.run(old.close())
