"""Server-sent events: the event log as it grows, resumed from a cursor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from longshore.core.errors import CursorExpired
from longshore.core.job import JobEvent
from longshore.server.auth import token_ended
from longshore.server.event_tail import Wanted, end, events_after, first_completed
from longshore.server.models.events import event_view
from longshore.server.platform import Platform

MEDIA_TYPE = "text/event-stream"
_RECONNECT = 2_000
"""Milliseconds after which a browser reconnects."""
_CLOSE_SECONDS = 1.0
"""Seconds in which a client must read the end of its stream."""


class EventStream(StreamingResponse):
    """The stream of one client; it counts as one of the server's streams."""

    media_type = MEDIA_TYPE

    def __init__(
        self, request: Request, here: Platform, cursor: str | None, wanted: Wanted, *, whole: bool = False
    ) -> None:
        self._events = events_after(here.tail, here.backend, cursor, wanted, here.options.heartbeat, whole=whole)
        super().__init__((), headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"})  # set in __call__
        self._request = request
        self._here = here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the client disconnects, its token ends, or the server stops."""
        with self._here.open_stream():
            ending = asyncio.ensure_future(_end_of_stream(self._request, self._here))
            self.body_iterator = _chunks(self._events, ending)
            sending = asyncio.ensure_future(super().__call__(scope, receive, send))
            try:
                await asyncio.wait({sending, ending}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({sending}, timeout=_CLOSE_SECONDS)
                if not sending.done():
                    raise ClientDisconnect
                sending.result()
            finally:
                await end(sending, ending)


async def _end_of_stream(request: Request, here: Platform) -> bytes:
    """Return the last comment of the stream when it must end."""
    await first_completed(token_ended(request), here.closed())
    if here.closing:
        return b": the server is shutting down; reconnect in a moment\n\n"
    return b": your token has expired or was revoked; reconnect with another\n\n"


async def _chunks(events: AsyncIterator[JobEvent | str], ending: asyncio.Future[bytes]) -> AsyncIterator[bytes]:
    yield f"retry: {_RECONNECT}\n\n".encode()
    coming: asyncio.Future[JobEvent | str] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(events))
            either: set[asyncio.Future[Any]] = {coming, ending}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                yield ending.result()
                return
            try:
                found = coming.result()
            except CursorExpired as error:  # the client is too far behind and must start again
                yield f"event: gap\ndata: {error}\n\n".encode()
                return
            yield written(found) if isinstance(found, JobEvent) else f": alive\nid: {found}\n\n".encode()
    finally:
        if coming is not None:
            await end(coming)


def written(event: JobEvent) -> bytes:
    """An event in the format of the stream; its JSON has no line breaks."""
    return f"id: {event.cursor}\nevent: {event.event}\ndata: {event_view(event).model_dump_json()}\n\n".encode()
