"""The state that all routes share: the store, its queue, the acceptor, the event tail and the open streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated

from fastapi import Depends, Request

from longshore.app.harbor import Harbor
from longshore.backends.base import Backend
from longshore.core.job import Job
from longshore.runtime.process_registry import registry_of
from longshore.runtime.queue import Queue
from longshore.server.accept import Acceptor
from longshore.server.auth import Caller
from longshore.server.event_tail import Changes, Tail
from longshore.server.http_errors import ShuttingDown, TooMany
from longshore.server.metrics import Figures
from longshore.server.options import ServerOptions
from longshore.server.rate_limit import Notes
from longshore.server.replays import Replays
from longshore.server.response_limits import JobSizes


class Platform:
    """The shared state of one server; `within` opens and closes it."""

    queue: Queue
    """The queue of all jobs."""
    harbor: Harbor
    """For flows; it has no tasks."""

    def __init__(self, store: Backend | Harbor, options: ServerOptions) -> None:
        self._store = store
        self.options = options
        self.figures = Figures()
        self.notes = Notes()
        self.job_sizes = JobSizes()
        self._closing: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._make()

    def _make(self) -> None:
        """Create the objects that belong to one event loop and one opening of a harbor."""
        self.backend = self._present_backend()
        self.acceptor = Acceptor(self.backend)
        self.tail = Tail(self.backend, self.figures.heard)
        self.changes = Changes(self.backend)
        self.replays = Replays(self.changes.server)
        self.streams = 0
        """The number of open streams and long polls."""

    def _present_backend(self) -> Backend:
        return self._store.backend if isinstance(self._store, Harbor) else self._store

    async def _start(self) -> None:
        if self._loop is not None:
            self._make()
        self._loop = asyncio.get_running_loop()
        self.queue = Queue(self.backend)
        self.harbor = Harbor(self.backend, name="server")
        self._closing = asyncio.Event()
        await self.tail.open()

    async def begin(self) -> None:
        """Start if no lifespan did, as in a mounted application, whose host closes the store."""
        started_here = self._loop is asyncio.get_running_loop() and self.backend is self._present_backend()
        if started_here and (self.closing or not self.tail.ended):
            return
        await self._start()
        for queue in (
            self.queue,
            self.harbor._queue,
        ):  # these must not keep the store open after the host's last queue closes
            registry_of(self.backend).closed(queue)

    @asynccontextmanager
    async def within(self) -> AsyncIterator[None]:
        """Start, and close at the end."""
        await self._start()
        try:
            yield
        finally:
            self.begin_to_close()
            await self.acceptor.close()
            await self.changes.close()
            await self.tail.close()
            await self.harbor.close()
            await self.queue.close()

    # -- closing

    def begin_to_close(self) -> None:
        """End all streams and long polls; other requests may finish."""
        if self._closing is not None:
            self._closing.set()

    @property
    def closing(self) -> bool:
        """Whether the server is shutting down."""
        return self._closing is not None and self._closing.is_set()

    async def closed(self) -> None:
        """Return when the server begins to shut down."""
        if self._closing is not None:
            await self._closing.wait()

    # -- open streams

    @contextmanager
    def open_stream(self) -> Iterator[None]:
        """Count a stream or long poll while it lasts; raise TooMany if there are too many."""
        if self.closing:
            raise ShuttingDown("the server is shutting down; try again in a moment")
        if self.streams >= self.options.max_streams:
            raise TooMany(
                f"{self.streams} streams are open, the limit of this server; poll instead, or try again later", 5
            )
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    # -- access

    async def job(self, caller: Caller, job_id: str) -> Job:
        """Return the job; raise JobNotFound, also if the caller may not see its queue."""
        return caller.check_job(await self.queue.get_job(job_id))

    async def check_job(self, caller: Caller, job_id: str) -> None:
        """Raise JobNotFound if the caller may not see the job. Does not check that it exists."""
        if caller.queues is not None:
            await self.job(caller, job_id)


async def _platform(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform


Here = Annotated[Platform, Depends(_platform)]
"""The platform, as a parameter of a route. See docs/server.md."""
