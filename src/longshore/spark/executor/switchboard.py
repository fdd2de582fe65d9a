"""Where Spark tasks reach their worker while they run its jobs: one listening socket, and a word for each batch."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from longshore.runtime.executors.wire import Unreadable, read_frame
from longshore.spark.executor.batch import Batch, TaskLine

_INTRODUCES_ITSELF_WITHIN = 10.0
_SILENT_FOR, _BETWEEN_PROBES, _PROBES = 60, 10, 3
"""Seconds after which the other end is asked whether it is there: a machine that lost its power says nothing."""


class Switchboard:
    """Belongs to the event loop that opens it."""

    def __init__(self) -> None:
        self._expected: dict[str, Batch] = {}
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._talks: set[asyncio.Task[None]] = set()

    async def open(self, host: str) -> int:
        """Listens at this address of the machine; gives the port."""
        async with self._opening:  # batches of two types may begin at once
            if self._server is None:
                self._server = await asyncio.start_server(self._answer, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def expect(self, batch: Batch) -> None:
        """From now on the batch's tasks are let in."""
        self._expected[batch.token] = batch

    def forget(self, batch: Batch) -> None:
        """It is over."""
        self._expected.pop(batch.token, None)

    async def close(self) -> None:
        """Hangs up on everybody."""
        if self._server is not None:
            self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        if self._talks:
            await asyncio.wait(list(self._talks))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            async with asyncio.timeout(_INTRODUCES_ITSELF_WITHIN):
                message, _ = await read_frame(reader)
            batch = self._expected.get(str(message.get("hello")))
            if batch is None:
                return
            _notice_lost_power(writer.get_extra_info("socket"))
            await batch.serve(reader, TaskLine(writer, str(message.get("task"))[:200]))
        except (TimeoutError, EOFError, OSError, Unreadable, asyncio.CancelledError):
            return  # a stranger, or we hang up; either way nobody is left to tell
        finally:
            self._talks.discard(talk)
            writer.close()


def _notice_lost_power(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(AttributeError, OSError):  # these three are Linux's names
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_FOR)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_PROBES)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
