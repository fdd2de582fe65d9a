"""Snapshots of help texts, output and errors, so that a change of wording is reviewed.

Run this file with LONGSHORE_WRITE_SNAPSHOTS=1 to rewrite `tests/cli/snapshots`, then review the diff.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from longshore import Harbor, Job, Outcome, Queue, Repeat
from longshore.backends import connect as connecting
from longshore.backends.base import WorkerInfo
from longshore.core.clock import HeldClock
from tests.cli.terminal import PROGRAM, leaves, longshore
from tests.conftest import WRITE_SNAPSHOTS

FOLDER = Path(__file__).parent / "snapshots"
CLOCK = HeldClock(datetime(2026, 5, 1, 12, tzinfo=UTC))
GROUPS = ("", "dlq", "schedule", "flow", "token", "pipeline")
REPLACED = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),
    (r"(/[^\s/]+)+/test_\w+\d(?=/)", "/folder"),
    (r"(?<=127\.0\.0\.1:)\d+", "<port>"),
    (r"--(cursor|after) \S+", r"--\1 <cursor>"),
    (r"[\d.,]+ (B|[kKMGT]i?B)\b", "<size>"),
    (r"SQLite \d[\d.]*", "SQLite <version>"),
    (r"the store is on \S+", "the store is on <file system>"),
    (r"(?<=\S) {2,}(?=\S)", "  "),
)
"""Text that differs between runs or machines, and the width of columns, which depends on it."""

OUTPUTS = {
    "list": ["list", "list --status dead", "list --limit 2", "list --text nothing", "dlq list"],
    "show": ["show done", "show dead", "show running"],
    "stats": ["stats", "stats --tag eu"],
    "queues": ["queues", "limits mail", "pause mail", "resume mail"],
    "workers": ["workers"],
    "doctor": ["doctor"],
    "explain": ["explain waiting", "explain later", "explain dead", "explain running", "explain done"],
    "events": ["events --job dead", "logs done"],
    "schedules": ["schedule list", "schedule preview nightly --count 2", "schedule pause nightly"],
    "flow_show": ["flow show import", "flow show import --mermaid"],
    "actions": [
        'enqueue mail.send \'{"to": "ada"}\' --job-id new',
        "cancel new",
        "cancel --status dead --dry-run",
        "retry --all --dry-run",
        "promote later",
        "delete done",
        "dlq requeue --all --yes",
        "token list",
        "migrate",
    ],
    "errors": [
        "show missing",
        "cancel",
        "cancel waiting --queue mail",
        "cancel --queue mail",
        "retry waiting",
        "enqueue",
        "enqueue t hello",
        "enqueue t --delay soon",
        "enqueue t --run-at 2026-05-01T12:00",
        "enqueue --from missing.ndjson",
        "list --status lost",
        "pause",
        "limits mail --rate many",
        "schedule add s t",
        "worker --harbor nowhere",
        "worker --url memory://",
        "worker --harbor shop:harbor --url sqlite:///other.db",
        "serve --host 0.0.0.0 --auth off",
        "token create shop --scope root",
        "stats --url redis://localhost",
        "stats --url sqlite:///missing/jobs.db",
        "nonsense",
        "list --nonsense",
        "pipeline audit",
    ],
}


async def fill(url: str, connect: Any) -> None:
    """One job in each state that a user meets, a flow, a schedule, a worker and limits."""
    async with Queue(connect(url)) as queue:
        await queue.enqueue_jobs([Job(id=name, type="mail.send", queue="mail") for name in ("done", "dead", "running")])
        for job in await queue.dequeue_jobs("worker-1", limit=3, lease=30):
            if job.id == "done":
                await queue.append_log(job.id, "sent to ada", "info")
                await queue.settle_jobs([Outcome(job.id, job.lease, "complete", result=b'{"sent": 1}')])
            elif job.id == "dead":
                await queue.bury_job(job.id, "ConnectionError: no answer\nTraceback", lease=job.lease)
            else:
                await queue.set_progress(job.id, {"percent": 40})
        await queue.enqueue_jobs([Job(id="waiting", type="mail.send", queue="mail", tags=["eu"], payload=b'{"to": 1}')])
        await queue.enqueue_jobs([Job(id="later", type="mail.send", queue="mail", delay=3600)])
        await queue.set_limits("mail", running=5, per_key=1)
        await queue.heartbeat_worker(
            WorkerInfo(id="worker-1", queues=("mail",), running=1, concurrency=10, host="host")
        )
        await queue.add("report", repeat=Repeat(cron="30 2 * * *", tz="Europe/Berlin"), job_id="nightly")
    async with Harbor(connect(url)) as harbor:

        @harbor.task(queue="imports")
        def load() -> None: ...

        flow = harbor.flow("import", id="import")
        flow.add(load.call(), after=flow.add(load.call(), name="first"), name="second")
        await flow.enqueue()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The filled store, which every command opens with a held clock."""
    url, real = f"sqlite:///{tmp_path / 'jobs.db'}", connecting.connect

    def connect(url: str, **options: Any) -> Any:
        return real(url, **(options if url.startswith(("http", "redis")) else options | {"clock": CLOCK}))

    asyncio.run(fill(url, connect))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(connecting, "connect", connect)
    monkeypatch.setattr("longshore.runtime.doctor.machine_time", CLOCK.now)
    monkeypatch.setattr("getpass.getuser", lambda: "user")
    monkeypatch.setenv("LONGSHORE_URL", url)
    return url


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def check_snapshot(name: str, lines: Iterable[str]) -> None:
    path = FOLDER / f"{name}.txt"
    today = "".join(f"{line}\n" for line in lines)
    if WRITE_SNAPSHOTS:
        path.write_text(today, encoding="utf-8")
        return
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    diff = difflib.unified_diff(before.splitlines(), today.splitlines(), path.name, "today", lineterm="", n=2)
    assert today == before, "\n".join(["run with LONGSHORE_WRITE_SNAPSHOTS=1 if the change is intended", *diff])


def replaced(text: str) -> str:
    for pattern, name in REPLACED:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def transcript(commands: Sequence[str]) -> Iterable[str]:
    for command in commands:
        done = longshore(*shlex.split(command))
        yield f"$ longshore {command}"
        for mark, text in (("", done.out), ("! ", done.err)):
            yield from (f"{mark}{replaced(line)}" for line in text.splitlines())
        yield f"exit code {int(done.code)}"
        yield ""


def test_help_texts_match_the_snapshot() -> None:
    names = [*GROUPS, *(name for name, _ in leaves())]
    check_snapshot("help", transcript([f"{name} --help".strip() for name in names]))


@pytest.mark.parametrize("topic", sorted(OUTPUTS))
def test_output_matches_the_snapshot(topic: str, store: str) -> None:
    check_snapshot(topic, transcript(OUTPUTS[topic]))


def test_the_first_lines_of_up_match_the_snapshot(tmp_path: Path) -> None:
    command = [*PROGRAM, "up", "--url", f"sqlite:///{tmp_path / 'jobs.db'}", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n") for _ in range(6)]
        process.send_signal(signal.SIGTERM)
    check_snapshot("up", map(replaced, lines))


def test_every_cell_of_a_help_table_has_at_most_25_words() -> None:
    for name, command in leaves():
        for parameter in command.params:
            words = len((getattr(parameter, "help", None) or "").split())
            assert words <= 25, f"{name} {parameter.name}: {words} words"
