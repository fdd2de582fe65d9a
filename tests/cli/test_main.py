"""The `longshore` command as a person meets it: real processes, real files."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from longshore import Job, JobStatus, __version__, connect


def longshore(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command's exit code and what it printed."""
    program = "from longshore.cli.main import run; run()"
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with three jobs waiting and one cancelled."""
    address = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def fill() -> None:
        async with connect(address) as backend:
            await backend.enqueue_jobs([Job(id=f"j{number}", type="t", queue="mail") for number in range(4)])
            await backend.cancel_jobs(job_ids=["j0"])

    asyncio.run(fill())
    return address


def test_version_is_the_packages() -> None:
    assert longshore("--version").stdout == f"longshore {__version__}\n"


def test_stats_counts_every_status(url: str) -> None:
    done = longshore("stats", "--url", url)
    assert done.returncode == 0
    rows = dict(line.split() for line in done.stdout.splitlines())
    assert rows["INITIAL_PENDING"] == "3"
    assert rows["UNSCHEDULED"] == "1"
    assert set(rows) == set(JobStatus)


def test_stats_as_json_can_be_read_by_programs(url: str) -> None:
    counts = json.loads(longshore("stats", "--url", url, "--queue", "mail", "--json").stdout)
    assert counts["INITIAL_PENDING"] == 3
    assert json.loads(longshore("stats", "--url", url, "--queue", "other", "--json").stdout)["INITIAL_PENDING"] == 0


def test_backup_writes_a_copy_that_opens_and_refuses_to_overwrite(url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert longshore("backup", "--url", url, str(copy)).returncode == 0
    assert json.loads(longshore("stats", "--url", f"sqlite:///{copy}", "--json").stdout)["INITIAL_PENDING"] == 3
    again = longshore("backup", "--url", url, str(copy))
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_a_store_that_cannot_be_opened_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    done = longshore("stats", "--url", f"sqlite:///{tmp_path / 'missing' / 'jobs.db'}")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "does not exist" in done.stderr


def test_a_mistyped_file_is_not_made_and_not_backed_up(tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path / 'typo.db'}"
    for command in (["stats", "--url", missing], ["backup", "--url", missing, str(tmp_path / "copy.db")]):
        done = longshore(*command)
        assert done.returncode == 3
        assert "there is no" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_hostile_url_reaches_the_terminal_inert() -> None:
    done = longshore("stats", "--url", "\x1b]8;;http://evil\x1b\\click")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_store_that_cannot_copy_itself_says_so(tmp_path: Path) -> None:
    done = longshore("backup", "--url", "memory://", str(tmp_path / "copy.db"))
    assert done.returncode == 2
    assert "cannot copy itself" in done.stderr
