"""HTTP/1.1 as far as one server of ours needs it: requests with a body, answered over connections that are kept."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

_LONGEST_HEAD = 64 * 1024
_LARGEST_ANSWER = 512 * 1024 * 1024
_READ_AHEAD = 1024 * 1024
_KEPT_ALIVE = 20.0
"""Seconds an idle connection is kept: less than a server waits, so that ours is the side that lets go."""
_TLS_ALERT = b"\x15\x03"
_WHOM_TO_TRUST = (
    "if it has a certificate of its own, name the file with it, or with that of its authority: "
    "connect(…, ca_file=…), or SSL_CERT_FILE in the environment"
)


class NotSent(Exception):
    """No connection came about: the request has reached nobody."""


class Lost(Exception):
    """The connection broke before the whole answer was there: what became of the request is not known."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back; header names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """Up to so many to one server; used on one event loop."""

    def __init__(self, address: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, most: int) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None  # whoever opens it has looked
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = tls
        self._base = parts.path.rstrip("/")
        lines = [f"Host: {parts.netloc}", *(f"{name}: {value}" for name, value in headers.items())]
        self._head = "\r\n".join(lines)
        self._idle: list[tuple[_Connection, float]] = []
        self._room = asyncio.Semaphore(most)

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, *, connect_within: float, answer_within: float
    ) -> Response:
        """The answer; NotSent or Lost if there was none."""
        more = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
        head = f"POST {self._base}{path} HTTP/1.1\r\n{self._head}{more}\r\nContent-Length: {len(body)}\r\n\r\n"
        async with self._room:
            connection = await self._connection(connect_within)
            whole = False
            try:
                async with asyncio.timeout(answer_within):
                    response = await connection.ask(head.encode("latin-1") + body)
                whole = True
            except TimeoutError:
                raise Lost(f"no answer within {answer_within:g} seconds") from None
            except asyncio.IncompleteReadError as error:
                raise Lost(self._cut_off(error.partial)) from None
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                raise Lost(str(error) or "the connection was closed before the answer") from None
            finally:
                if whole and connection.reusable:
                    self._idle.append((connection, monotonic()))
                else:
                    connection.abort()
        return response

    async def _connection(self, within: float) -> _Connection:
        while self._idle:
            connection, since = self._idle.pop()
            if connection.reusable and monotonic() - since < _KEPT_ALIVE:
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(within):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_READ_AHEAD)
        except TimeoutError:
            raise NotSent(f"no connection within {within:g} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise NotSent(f"{error}; {_WHOM_TO_TRUST}") from None
        except OSError as error:  # of which an SSLError is one
            raise NotSent(str(error)) from None
        return _Connection(reader, writer)

    def _cut_off(self, came: bytes) -> str:
        """What is said of an answer that ended too soon. A server that expects TLS says nothing, or that it does."""
        if self._tls is None and (not came or came.startswith(_TLS_ALERT)):
            return (
                "the connection was closed without an answer: it may speak TLS; then its address begins with https://"
            )
        return "the connection was closed before the answer was complete"

    def close(self) -> None:
        """Lets the idle ones go."""
        for connection, _ in self._idle:
            connection.abort()
        self._idle.clear()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ends = False

    @property
    def reusable(self) -> bool:
        return not (self._ends or self._reader.at_eof() or self._writer.is_closing())

    async def ask(self, request: bytes) -> Response:
        self._writer.write(request)
        await self._writer.drain()
        status, headers = 100, dict[str, str]()
        while 100 <= status < 200:  # what only says that more is to come
            status, headers = _read_head(await self._reader.readuntil(b"\r\n\r\n"))
        self._ends = headers.get("connection", "").lower() == "close"
        return Response(status, headers, await self._body(status, headers))

    async def _body(self, status: int, headers: Mapping[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks()
        length = headers.get("content-length")
        if length is None:
            self._ends = True
            return await self._reader.read(-1)
        if not length.isdigit() or int(length) > _LARGEST_ANSWER:
            raise ValueError("the answer has no length that can be right")
        return await self._reader.readexactly(int(length))

    async def _chunks(self) -> bytes:
        whole = bytearray()
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            if len(whole) + size > _LARGEST_ANSWER:
                raise ValueError("the answer is too large")
            piece = await self._reader.readexactly(size + 2)
            if size == 0:
                return bytes(whole)
            whole += piece[:-2]

    def abort(self) -> None:
        """At once: nobody waits for the other side to agree."""
        with suppress(Exception):
            self._writer.transport.abort()


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    if len(head) > _LONGEST_HEAD:
        raise ValueError("the answer's head is too large")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError("what answered does not speak HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), headers
