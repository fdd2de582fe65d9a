"""The remote backend behind one address with several servers, whose requests fall now on this one and now on that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from longshore import connect
from longshore.server.app import create_app
from longshore.server.serving import ApiServer
from longshore.testing.conformance.staging import new_job


class RoundRobin:
    """Hands each request to the next of its servers, as a balancer without sticky sessions does; counts them."""

    def __init__(self, addresses: list[str]) -> None:
        self._behind = [(at.hostname, at.port) for at in map(urlsplit, addresses)]
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        try:
            while True:
                request = await _message(reader)
                host, port = self._behind[self.requests % len(self._behind)]
                self.requests += 1
                far_reader, far_writer = await asyncio.open_connection(host, port)
                far_writer.write(request)
                try:
                    writer.write(await _message(far_reader))
                finally:
                    far_writer.close()
        except (asyncio.IncompleteReadError, OSError):  # one of both ends has gone
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


@asynccontextmanager
async def served(url: str) -> AsyncIterator[str]:
    server = ApiServer(create_app(connect(url)))
    serving = asyncio.create_task(server.run())
    await server.ready()
    try:
        yield server.address
    finally:
        await server.close()
        await serving


@asynccontextmanager
async def balanced(url: str, count: int) -> AsyncIterator[tuple[str, RoundRobin]]:
    """The one address of so many servers of a store."""
    async with AsyncExitStack() as opened:
        robin = RoundRobin([await opened.enter_async_context(served(url)) for _ in range(count)])
        door = await opened.enter_async_context(await asyncio.start_server(robin.serve, "127.0.0.1", 0))
        yield f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}", robin


async def test_an_idle_store_behind_a_balancer_costs_next_to_nothing_and_a_change_is_heard(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as store, balanced(url, 2) as (address, robin), connect(address) as far:
        while await far.wait_for_change(0.3):  # each server is met for the first time, and may have news
            assert robin.requests < 50, "it never comes to rest"
        before = robin.requests
        assert await far.wait_for_change(1.5) is False
        assert robin.requests - before <= 4
        waiting = asyncio.create_task(far.wait_for_change(25))
        await asyncio.sleep(0)
        await store.enqueue_job(new_job("a"))
        assert await waiting is True
