"""Commands on a real terminal: questions, progress bars, followed logs and the output of workers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from longshore import Job, Queue, connect
from longshore.cli.events import look
from longshore.cli.exit_codes import Exit
from longshore.runtime.logs import TextLines
from tests.cli.terminal import PROGRAM, check_inert, longshore

NASTY = "\x1b[31mred\x1b]8;;http://evil\x1b\\link \r\n[bold]fake line[/bold] \x07\x9b2J\u202e\x7f"
"""Hostile text in a job."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with five waiting jobs."""
    address = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("LONGSHORE_URL", address)

    async def fill() -> None:
        async with connect(address) as backend:
            await backend.enqueue_jobs([Job(id=f"j{number}", type="t", queue="mail") for number in range(5)])

    asyncio.run(fill())
    return address


def at_a_terminal(*arguments: str, answer: str = "") -> tuple[int, str]:
    """Run a process on a terminal and answer its question."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 65_536):
                seen += part
                if answer and b"[y/N]" in seen:
                    os.write(ours, answer.encode())
                    answer = ""
        except OSError:  # Linux reports a closed terminal this way
            pass
    os.close(ours)
    return process.returncode, seen.decode()


def test_a_terminal_user_is_asked_and_no_changes_nothing(url: str) -> None:
    code, seen = at_a_terminal("cancel", "--queue", "mail", answer="n\n")
    assert code == Exit.FAILED
    assert "cancel 5 jobs? [y/N]" in seen
    assert "nothing was changed" in seen
    assert json.loads(longshore("stats", "--json").out)["counts"]["UNSCHEDULED"] == 0


def test_yes_changes_the_jobs_with_a_progress_bar(url: str) -> None:
    code, seen = at_a_terminal("cancel", "--queue", "mail", answer="y\n")
    assert code == 0
    assert "━" in seen
    assert "5 jobs cancelled" in seen
    assert json.loads(longshore("stats", "--json").out)["counts"]["UNSCHEDULED"] == 5


def test_the_output_of_a_worker_about_hostile_jobs_is_escaped(url: str) -> None:
    # F58
    async def fill() -> None:
        async with Queue(connect(url)) as queue:
            await queue.add("fail", {"why": NASTY}, job_id="bad \u202e [red]")
            await queue.add("no \u2066 such [bold]type", job_id="odd")

    asyncio.run(fill())
    code, seen = at_a_terminal("worker", "--until-empty")
    assert code == 0
    check_inert(seen)
    assert "bad \\u202e [red]" in seen


def test_a_traceback_in_a_log_is_escaped() -> None:
    try:
        raise ValueError(NASTY)
    except ValueError:
        record = logging.makeLogRecord(
            {"msg": "it failed", "exc_info": sys.exc_info(), "name": "n", "levelname": "ERROR"}
        )
    written = TextLines().format(record)
    check_inert(written)
    assert "Traceback" in written


def test_a_log_is_followed_until_its_job_ends(url: str) -> None:
    async def work(queue: Queue, following: subprocess.Popen[str]) -> list[str]:
        [job] = await queue.dequeue_jobs("w")
        await queue.append_log(job.id, "first")
        assert following.stdout is not None
        lines = [await asyncio.to_thread(following.stdout.readline)]
        await queue.append_log(job.id, "second\non another line", "warn")
        await queue.complete_job(job.id, lease=job.lease)
        return lines + await asyncio.to_thread(following.stdout.readlines)

    async def follow() -> list[str]:
        command = [*PROGRAM, "logs", "-f", "j0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:  # noqa: ASYNC220 - no other task runs
            async with Queue(connect(url)) as queue:
                told = await work(queue, following)
        assert following.returncode == 0
        return told

    told = [json.loads(line) for line in asyncio.run(follow())]
    assert [(line["level"], line["message"]) for line in told] == [
        ("info", "first"),
        ("warn", "second\non another line"),
    ]
    shown = longshore("logs", "j0").out.splitlines()
    assert shown[1].endswith("warn  second")
    assert shown[2] == "    on another line"


def test_events_continue_from_a_cursor(url: str) -> None:
    first = longshore("events", "--limit", "2", "--json")
    events = [json.loads(line) for line in first.out.splitlines()]
    assert [event["job_id"] for event in events] == ["j0", "j1"]
    rest = longshore("events", "--after", events[-1]["cursor"], "--json").out.splitlines()
    assert [json.loads(line)["job_id"] for line in rest] == ["j2", "j3", "j4"]
    assert longshore("events", "--job", "j3").out.count("\n") == 1
    assert longshore("events", "--after", "nonsense").code == Exit.USAGE


async def test_a_follower_of_one_queue_advances_past_events_of_others() -> None:
    async with Queue(connect("memory://")) as queue:
        place = await queue.backend.end_of_events()
        await queue.enqueue_jobs([Job(type="t", queue="other") for _ in range(3)])
        seen, reached = await look(queue, place, "mine", None)
        assert (seen, reached) == ([], await queue.backend.end_of_events())
        await queue.enqueue_job(Job(id="j", type="t", queue="mine"))
        seen, reached = await look(queue, reached, "mine", None)
        assert ([event.job_id for event in seen], reached) == (["j"], seen[-1].cursor)
