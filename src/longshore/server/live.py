"""Server-sent events: the durable log as it grows, resumed where it broke off, and ended when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from longshore.core.errors import CursorExpired
from longshore.core.job import JobEvent
from longshore.server.access import turned_away
from longshore.server.models.events import event_view
from longshore.server.platform import Platform
from longshore.server.racing import end
from longshore.server.tail import Wanted, events_after

MEDIA_TYPE = "text/event-stream"
_RECONNECT = 2_000
"""Milliseconds after which a browser that lost its stream asks for it again."""


class EventStream(StreamingResponse):
    """One client's stream; it holds one of the server's places as long as it lasts."""

    media_type = MEDIA_TYPE

    def __init__(
        self, request: Request, here: Platform, cursor: str | None, wanted: Wanted, *, whole: bool = False
    ) -> None:
        events = events_after(here.tail, here.backend, cursor, wanted, here.options.heartbeat, whole=whole)
        super().__init__(_told(request, here, events), headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"})
        self._here = here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Until the client leaves, its token ends, or the server stops."""
        with self._here.a_place():
            await super().__call__(scope, receive, send)


async def _told(request: Request, here: Platform, events: AsyncIterator[JobEvent | str]) -> AsyncIterator[bytes]:
    yield f"retry: {_RECONNECT}\n\n".encode()
    closed = asyncio.ensure_future(here.closed())
    refused = asyncio.ensure_future(turned_away(request))
    coming: asyncio.Future[JobEvent | str] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(events))
            await asyncio.wait({coming, closed, refused}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                yield b": the server stops; come back in a moment\n\n"
                return
            if refused.done():
                yield b": your token is over; come back with another\n\n"
                return
            try:
                found = coming.result()
            except CursorExpired as error:  # whoever fell so far behind must look at everything anew
                yield f"event: gap\ndata: {error}\n\n".encode()
                return
            yield written(found) if isinstance(found, JobEvent) else f": alive\nid: {found}\n\n".encode()
    finally:
        await end(*[task for task in (coming, closed, refused) if task is not None])


def written(event: JobEvent) -> bytes:
    """One event as the stream has it: JSON has no line ends, so that it is always one line."""
    return f"id: {event.cursor}\nevent: {event.event}\ndata: {event_view(event).model_dump_json()}\n\n".encode()
