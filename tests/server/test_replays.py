"""Answers that are kept for a while: told again, waited for, forgotten in time and never before it is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from longshore.backends.remote.protocol import REMEMBERED
from longshore.core.errors import KeyReused
from longshore.server import replays
from longshore.server.replays import AnswerLost, Replays


class Work:
    """Carried out so often, each time with another answer."""

    def __init__(self) -> None:
        self.done = 0
        self.going_on = asyncio.Event()
        self.going_on.set()

    async def __call__(self) -> bytes:
        self.done += 1
        number = self.done
        await self.going_on.wait()
        return f"answer {number}".encode()


def asking(kept: Replays, work: Callable[[], Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
    async def ask(key: str = "k", sent_to: str = "", body: bytes = b"{}", caller: str = "ada") -> bytes:
        return await kept.once(caller, key, sent_to, body, work)

    return ask


async def test_the_same_request_is_carried_out_once_and_another_callers_is_another() -> None:
    work = Work()
    ask = asking(Replays("here"), work)
    assert [await ask(), await ask(), await ask(sent_to="elsewhere")] == [b"answer 1"] * 3
    assert [await ask(caller="bob"), await ask("other")] == [b"answer 2", b"answer 3"]
    with pytest.raises(KeyReused):
        await ask(body=b"[]")


async def test_a_repeated_request_waits_for_the_running_one() -> None:
    work = Work()
    work.going_on.clear()
    ask = asking(Replays("here"), work)
    both = [asyncio.ensure_future(ask()) for _ in range(2)]
    await asyncio.sleep(0)
    work.going_on.set()
    assert await asyncio.gather(*both) == [b"answer 1"] * 2


async def test_a_failed_request_runs_again_when_repeated() -> None:
    attempts = 0

    async def stumble() -> bytes:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(0)
        if attempts == 1:
            raise OSError("no space")
        return b"done"

    ask = asking(Replays("here"), stumble)
    first, second = await asyncio.gather(ask(), ask(), return_exceptions=True)
    assert (type(first), second) == (OSError, b"done")


async def test_another_life_of_the_server_does_not_guess() -> None:
    work = Work()
    ask = asking(Replays("this life"), work)
    with pytest.raises(AnswerLost):
        await ask(sent_to="an earlier life")
    assert work.done == 0
    assert await ask(sent_to="this life") == b"answer 1"  # it never arrived here


async def test_a_request_that_was_forgotten_early_does_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_MOST", 3)
    work = Work()
    ask = asking(Replays("here"), work)
    for key in "abcd":
        await ask(key)
    with pytest.raises(AnswerLost):
        await ask("a", sent_to="here")
    assert work.done == 4


async def test_a_very_large_response_is_sent_once_and_its_key_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replays, "_MOST_OF_ONE", 5)
    work = Work()
    work.going_on.clear()
    kept = Replays("here")
    ask = asking(kept, work)
    first, repeated = asyncio.ensure_future(ask()), asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    work.going_on.set()
    assert await first == b"answer 1"
    for again in (repeated, ask()):
        with pytest.raises(AnswerLost, match="too large to keep"):
            await again
    assert (work.done, kept._bytes) == (1, 0)


async def test_large_answers_go_before_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_MOST_BYTES", 20)
    work = Work()
    ask = asking(Replays("here"), work)
    for key in "abc":
        await ask(key)
    with pytest.raises(AnswerLost):
        await ask("a")
    assert (await ask("c"), work.done) == (b"answer 3", 3)


async def test_old_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(replays, "monotonic", lambda: now)
    work = Work()
    ask = asking(Replays("here"), work)
    await ask()
    now += REMEMBERED + 1
    assert await ask() == b"answer 2"
