"""What the shell offers on Tab: names from the store, quickly, and never an error."""

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
    """What bash would be told at the end of a line."""

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
        ("longshore show a", ["abc-2", "abc-1"]),  # what could not be told apart by looking is not offered
        ("longshore cancel xyz a", ["abc-2", "abc-1"]),
        ("longshore list --queue m", ["mail"]),
        ("longshore enqueue s", ["send"]),
        ("longshore schedule pause n", ["nightly"]),
        ("longshore list --status de", ["dead"]),
        ("longshore show --url sqlite:///nowhere.db a", []),
    ],
)
def test_names_are_offered_as_they_are_typed(url: str, line: str, names: list[str], offered: Offered) -> None:
    assert offered(url, line) == names


@pytest.mark.parametrize("url", ["sqlite:////nowhere/jobs.db", "redis://x", "postgresql://u@127.0.0.1:1/x", "\x1b[31m"])
def test_a_store_that_cannot_be_used_offers_nothing_and_says_nothing(url: str, offered: Offered) -> None:
    assert offered(url, "longshore show a") == []


def test_a_store_that_does_not_answer_is_not_waited_for(offered: Offered) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it takes calls, and never says a word
        began = monotonic()
        assert offered(f"postgresql://u@127.0.0.1:{deaf.getsockname()[1]}/x", "longshore show a") == []
        assert monotonic() - began < 9, "PostgreSQL's own patience is ten seconds"
