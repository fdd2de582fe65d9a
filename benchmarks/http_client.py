"""A minimal HTTP client that sends prepared bytes, so that the measured time is the server's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

Next = Callable[[], bytes | None]
"""Returns the next request to send, or None at the end."""


class Connection(asyncio.Protocol):
    """Sends the next request when the previous one is answered, and records the time of each."""

    def __init__(self, following: Next, took: list[float], over: asyncio.Future[None]) -> None:
        self._following = following
        self._took = took
        self._over = over
        self._answer = b""
        self._sent = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._took.append(perf_counter() - self._sent)
        if not head.startswith(b"HTTP/1.1 202"):
            self._over.set_exception(RuntimeError(self._answer.decode()))
            return
        self._answer = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over.done():
            self._over.set_exception(exc or ConnectionError("the server closed the connection"))

    def _send(self) -> None:
        assert self._transport is not None
        request = self._following()
        if request is None:
            self._over.set_result(None)
            self._transport.close()
            return
        self._sent = perf_counter()
        self._transport.write(request)


async def send_all(port: int, connections: int, following: Next) -> list[float]:
    """Send all requests over `connections` connections; return the time of each answer."""
    loop = asyncio.get_running_loop()
    took: list[float] = []
    ends: list[asyncio.Future[None]] = [loop.create_future() for _ in range(connections)]
    for over in ends:
        await loop.create_connection(lambda over=over: Connection(following, took, over), "127.0.0.1", port)  # type: ignore[misc]  # the default binds the loop variable
    await asyncio.gather(*ends)
    return took
