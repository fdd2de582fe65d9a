"""A server in the test's own process, on every store or on the one that is quickest, and a client for it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.runtime.queue import Queue
from longshore.server.app import create_app
from longshore.server.platform import Platform
from longshore.testing.conformance.scenarios import audit

Serve = Callable[..., Any]
"""Opens a server on a backend with the options of `create_app`, and returns a client for it."""


@pytest.fixture
def clock() -> HeldClock:
    """The store's clock, held still, for a test that asks for it."""
    return HeldClock()


@pytest.fixture
async def backend(store_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """The store under test; the whole log and the counts are audited after each test."""
    held = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    async with connect(store_url, clock=held) as opened:
        keeper = Queue(opened)  # so that the server's end does not close it
        yield opened
        await audit(opened)
        assert not keeper.closed


@pytest.fixture
async def memory() -> AsyncIterator[Backend]:
    """A store for tests to which it does not matter which."""
    async with connect("memory://") as opened:
        keeper = Queue(opened)
        yield opened
        assert not keeper.closed


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a store until the test ends."""
    async with AsyncExitStack() as open_until_the_end:

        async def serving(backend: Backend, **options: Any) -> httpx.AsyncClient:
            app: FastAPI = create_app(backend, **options)
            await open_until_the_end.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app=app)
            client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
            return await open_until_the_end.enter_async_context(client)

        yield serving


def platform_of(client: httpx.AsyncClient) -> Platform:
    """What the routes of a client's server work with."""
    transport = client._transport
    assert isinstance(transport, httpx.ASGITransport)
    platform: Platform = transport.app.state.platform  # type: ignore[attr-defined]  # the one it was made with
    return platform


@pytest.fixture
async def client(backend: Backend, serve: Serve) -> httpx.AsyncClient:
    """A client of a server on every store."""
    return await serve(backend)  # type: ignore[no-any-return]  # it is one


@pytest.fixture
async def quick(memory: Backend, serve: Serve) -> httpx.AsyncClient:
    """A client of a server on the quickest store."""
    return await serve(memory)  # type: ignore[no-any-return]  # it is one
