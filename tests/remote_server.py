"""A server on a loopback address, in a thread and loop of its own, whose store can be changed from test to test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from fastapi import Request

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.tokens import EVERYTHING
from longshore.server.app import create_app
from longshore.server.auth import Caller, Gate
from longshore.server.options import ServerOptions
from longshore.server.platform import Platform
from longshore.server.uvicorn_server import ApiServer

R = TypeVar("R")


class NobodyInParticular:
    """Whoever calls may do everything and signs for nothing, so that the log is to the letter what a store writes."""

    authenticates = False

    async def admit(self, request: Request) -> Caller:
        """Nobody."""
        return Caller("", EVERYTHING)


class RemoteServer:
    """Served until it is closed; to make its application takes longer than most tests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote-server", daemon=True)
        self._thread.start()
        options = ServerOptions(max_streams=1_000)
        self.app = create_app(connect("memory://"), options=options, gate=NobodyInParticular())
        self._server: ApiServer = self.do(self._serve())
        self.address = self._server.address

    async def _serve(self) -> ApiServer:
        server = ApiServer(self.app)
        self._running = asyncio.ensure_future(server.run())
        await server.ready()
        return server

    def do(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs it on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def platform(self) -> Platform:
        """What is served now."""
        platform: Platform = self.app.state.platform
        return platform

    @contextmanager
    def serving(self, backend: Backend) -> Iterator[str]:
        """The address, at which this store is served inside."""
        before = self.platform
        platform = Platform(backend, before.options)
        opened: AbstractAsyncContextManager[None] = platform.within()
        self.do(opened.__aenter__())
        self.app.state.platform = platform
        try:
            yield self.address
        finally:
            self.do(opened.__aexit__(None, None, None))
            self.app.state.platform = before

    @contextmanager
    def behind(self, gate: Gate) -> Iterator[None]:
        """Another gate inside."""
        before, self.app.state.gate = self.app.state.gate, gate
        yield
        self.app.state.gate = before

    def comes_to_rest(self) -> None:
        """Returns when the server has read the log to its end, which it does in its own time."""

        async def reads_on() -> None:
            tail = self.platform.tail
            while tail.cursor != await self.platform.backend.end_of_events():
                await tail.beyond(tail.end, 0.05)

        self.do(reads_on())

    def close(self) -> None:
        """Ends it."""
        self.do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
