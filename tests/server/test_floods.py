"""A flood from one address: how the address is determined, how many connections it may have, and what is logged."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.server.auth import TokenGate
from longshore.server.options import ServerOptions
from tests.runtime.working import until
from tests.server.test_serving import connections_of, head, said, served

WRONG = {"authorization": f"Bearer lsk_{'0' * 12}_{'0' * 64}"}


async def _guesses(address: str, times: int) -> list[int]:
    """The answers to wrong tokens, each with another claimed address."""
    async with httpx.AsyncClient(base_url=address) as client:
        sent = [WRONG | {"x-forwarded-for": f"192.0.2.{number}"} for number in range(times)]
        return [(await client.get("/v1/jobs", headers=headers)).status_code for headers in sent]


async def test_a_caller_on_this_machine_gets_no_new_budget_for_each_address_it_claims(memory: Backend) -> None:  # X5
    async with served(memory, TokenGate(memory)) as server:
        assert await _guesses(server.address, 12) == [401] * 10 + [429] * 2


async def test_the_address_that_a_trusted_proxy_sends_is_used(memory: Backend) -> None:  # X5
    async with served(memory, TokenGate(memory), trusted_proxies=("127.0.0.0/8",)) as server:
        assert await _guesses(server.address, 12) == [401] * 12
    async with served(memory, TokenGate(memory), trusted_proxies=("192.0.2.0/24", "::1")) as server:
        assert (await _guesses(server.address, 12))[-1] == 429


@pytest.mark.parametrize(
    ("trusted", "cookie"), [((), "longshore_session"), (("127.0.0.1",), "__Host-longshore_session")]
)
async def test_the_scheme_that_a_proxy_sends_is_used_only_if_it_is_trusted(
    memory: Backend, trusted: tuple[str, ...], cookie: str
) -> None:  # X5
    gate = TokenGate(memory)
    _, secret = await memory.issue_token("ada", ["read"])  # type: ignore[attr-defined]  # it keeps tokens
    async with served(memory, gate, trusted_proxies=trusted) as server:
        headers = {"x-forwarded-proto": "https", "origin": server.address}
        async with httpx.AsyncClient(base_url=server.address, headers=headers) as client:
            signed_in = await client.post("/sign-in", data={"token": secret})
            assert signed_in.headers["set-cookie"].startswith(f"{cookie}=")


@pytest.mark.parametrize("given", ["jobs.example.org", "10.0.0.1/24", "*", ""])
def test_a_proxy_that_is_neither_an_address_nor_a_network_is_refused(given: str) -> None:  # X5
    with pytest.raises(InvalidArgument, match="trusted_proxy: must be an address or a network"):
        ServerOptions(trusted_proxies=(given,))


async def test_the_connections_of_one_address_are_limited(
    memory: Backend, caplog: pytest.LogCaptureFixture
) -> None:  # X5
    async with served(memory, max_connections_per_address=3) as server, AsyncExitStack() as held:
        port = int(server.address.rpartition(":")[2])

        async def hold() -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.callback(writer.close)
            return reader

        for _ in range(3):
            await hold()
        for _ in range(5):
            for probe in ("/healthz", "/readyz"):
                assert (await said(server, head("GET", probe))).startswith(b"HTTP/1.1 200")
            answer = (await said(server, head("GET", "/v1/queues"))).lower()
            assert answer.startswith(b"http/1.1 429")
            for told in (b"urn:longshore:too-many", b"retry-after: 1", b"connection: close", b"your address"):
                assert told in answer, answer
        for _ in range(3):  # six are twice as many as it may have
            await hold()
        await until(lambda: connections_of(server) == 6)
        async with asyncio.timeout(5):
            assert await (await hold()).read() == b"", "it is closed without an answer"
        await held.aclose()
        await until(lambda: connections_of(server) == 0)
        assert (await said(server, head("GET", "/v1/queues"))).startswith(b"HTTP/1.1 200")
        assert server._server.server_state._from_address == {}
    assert len([record for record in caplog.records if "too many connections" in record.getMessage()]) == 1


async def test_a_trusted_proxy_may_have_more_connections(memory: Backend) -> None:  # X5
    async with served(memory, max_connections_per_address=1, trusted_proxies=("127.0.0.1",)) as server:
        held = [await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2])) for _ in range(4)]
        assert (await said(server, head("GET", "/v1/queues"))).startswith(b"HTTP/1.1 200")
        for _, writer in held:
            writer.close()


async def test_a_flood_of_refused_requests_is_logged_once(
    memory: Backend, caplog: pytest.LogCaptureFixture
) -> None:  # X5
    async with served(memory, max_connections=1) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
        for _ in range(20):
            assert (await said(server, head("GET", "/v1/queues"))).startswith(b"HTTP/1.1 503")
            assert (await said(server, b"no request at all\r\n\r\n")).startswith(b"HTTP/1.1 400")
        writer.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([line for line in warnings if line.startswith("request refused")]) == 1
    assert len([line for line in warnings if line.startswith("Invalid HTTP request")]) <= 1
