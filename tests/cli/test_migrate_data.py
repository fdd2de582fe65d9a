"""`longshore migrate-data` with real processes, a real file and a real server."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from longshore import Job, connect
from longshore.backends.base import WorkerInfo
from longshore.core.clock import HeldClock
from tests.backends.audit import all_jobs

PROGRAM = "from longshore.cli.main import run; run()"
JOBS = 2_000


def migrate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "migrate-data", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with jobs in two queues, one of them with markup in its name."""

    async def fill() -> None:
        async with connect(f"sqlite:///{tmp_path / 'jobs.db'}", clock=HeldClock()) as backend:
            await backend.enqueue_jobs([Job(id=f"j{number}", type="t", queue="mail") for number in range(JOBS)])
            await backend.enqueue_job(Job(id="odd", type="t", queue="[bold]Größe 🚢"))
            await backend.cancel_jobs(job_ids=["j0"])

    asyncio.run(fill())
    return tmp_path / "jobs.db"


@pytest.fixture
def source(path: Path) -> str:
    return f"sqlite:///{path}"


async def ids_at(url: str) -> set[str]:
    async with connect(url) as backend:
        return {job.id for job in await all_jobs(backend)}


def test_a_move_prints_the_counts_of_both_stores(source: str, postgres_url: str) -> None:
    done = migrate(source, postgres_url)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith(f"{source} to ")
    assert "moved" in first
    rows = {line.rsplit(maxsplit=1)[0].strip(): line.rsplit(maxsplit=1)[1] for line in rest if line.startswith("  ")}
    assert rows["jobs"] == "2,001"
    assert rows["job_events"] == "2,002"
    assert rows["mail           INITIAL_PENDING"] == "1,999"
    assert rows["mail           UNSCHEDULED"] == "1"
    assert rows["[bold]Größe 🚢  INITIAL_PENDING"] == "1"
    assert done.stderr.splitlines()[-1] == "100 %  job_events, 4,003 of 4,003 rows"
    assert "\x1b" not in done.stdout + done.stderr
    assert len(asyncio.run(ids_at(postgres_url))) == JOBS + 1


def test_a_database_moves_back_to_a_file(source: str, postgres_url: str, tmp_path: Path) -> None:
    back = f"sqlite:///{tmp_path / 'back.db'}"
    assert migrate(source, postgres_url, "--schema", "of_mine").returncode == 0
    done = migrate(postgres_url, back, "--schema", "of_mine")
    assert done.returncode == 0, done.stderr
    assert "schema of_mine to sqlite:///" in done.stdout
    assert asyncio.run(ids_at(back)) == asyncio.run(ids_at(source))
    again = migrate(postgres_url, back, "--schema", "of_mine")
    assert "moved before, nothing to do" in again.stdout


def test_json_output_and_a_second_run_that_finds_nothing_to_do(source: str, postgres_url: str) -> None:
    told = json.loads(migrate(source, postgres_url, "--json").stdout)
    assert told["begun"] == "fresh"
    assert told["tables"]["jobs"] == told["copied"]["jobs"] == JOBS + 1
    assert told["queues"]["mail"] == {"INITIAL_PENDING": 1_999, "UNSCHEDULED": 1}
    assert told["left_behind"] == 0
    again = migrate(source, postgres_url, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["begun"] == "finished"
    assert json.loads(again.stdout)["copied"]["jobs"] == 0


def test_a_password_is_never_shown(source: str, postgres_url: str) -> None:
    secret = postgres_url.replace("postgres@", "postgres:sesame@")
    for done in (migrate(source, secret), migrate(source, secret), migrate(source, f"{secret}_missing")):
        assert "sesame" not in done.stdout + done.stderr


def test_schemas_of_one_database_are_separate_stores(source: str, postgres_url: str) -> None:
    async def enqueue() -> None:
        async with connect(postgres_url) as backend:
            await backend.enqueue_job(Job(id="own", type="t"))

    asyncio.run(enqueue())
    refused = migrate(source, postgres_url)
    assert refused.returncode == 5
    assert refused.stderr.count("\n") == 1
    assert "has other jobs, schedules or settings; name an empty database, or another schema" in refused.stderr
    assert migrate(source, postgres_url, "--schema", "second").returncode == 0
    assert asyncio.run(ids_at(postgres_url)) == {"own"}


def test_a_store_with_active_workers_moves_only_with_while_live(source: str, postgres_url: str) -> None:
    async def work() -> None:
        async with connect(source) as backend:
            await backend.heartbeat_worker(WorkerInfo(id="mail-1"))
            await backend.dequeue_jobs("mail-1", limit=3)

    asyncio.run(work())
    refused = migrate(source, postgres_url)
    assert refused.returncode == 5
    assert refused.stderr.count("\n") == 1
    assert "worker mail-1 sent a heartbeat" in refused.stderr
    assert "mail-1 holds 3 jobs until" in refused.stderr
    assert "--while-live" in refused.stderr
    assert migrate(source, postgres_url, "--while-live").returncode == 0


@pytest.mark.parametrize(
    ("source", "target", "code", "words"),
    [
        ("sqlite:///{}/typo.db", "postgresql://nobody@127.0.0.1:1/none", 3, "does not exist; check the address"),
        ("sqlite:///{}/jobs.db", "postgresql://nobody@127.0.0.1:1/none", 3, "cannot be reached"),
        ("sqlite:///{}/jobs.db", "sqlite:///{}/jobs.db", 5, "exists already; name a file that does not exist"),
        ("memory://", "postgresql://nobody@127.0.0.1:1/none", 2, "source: must be a SQLite or PostgreSQL store"),
        (
            "postgresql://a@127.0.0.1:1/a",
            "memory://",
            2,
            "target: must be a SQLite or PostgreSQL store",
        ),
        ("sqlite:///{}/jobs.db", "\x1b[31mred://", 2, "is not a known backend"),
    ],
)
def test_an_impossible_move_is_one_line_and_its_exit_code(
    source: str, target: str, code: int, words: str, path: Path
) -> None:
    done = migrate(source.format(path.parent), target.format(path.parent))
    assert done.returncode == code
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert "\x1b" not in done.stderr
    assert sorted(file.name for file in path.parent.iterdir() if file.suffix == ".db") == ["jobs.db"]


def test_a_terminal_shows_a_progress_bar(source: str, postgres_url: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "migrate-data", source, postgres_url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as running:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 4096):
                seen += part
        except OSError:  # Linux reports a closed terminal this way
            pass
        assert running.stdout is not None
        assert json.loads(running.stdout.read())["begun"] == "fresh"
    os.close(ours)
    assert running.returncode == 0
    assert "━" in seen.decode()


def test_an_interrupted_move_says_how_to_resume(source: str, postgres_url: str) -> None:
    program = """
import signal
from longshore.cli import main, store
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
real = store.move
def interrupted(*stores, on_step, **options):
    return real(*stores, on_step=lambda _step: signal.raise_signal(signal.SIGINT), **options)
store.move = interrupted
main.run()
"""
    command = [sys.executable, "-c", program, "migrate-data", source, postgres_url]
    stopped = subprocess.run(command, capture_output=True, text=True, check=False)
    assert stopped.returncode == 130
    assert stopped.stderr == "longshore: stopped; run the same command again to resume\n"
    assert json.loads(migrate(source, postgres_url, "--json").stdout)["begun"] == "resumed"
