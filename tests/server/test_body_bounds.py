"""Bodies are bounded while they arrive: large ones in values and levels, all in the memory that they use together."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from random import Random
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.validation import LARGE
from longshore.server import body_limits
from longshore.server.body_limits import (
    MOST_LEVELS,
    PER_BYTE,
    PER_CONTAINER,
    PER_VALUE,
    SMALL,
    BodyMemory,
    Meter,
    ValueCounter,
    most_for_values,
)
from longshore.server.http_errors import Overloaded, TooLarge
from longshore.server.options import MEGABYTE, ServerOptions
from longshore.server.routes import store
from tests.runtime.working import until
from tests.server.conftest import Serve

JSON = {"content-type": "application/json"}
CHUNK = 64 * 1024
MARK = "marked by this test"


class Sent:
    """A body that counts how much of it was read."""

    def __init__(self, start: bytes, filling: bytes, end: bytes, size: int) -> None:
        self._pieces = [start, *[filling * (CHUNK // len(filling))] * (size // CHUNK), end]
        self.length = sum(map(len, self._pieces))
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)  # as on a network: bodies that are sent at once arrive by turns
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

    spy(body_limits, "read_json", 1)
    spy(store, "read_body", 0)
    return found


# -- counting


def values_in(value: Any) -> int:
    """Values and keys of what was parsed."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(values_in, value.values()))
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


def levels_in(value: Any) -> int:
    """List and objects within one another."""
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


def test_text_with_many_escapes_is_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:  # X3
    counted = ValueCounter(10)
    counted.feed(b'["' + b'\\"' * 500_000)  # with a retry from each quotation mark this would take hours
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


async def test_a_server_accepts_a_million_values_by_default(quick: httpx.AsyncClient, parsed: list[int]) -> None:  # X3
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


@pytest.mark.parametrize("kinds", [("application/json", "text/plain"), ("text/plain", "application/json")])
async def test_a_second_content_type_does_not_hide_a_body_from_the_count(
    quick: httpx.AsyncClient, parsed: list[int], kinds: tuple[str, str]
) -> None:  # X3
    body = Sent(b'{"type":"t","data":[', b"[],", b"0]}", 6 * MEGABYTE)
    answer = await quick.post("/v1/jobs", content=body, headers=[("content-type", kind) for kind in kinds])
    assert answer.status_code in (413, 415), answer.text
    assert (parsed, body.read < 4 * MEGABYTE) == ([], True)


async def test_a_form_is_read_no_further_than_a_form_may_be_long(memory: Backend, serve: Serve) -> None:  # X3
    from longshore.server.auth import TokenGate

    client = await serve(memory, gate=TokenGate(memory))
    body = Sent(b"token=", b"a", b"", 30 * MEGABYTE)
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://127.0.0.1"}
    answer = await client.post("/sign-in", content=body, headers=form)
    assert (answer.status_code, body.read <= 2 * CHUNK) == (413, True)


async def test_one_string_of_thirty_megabytes_is_accepted(quick: httpx.AsyncClient, memory: Backend) -> None:
    # X3
    text = "\\u00e9" * (30 * MEGABYTE // 6 - 1_000) + '\\",[{' * 1_000
    body = f'{{"type":"t","id":"j","data":"{text}"}}'.encode()
    assert 29 * MEGABYTE < len(body) <= 32 * MEGABYTE
    answer = await quick.post("/v1/jobs", content=body, headers=JSON)
    assert answer.status_code == 202, answer.text
    assert len((await memory.get_job("j")).payload) > 9 * MEGABYTE


async def test_a_large_body_in_another_encoding_than_utf_8_is_refused(quick: httpx.AsyncClient) -> None:  # X3
    # in UTF-16 half of a character may look like a quotation mark, and hide the rest from the count
    body = json.dumps({"assignee_id": "w", "tags": ["\u2200"] * LARGE}, ensure_ascii=False).encode("utf-16-le")
    answer = await quick.post("/v1/work/claim", content=body, headers=JSON)
    assert (answer.status_code, "UTF-8" in answer.json()["detail"]) == (400, True)


# -- memory


def memory_of(client: httpx.AsyncClient) -> BodyMemory:
    """What the bodies of a client's server hold."""
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


async def test_many_bodies_below_256_kib_at_once_hold_no_more_than_the_memory_for_bodies(
    memory: Backend, serve: Serve
) -> None:  # X3
    most = 40 * MEGABYTE
    client = await serve(memory, options=ServerOptions(max_body_memory=most))
    dense = b'{"type":"t","data":[' + b"[]," * 85_000 + b"[]]}"
    assert len(dense) < LARGE
    answers = await asyncio.gather(*(client.post("/v1/jobs", content=dense, headers=JSON) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {202}, "each waits for its turn"
    assert 85_000 * PER_CONTAINER <= memory_of(client).peak <= most
    assert memory_of(client).held == 0


async def test_a_body_in_pieces_holds_an_estimate_for_all_of_it_from_its_first_piece_on() -> None:  # X3
    held = BodyMemory(64 * MEGABYTE)
    meter = Meter(held, 1_000_000, is_json=True)
    piece = b"[]," * 10_000
    await meter.read(piece, 6 * len(piece), 1)
    whole = PER_BYTE * 6 * len(piece) + most_for_values(6 * piece)
    assert whole <= held.held <= whole + 6 * PER_VALUE
    await meter.read(piece, 6 * len(piece), 1)
    assert held.held <= whole + 6 * PER_VALUE
    meter.settle()
    assert held.held == PER_BYTE * 2 * len(piece) + 2 * most_for_values(piece), "the rest did not come"
    meter.close()
    assert held.held == 0


def test_the_estimate_of_a_small_body_is_never_less_than_the_exact_count(seed: int) -> None:  # X3
    chance = Random(seed)
    for _ in range(300):
        text = json.dumps(anything(chance), separators=(",", ":")).encode()
        counter = ValueCounter(10**9)
        counter.feed(text)
        exact = PER_VALUE * counter.values + (PER_CONTAINER - PER_VALUE) * counter.containers
        assert most_for_values(text) >= exact, text


@pytest.mark.parametrize("size", [2 * MEGABYTE, LARGE - 100])
async def test_a_body_waits_for_memory_and_a_small_one_has_a_reserve(
    memory: Backend, serve: Serve, size: int
) -> None:  # X3
    client = await serve(memory)
    held = memory_of(client)
    await held.take(448 * MEGABYTE, 1)  # 7/8 of it, all that larger bodies may use
    body = Sent(b'{"type":"t","data":"', b"a", b'"}', size)
    waits = asyncio.ensure_future(client.post("/v1/jobs", content=body, headers=JSON))
    await until(lambda: body.read > 0)
    small = await client.post("/v1/jobs", json={"type": "t", "data": "a" * (SMALL - 100)})
    assert small.status_code == 202
    for _ in range(100):
        await asyncio.sleep(0)
    assert (waits.done(), body.read <= 2 * CHUNK) == (False, True), "it is not read before there is memory"
    held.release(448 * MEGABYTE)
    assert (await waits).status_code == 202
    assert held.held == 0


async def test_small_bodies_wait_only_for_one_another() -> None:  # X3
    held = BodyMemory(80)
    await held.take(70, 1)
    large = asyncio.ensure_future(held.take(30, 10))
    await asyncio.sleep(0)
    await held.take(10, 1, small=True)
    small = asyncio.ensure_future(held.take(5, 10, small=True))
    await asyncio.sleep(0)
    assert (large.done(), small.done()) == (False, False)
    held.release(10, small=True)
    await small
    assert not large.done()
    held.release(70)
    await large
    assert held.held == 35


async def test_the_parsed_body_is_released_before_the_store_writes(memory: Backend, serve: Serve) -> None:  # X3
    client = await serve(memory)
    stored: list[int] = []
    store_jobs = memory.enqueue_new_jobs

    async def watched(jobs: Sequence[Job]) -> list[str]:
        stored.append(sum(1 for found in gc.get_objects() if type(found) is list and found == [MARK]))
        return await store_jobs(jobs)

    memory.enqueue_new_jobs = watched  # type: ignore[method-assign]  # looks, and does what it did
    one = f'{{"type":"t","data":[["{MARK}"],["{MARK}"]]}}'
    assert (await client.post("/v1/jobs", content=one, headers=JSON)).status_code == 202
    assert (await client.post("/v1/jobs/batch", content=f'{{"jobs":[{one}]}}', headers=JSON)).status_code == 202
    assert stored == [0, 0]


def test_free_memory_is_returned_after_much_was_held_and_not_after_each_small_body() -> None:  # X3, X5
    returned: list[int] = []
    held = BodyMemory(512 * MEGABYTE)
    held.when_idle = lambda: returned.append(held.held)
    held.take_more(0, 10_000)
    for _ in range(3):
        held.take_more(10_000, 20_000)
        held.release(20_000)
    assert returned == []
    held.take_more(10_000, 100 * MEGABYTE)
    held.release(100 * MEGABYTE)
    assert returned == [10_000], "although a worker waits for jobs, and its body is held"
    held.release(10_000)
    assert returned == [10_000]


async def test_a_large_body_without_memory_gets_503_with_retry_after(memory: Backend, serve: Serve) -> None:  # X3
    client = await serve(memory, options=ServerOptions(body_patience=0.02))
    await memory_of(client).take(512 * MEGABYTE, 1)
    answer = await client.post("/v1/jobs", json={"type": "t", "data": "a" * LARGE})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:longshore:overloaded")
    assert (answer.headers["retry-after"], "memory" in answer.json()["detail"]) == ("1", True)
    memory_of(client).release(512 * MEGABYTE)
    assert (await client.post("/v1/jobs", json={"type": "t", "data": "a" * LARGE})).status_code == 202


async def test_memory_is_granted_in_the_order_of_requests() -> None:  # X3
    held = BodyMemory(114)  # 14 of which are for small bodies
    await held.take(90, 1)
    first = asyncio.ensure_future(held.take(50, 10))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(held.take(10, 10))
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (False, False), "a smaller one does not overtake"
    with pytest.raises(Overloaded):
        held.take_more(0, 20)
    held.take_more(90, 5)
    held.release(5)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second
    assert held.held == 100
    held.release(100)
    await held.take(1_000, 1)  # a single body is always accepted: max_body limits its size
    held.take_more(1_000, 1_000)
    assert held.held == 2_000


async def test_a_body_of_unknown_length_takes_memory_as_it_grows(memory: Backend, serve: Serve) -> None:  # X3
    client = await serve(memory)
    body = Sent(b'{"type":"t","data":"', b"a", b'"}', 4 * MEGABYTE)
    assert (await client.post("/v1/jobs", content=body, headers=JSON)).status_code == 202
    assert PER_BYTE * body.length <= memory_of(client).peak < 2 * PER_BYTE * body.length


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is released must be gone at once: a server seldom has full collections."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/batch", "/v1/store/get_job"])
async def test_a_body_that_is_refused_while_it_is_read_is_released_with_the_answer(
    memory: Backend, serve: Serve, path: str
) -> None:  # X5
    client = await serve(memory, options=ServerOptions(max_values=100_000))
    piece = b"[1]," * CHUNK
    pieces = [b'{"data":[', piece, b"0]}"]
    before = sys.getrefcount(piece)

    async def sent() -> AsyncIterator[bytes]:
        while pieces:
            yield pieces.pop(0)

    answer = await client.post(path, content=sent(), headers=JSON)
    assert answer.status_code == 413, answer.text
    assert sys.getrefcount(piece) == before, "the list does not refer to it any more, the client does, the server not"
