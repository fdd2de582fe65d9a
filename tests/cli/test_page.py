"""Run every command of docs/cli.md in the order of the page, in this process because there are many."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import PROGRAM, leaves, longshore
from tests.repo.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "cli.md"
ELSEWHERE = {"up", "serve", "scheduler", "migrate-data", "pipeline", "token"}
"""Commands with their own pages, where other tests run the examples."""


def commands() -> list[str]:
    lines = [line for block in blocks_of(PAGE) if block.language == "sh" for line in block.text.splitlines()]
    return [line for line in lines if line.strip()]


def test_the_page_has_an_example_of_every_command() -> None:
    shown = "\n".join(commands())
    missing = [name for name, _ in leaves() if f"longshore {name}" not in shown]
    assert [name for name in missing if name.split()[0] not in ELSEWHERE] == []


@pytest.mark.timeout(120)
def test_every_command_on_the_page_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGSHORE_URL", raising=False)
    left_running: list[subprocess.Popen[bytes]] = []
    try:
        for line in commands():
            given, _, command = line.rpartition(" | ")
            words = shlex.split(command, comments=True)
            assert words.pop(0) == "longshore", line
            if given:  # the output of printf becomes standard input
                written = subprocess.run(["bash", "-c", given], capture_output=True, text=True, check=True).stdout
                monkeypatch.setattr(sys, "stdin", io.StringIO(written))
            if words[0] == "worker" or {"-f", "--watch"} & set(words):
                left_running.append(subprocess.Popen([*PROGRAM, *words], stdout=-3, stderr=-3))
            else:
                done = longshore(*words)
                assert done.code == 0, f"{line}\n{done.out}{done.err}"
        assert [process.poll() for process in left_running] == [None] * len(left_running)
    finally:
        for process in left_running:
            process.terminate()
            process.wait()
