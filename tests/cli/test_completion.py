"""Shell completion offers names from the store within a time limit and prints no errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from longshore import Queue, Repeat, connect
from tests.cli.terminal import longshore


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def fill() -> None:
        async with Queue(connect(address), "mail") as queue:
            for job_id in ("abc-1", "abc-2", "abc-\u202e3", "xyz"):
                await queue.add("send", job_id=job_id)
            await queue.add("send", repeat=Repeat(every=60), job_id="nightly")

    asyncio.run(fill())
    return address


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[str]]:
    """The completions that bash gets at the end of a line."""

    def ask(url: str, line: str) -> list[str]:
        monkeypatch.setenv("LONGSHORE_URL", url)
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv("_LONGSHORE_COMPLETE", "complete_bash")
        done = longshore()
        assert (done.code, done.err) == (0, "")
        return done.out.split()

    return ask


Offered = Callable[[str, str], list[str]]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("longshore sch", ["scheduler", "schedule"]),
        ("longshore show a", ["abc-2", "abc-1"]),  # an id with invisible characters is not offered
        ("longshore cancel xyz a", ["abc-2", "abc-1"]),
        ("longshore list --queue m", ["mail"]),
        ("longshore enqueue s", ["send"]),
        ("longshore schedule pause n", ["nightly"]),
        ("longshore list --status de", ["dead"]),
        ("longshore show --url sqlite:///nowhere.db a", []),
    ],
)
def test_completion_offers_matching_names(url: str, line: str, names: list[str], offered: Offered) -> None:
    assert offered(url, line) == names


@pytest.mark.parametrize("url", ["sqlite:////nowhere/jobs.db", "redis://x", "postgresql://u@127.0.0.1:1/x", "\x1b[31m"])
def test_completion_of_an_unusable_store_is_empty(url: str, offered: Offered) -> None:
    assert offered(url, "longshore show a") == []


def test_completion_does_not_wait_for_a_silent_store(offered: Offered) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        began = monotonic()
        assert offered(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x", "longshore show a") == []
        assert monotonic() - began < 9, "the default timeout of a PostgreSQL connection is 10 s"
