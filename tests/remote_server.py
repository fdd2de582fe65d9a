"""A server on a loopback address, in its own thread and loop, whose store a test can replace."""

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
    """Allows every caller everything and records no actor, so that the log equals that of a local store."""

    authenticates = False

    async def admit(self, request: Request) -> Caller:
        """Return no actor."""
        return Caller("", EVERYTHING)


class RemoteServer:
    """Serves until it is closed; its application is reused, because creating it takes longer than most tests."""

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
        """Run it on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def platform(self) -> Platform:
        """The store that is served now."""
        platform: Platform = self.app.state.platform
        return platform

    @contextmanager
    def serving(self, backend: Backend) -> Iterator[str]:
        """Serve this store inside the block; yield the address."""
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
        """Use another gate inside the block."""
        before, self.app.state.gate = self.app.state.gate, gate
        yield
        self.app.state.gate = before

    def comes_to_rest(self) -> None:
        """Return when the server has read the log to its end."""

        async def reads_on() -> None:
            tail = self.platform.tail
            while tail.cursor != await self.platform.backend.end_of_events():
                await tail.beyond(tail.end, 0.05)

        self.do(reads_on())

    def close(self) -> None:
        """Stop the server."""
        self.do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
