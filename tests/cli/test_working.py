"""Commands that run until a signal, as processes: `worker`, `scheduler`, `serve` and `up`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from longshore import Job, JobStatus, connect
from longshore.cli.exit_codes import Exit
from longshore.core.validation import shown_address
from tests.cli.terminal import PROGRAM, longshore
from tests.runtime.working import comes_to, until

HARBOR = """
from longshore import Harbor
harbor = Harbor({url!r})
@harbor.task
async def greet(name: str) -> str:
    return f"hello {{name}}"
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store; LONGSHORE_URL names it."""
    address = f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param == "postgres":
        address = str(request.getfixturevalue("postgres_url"))
    monkeypatch.setenv("LONGSHORE_URL", address)
    assert longshore("migrate").code == 0
    return address


@contextmanager
def running(*arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run the command; send SIGTERM at the end if it still runs."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, *arguments], stdout=pipe, stderr=pipe, text=True, cwd=cwd) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate()


def test_a_worker_without_a_harbor_runs_the_built_in_types(url: str) -> None:
    said = longshore("enqueue", "echo", '{"say": "hello"}', "-q").out.strip()
    failed = longshore("enqueue", "fail", '{"why": "no reason"}', "-q").out.strip()
    other = longshore("enqueue", "sleep", "--queue", "other", "-q").out.strip()
    with running("worker", "--until-empty", "--queue", "default", "--concurrency", "2") as process:
        process.wait(50)
    assert process.returncode == 0
    shown = {one: json.loads(longshore("show", one, "--json").out)["job"] for one in (said, failed, other)}
    assert (shown[said]["status"], shown[said]["result"]) == ("COMPLETED", {"say": "hello"})
    assert shown[failed]["status"] == "DEAD"
    assert shown[other]["status"] == "INITIAL_PENDING"
    assert longshore("explain", failed).out.count("longshore retry") == 1


def test_enqueue_with_wait_prints_the_result_and_sets_the_exit_code(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HARBOR.format(url=url))
    with running("worker", "--harbor", "shop:harbor", "--processes", "2", cwd=tmp_path):
        done = longshore("enqueue", "greet", '{"name": "Ada"}', "--wait", "--wait-timeout", "50s")
        assert (done.code, done.out) == (0, '"hello Ada"\n')
        failed = longshore("enqueue", "greet", '{"nam": "Ada"}', "--wait", "--wait-timeout", "50s", "--json")
        assert failed.code == Exit.FAILED
        assert json.loads(failed.out)["status"] == "DEAD"
    late = longshore("enqueue", "greet", '{"name": "Ada"}', "--wait", "--wait-timeout", "10ms")
    assert (late.code, late.out) == (Exit.TOO_LATE, "")
    assert "has not started after 0.01 s; check that a worker runs for the queue 'default'" in late.err


def test_a_scheduler_fires_what_is_due(url: str) -> None:
    assert longshore("schedule", "add", "often", "echo", "--every", "100ms").code == 0
    with running("scheduler", "--interval", "0.05"), running("events", "-f", "--json") as following:
        assert following.stdout is not None
        event = json.loads(following.stdout.readline())
    assert (event["event"], event["type"]) == ("job.added", "echo")
    assert following.returncode == -signal.SIGTERM


def test_a_scheduler_ends_unanswered_cancellations_after_the_cancel_timeout_it_is_given(url: str) -> None:
    # M4, X-35
    async def claim_and_cancel() -> tuple[str, str]:
        async with connect(url) as backend:
            [job_id] = await backend.enqueue_jobs([Job(type="deaf")])
            await backend.dequeue_jobs("w", lease=None)
            await backend.cancel_jobs(job_ids=[job_id])
            return job_id, await backend.end_of_events()

    job_id, cursor = asyncio.run(claim_and_cancel())
    with (
        running("scheduler", "--interval", "0.05", "--cancel-timeout", "0.1"),
        running("events", "-f", "--after", cursor, "--json") as log,
    ):
        assert log.stdout is not None
        events = (json.loads(line) for line in log.stdout)
        assert any((event["job_id"], event["to_status"]) == (job_id, "UNKNOWN_STOPPED") for event in events)


@pytest.mark.parametrize("command", [("worker", "--processes", "2"), ("up", "--port", "0")], ids=["worker", "up"])
async def test_the_job_of_a_killed_worker_process_is_taken_back_before_its_lease_ends(
    url: str, command: Sequence[str], tmp_path: Path
) -> None:
    # A2
    async with connect(url) as backend:
        await backend.enqueue_job(Job(id="j", type="sleep", payload=b'{"seconds": 600}', max_crashes=0))
        with running(*command, cwd=tmp_path):
            pids: dict[str | None, int] = {}

            async def held() -> bool:
                pids.update({worker.id: worker.pid for worker in await backend.list_workers() if worker.pid})
                return (await backend.get_job("j")).assignee_id in pids

            await until(held, within=50)
            job = await backend.get_job("j")
            os.kill(pids[job.assignee_id], signal.SIGKILL)
            dead = await comes_to(backend, "j", within=50)
    assert (dead.status, dead.crashes) == (JobStatus.DEAD, 1)
    assert job.lease is not None
    assert job.lease.expires_at is not None
    assert dead.finalized_at is not None
    assert dead.finalized_at < job.lease.expires_at


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_server_prints_its_address_and_answers_there(command: str, url: str, tmp_path: Path) -> None:
    with running(command, "--port", "0", "--json", cwd=tmp_path) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(50) == 0


def test_up_with_a_harbor_ignores_longshore_url_with_a_warning(url: str, tmp_path: Path) -> None:
    own = f"sqlite:///{tmp_path / 'shop.db'}"
    assert own != url, "LONGSHORE_URL names another store"
    (tmp_path / "shop.py").write_text(HARBOR.format(url=own))
    with running("up", "--harbor", "shop:harbor", "--port", "0", "--host", "0.0.0.0", cwd=tmp_path) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
        assert re.search(r"is up at http://127.0.0.1:\d+/ \(and every address of this machine\)", told[0])
        assert own in told[0]
        assert process.stderr is not None
        assert f"using the store of shop:harbor, {own}; ignoring LONGSHORE_URL" in process.stderr.readline()
        assert """-d '{"type": "greet", "data": {"name": "..."}}'""" in told[3]


@pytest.mark.parametrize("same", [True, False])
def test_a_worker_prints_its_store_and_warns_if_longshore_url_names_another(
    same: bool, url: str, tmp_path: Path
) -> None:
    own = url if same else f"sqlite:///{tmp_path / 'shop.db'}"
    (tmp_path / "shop.py").write_text(HARBOR.format(url=own))
    with running("worker", "--harbor", "shop:harbor", "--until-empty", cwd=tmp_path) as process:
        assert process.stderr is not None
        told = process.stderr.read().splitlines()
        assert process.wait(50) == 0
    if not same:
        assert "ignoring LONGSHORE_URL" in told.pop(0)
    assert told[0].startswith("longshore: 1 worker process, 10 concurrent jobs on ")
    assert shown_address(own) in told[0]
    assert not any("LONGSHORE_URL" in line for line in told)


@pytest.mark.parametrize("command", ["serve", "up", "worker", "scheduler"])
def test_a_password_on_the_command_line_prints_a_warning(command: str) -> None:
    address = "postgresql://app:secret@127.0.0.1:9/app?connect_timeout=2"
    free = ["--port", "0"] if command in ("serve", "up") else []
    with running(command, "--url", address, *free) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
    assert "LONGSHORE_URL" in told
    assert "secret" not in told


def test_a_missing_token_and_an_unreachable_server_have_different_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with running("serve", "--url", store, "--port", "0", "--auth", "on", "--json") as process:
        assert process.stdout is not None
        monkeypatch.setenv("LONGSHORE_URL", json.loads(process.stdout.readline())["address"])
        refused = longshore("list")
        assert (refused.code, refused.err.count("\n")) == (Exit.NOT_ALLOWED, 1)
        assert "longshore token create" in refused.err
        assert "LONGSHORE_TOKEN" in refused.err
        secret = longshore("token", "create", "me", "--scope", "read", "--url", store).out.strip()
        monkeypatch.setenv("LONGSHORE_TOKEN", secret)
        assert longshore("list").code == 0
        assert longshore("enqueue", "t").code == Exit.NOT_ALLOWED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["worker", "--harbor", "nowhere"], "must have the form module:name"),
        (["worker", "--harbor", "nowhere:harbor"], "cannot import nowhere from the working directory"),
        (["worker", "--harbor", "shop:harbor", "--url", "sqlite:///other.db"], "cannot be combined with --harbor"),
        (["up", "--harbor", "shop:harbor", "--url", "sqlite:///other.db"], "cannot be combined with --harbor"),
        (["worker", "--url", "memory://"], "visible to one process only"),
        (["worker", "--grace", "long"], "grace: must be a duration"),
    ],
)
def test_a_worker_that_cannot_start_reports_the_reason_in_one_line(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == Exit.USAGE
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
