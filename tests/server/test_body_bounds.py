"""Large bodies are bounded while they arrive: in values, in levels, and in the memory of all that are in flight."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx
import pytest

from longshore.backends.contract import Backend
from longshore.core.errors import InvalidArgument
from longshore.core.patience import LARGE
from longshore.server import bodies
from longshore.server.metering import MOST_LEVELS, PER_BYTE, BodyMemory, ValueCounter
from longshore.server.options import MEGABYTE, ServerOptions
from longshore.server.refusals import Overloaded, TooLarge
from longshore.server.routes import store
from tests.runtime.working import until
from tests.server.conftest import Serve

JSON = {"content-type": "application/json"}
CHUNK = 64 * 1024


class Sent:
    """A body that counts how much of it was read."""

    def __init__(self, start: bytes, filling: bytes, end: bytes, size: int) -> None:
        self._pieces = [start, *[filling * (CHUNK // len(filling))] * (size // CHUNK), end]
        self.length = sum(map(len, self._pieces))
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.read += len(piece)
            yield piece


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each body that reached a parser."""
    found: list[int] = []

    def spy(place: Any, name: str, position: int) -> None:
        real = getattr(place, name)

        def watched(*args: Any) -> Any:
            found.append(len(args[position]))
            return real(*args)

        monkeypatch.setattr(place, name, watched)

    spy(bodies, "read_json", 1)
    spy(store, "read_body", 0)
    return found


# -- counting


def values_in(value: Any) -> int:
    """Values and keys of what was parsed."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(values_in, value.values()))
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


def levels_in(value: Any) -> int:
    """Lists and objects within one another."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + max(map(levels_in, inner), default=0)


def anything(chance: Random, depth: int = 0) -> Any:
    """Any JSON value, with texts that look like JSON."""
    kind = chance.randrange(8 if depth < 6 else 5)
    if kind < 5:
        texts = ['"', "\\", '\\"[],{}:', "[]", "é\u2200'", "'", "", "plain"]
        return chance.choice([None, True, -7, 1.5, "".join(chance.choices(texts, k=chance.randrange(4)))])
    inner = [anything(chance, depth + 1) for _ in range(chance.randrange(4))]
    return inner if kind < 7 else {f'{number}"\\[,': value for number, value in enumerate(inner)}


def test_values_and_levels_are_counted_exactly_wherever_a_chunk_ends(seed: int) -> None:  # X3
    chance = Random(seed)
    for _ in range(300):
        value = anything(chance)
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=chance.random() < 0.5).encode()
        counted = ValueCounter(values_in(value), levels_in(value))
        tight = [ValueCounter(values_in(value) - 1), ValueCounter(10**9, levels_in(value) - 1)]
        at = 0
        while at < len(text):
            size = chance.choice([1, 2, 5, 1_000])
            counted.feed(text[at : at + size])
            at += size
        assert counted.values == values_in(value), text
        with pytest.raises(TooLarge):
            tight[0].feed(text)
        if levels_in(value):
            with pytest.raises(InvalidArgument):
                tight[1].feed(text)


def test_text_with_many_escapes_is_passed_over_once(monkeypatch: pytest.MonkeyPatch) -> None:  # X3
    counted = ValueCounter(10)
    counted.feed(b'["' + b'\\"' * 500_000)  # tried again from each quotation mark, this would take hours
    counted.feed(b"[," * 100_000)
    counted.feed(b"\\")
    counted.feed(b'"]')
    assert counted.values == 2
    counted.feed(b'",1]')
    assert counted.values == 3


# -- refused early


@pytest.mark.parametrize(
    ("path", "start", "end"),
    [
        ("/v1/jobs", b'{"type":"t","data":[', b"0]}"),
        ("/v1/jobs/batch", b'{"jobs":[', b"0]}"),
        ("/v1/jobs/bulk", b'{"filter":[', b"0]}"),
        ("/v1/work/claim", b'{"assignee_id":"w","tags":[', b"0]}"),
        ("/v1/store/changes", b'{"mark":[', b"0]}"),
        ("/v1/tokens", b'{"scopes":[', b"0]}"),
    ],
)
@pytest.mark.parametrize("filling", [b"[],", b"{},", b"1,", b'"",', b'{"":0},'])
async def test_a_body_of_many_values_is_refused_as_soon_as_there_are_too_many(
    memory: Backend, serve: Serve, parsed: list[int], path: str, start: bytes, filling: bytes, end: bytes
) -> None:  # X3
    most = 200_000
    client = await serve(memory, options=ServerOptions(max_values=most))
    body = Sent(start, filling, end, 30 * MEGABYTE)
    answer = await client.post(path, content=body, headers=JSON | {"content-length": str(body.length)})
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:longshore:too-large"), answer.text
    assert "200,000 values" in answer.json()["detail"]
    assert body.read <= LARGE + most * len(filling) + 2 * CHUNK, "it was read no further than to the bound"
    assert parsed == [], "and not parsed at all"


async def test_a_server_takes_a_million_values_unless_it_is_told_otherwise(
    quick: httpx.AsyncClient, parsed: list[int]
) -> None:  # X3
    body = Sent(b'{"type":"t","data":[', b"[],", b"0]}", 6 * MEGABYTE)
    answer = await quick.post("/v1/jobs", content=body, headers=JSON)
    assert (answer.status_code, parsed) == (413, [])
    assert body.read < 4 * MEGABYTE


async def test_a_large_body_that_is_nested_too_deeply_is_refused_while_it_is_read(
    quick: httpx.AsyncClient, parsed: list[int]
) -> None:  # X3
    body = Sent(b'{"type":"t","data":', b"[" * 8, b"", 30 * MEGABYTE)
    answer = await quick.post("/v1/jobs", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["field"]) == (422, "body")
    assert answer.json()["detail"] == f"body: is nested deeper than {MOST_LEVELS} levels"
    assert (parsed, body.read < LARGE + 2 * CHUNK) == ([], True)


async def test_a_form_is_read_no_further_than_a_form_may_be_long(memory: Backend, serve: Serve) -> None:  # X3
    from longshore.server.token_gate import TokenGate

    client = await serve(memory, gate=TokenGate(memory))
    body = Sent(b"token=", b"a", b"", 30 * MEGABYTE)
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://127.0.0.1"}
    answer = await client.post("/sign-in", content=body, headers=form)
    assert (answer.status_code, body.read <= 2 * CHUNK) == (413, True)


async def test_one_long_text_of_thirty_megabytes_is_taken_as_before(quick: httpx.AsyncClient, memory: Backend) -> None:
    # X3
    text = "\\u00e9" * (30 * MEGABYTE // 6 - 1_000) + '\\",[{' * 1_000
    body = f'{{"type":"t","id":"j","data":"{text}"}}'.encode()
    assert 29 * MEGABYTE < len(body) <= 32 * MEGABYTE
    answer = await quick.post("/v1/jobs", content=body, headers=JSON)
    assert answer.status_code == 202, answer.text
    assert len((await memory.get_job("j")).payload) > 9 * MEGABYTE


async def test_a_large_body_in_another_encoding_than_utf_8_is_refused(quick: httpx.AsyncClient) -> None:  # X3
    # in UTF-16 half of a letter may look like a quotation mark, and hide all that follows from the count
    body = json.dumps({"assignee_id": "w", "tags": ["\u2200"] * LARGE}, ensure_ascii=False).encode("utf-16-le")
    answer = await quick.post("/v1/work/claim", content=body, headers=JSON)
    assert (answer.status_code, "UTF-8" in answer.json()["detail"]) == (400, True)


# -- memory


def memory_of(client: httpx.AsyncClient) -> BodyMemory:
    """What the large bodies of a client's server hold."""
    transport = client._transport
    assert isinstance(transport, httpx.ASGITransport)
    found: BodyMemory = transport.app.state.body_memory  # type: ignore[attr-defined]  # the one it was made with
    return found


async def test_twelve_hostile_bodies_at_once_hold_no_more_than_the_memory_for_bodies(
    memory: Backend, serve: Serve, parsed: list[int]
) -> None:  # X3
    most = 256 * MEGABYTE
    client = await serve(memory, options=ServerOptions(max_body_memory=most, max_values=100_000))
    sent = [Sent(b'{"type":"t","data":[', b"[],", b"0]}", 30 * MEGABYTE) for _ in range(12)]
    answers = await asyncio.gather(
        *(client.post("/v1/jobs", content=body, headers=JSON | {"content-length": str(body.length)}) for body in sent)
    )
    assert {answer.status_code for answer in answers} <= {413, 503}
    assert any(answer.status_code == 413 for answer in answers)
    assert memory_of(client).peak <= most
    assert (memory_of(client).held, parsed) == (0, [])
    assert max(body.read for body in sent) < 1 * MEGABYTE


async def test_a_large_body_waits_for_memory_and_a_small_one_does_not(memory: Backend, serve: Serve) -> None:  # X3
    client = await serve(memory)
    held = memory_of(client)
    await held.take(512 * MEGABYTE, 1)
    body = Sent(b'{"type":"t","data":"', b"a", b'"}', 2 * MEGABYTE)
    large = asyncio.ensure_future(client.post("/v1/jobs", content=body, headers=JSON))
    small = await client.post("/v1/jobs", json={"type": "t", "data": "a" * (LARGE - 100)})
    assert small.status_code == 202
    await until(lambda: body.read >= LARGE)
    for _ in range(100):
        await asyncio.sleep(0)
    assert (large.done(), body.read <= LARGE + 2 * CHUNK) == (False, True), "it is not read before there is memory"
    held.give_back(512 * MEGABYTE)
    assert (await large).status_code == 202
    assert held.held == 0


async def test_a_large_body_for_which_there_is_no_memory_is_to_come_again(memory: Backend, serve: Serve) -> None:  # X3
    client = await serve(memory, options=ServerOptions(body_patience=0.02))
    await memory_of(client).take(512 * MEGABYTE, 1)
    answer = await client.post("/v1/jobs", json={"type": "t", "data": "a" * LARGE})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:longshore:overloaded")
    assert (answer.headers["retry-after"], "memory" in answer.json()["detail"]) == ("1", True)
    memory_of(client).give_back(512 * MEGABYTE)
    assert (await client.post("/v1/jobs", json={"type": "t", "data": "a" * LARGE})).status_code == 202


async def test_memory_is_given_in_the_order_in_which_it_is_asked_for() -> None:  # X3
    held = BodyMemory(100)
    await held.take(90, 1)
    first = asyncio.ensure_future(held.take(50, 10))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(held.take(10, 10))
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (False, False), "a smaller one does not overtake"
    with pytest.raises(Overloaded):
        held.take_more(0, 20)
    held.take_more(90, 5)
    held.give_back(5)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second
    assert held.held == 100
    held.give_back(100)
    await held.take(1_000, 1)  # one is always let in: what it may have is bounded elsewhere
    held.take_more(1_000, 1_000)
    assert held.held == 2_000


async def test_a_body_of_unknown_length_takes_memory_as_it_grows(memory: Backend, serve: Serve) -> None:  # X3
    client = await serve(memory)
    body = Sent(b'{"type":"t","data":"', b"a", b'"}', 4 * MEGABYTE)
    assert (await client.post("/v1/jobs", content=body, headers=JSON)).status_code == 202
    assert PER_BYTE * body.length <= memory_of(client).peak < 2 * PER_BYTE * body.length
