"""The HTTP client of the remote backend: connections, retries, and one request per operation."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from longshore.backends.remote.codecs import KNOWN, PREFIX, error_in
from longshore.backends.remote.protocol import ACTOR, ANSWER_LOST, KEY, MARK, NOT_DURABLE, REMEMBERED, SENT_TO
from longshore.core.actor import actor
from longshore.core.errors import BackendUnavailable, InvalidArgument, LongshoreError, Unauthenticated
from longshore.core.validation import new_id

_LONGEST_HEAD = 64 * 1024
_LARGEST_ANSWER = 512 * 1024 * 1024
_READ_AHEAD = 1024 * 1024
_KEPT_ALIVE = 20.0
"""Seconds an idle connection is kept: less than a server waits, so that the client closes it first."""
_TLS_ALERT = b"\x15\x03"
_HOW_TO_REACH = "check the address, and that longshore serve runs there"
_NO_TLS = "it does not speak TLS; use http://, or start the server with --tls-certificate: "
_HOW_TO_TRUST = (
    "for a private certificate or authority, pass its file: connect(…, ca_file=…), or SSL_CERT_FILE in the environment"
)


class NotSent(Exception):
    """There was no connection: no server has received the request."""


class Silent(NotSent):
    """Nothing answers at the address."""


class Lost(Exception):
    """The connection broke before the answer was complete: whether the request was carried out is unknown."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """A pool of connections to one server, used on one event loop."""

    def __init__(self, address: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, most: int) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None  # connect() has checked it
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = tls
        self._base = parts.path.rstrip("/")
        lines = [f"Host: {parts.netloc}", *(f"{name}: {value}" for name, value in headers.items())]
        self._head = "\r\n".join(lines)
        self._idle: list[tuple[_Connection, float]] = []
        self._slots = asyncio.Semaphore(most)

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, *, connect_within: float, answer_within: float
    ) -> Response:
        """Return the response; raise NotSent or Lost if there is none."""
        more = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
        head = f"POST {self._base}{path} HTTP/1.1\r\n{self._head}{more}\r\nContent-Length: {len(body)}\r\n\r\n"
        async with self._slots:
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
            raise Silent(f"no connection within {within:g} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise NotSent(f"{error}; {_HOW_TO_TRUST}") from None
        except ssl.SSLError as error:
            plain = error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
            raise NotSent(f"{_NO_TLS if plain else ''}{error}") from None
        except OSError as error:
            raise Silent(str(error)) from None
        return _Connection(reader, writer)

    def _cut_off(self, came: bytes) -> str:
        """Describe an answer that ended too soon. A server that expects TLS sends nothing, or an alert."""
        if self._tls is None and (not came or came.startswith(_TLS_ALERT)):
            return "the connection was closed without an answer; if the server uses TLS, use https://"
        return "the connection was closed before the answer was complete"

    def close(self) -> None:
        """Close the idle connections."""
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
        while 100 <= status < 200:  # an interim response
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
            raise ValueError("the answer has an invalid length")
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
        """Close it at once, without waiting for the other side."""
        with suppress(Exception):
            self._writer.transport.abort()


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    if len(head) > _LONGEST_HEAD:
        raise ValueError("the answer's head is too large")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError("the answer is not HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), headers


R = TypeVar("R")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_CLOSED_WITHIN = 5.0
_GRACE_SECONDS = 2.0
"""Seconds to wait for open requests when the client is closed."""
_AGE = REMEMBERED - 20
"""Seconds after which a request is not repeated: the server may have forgotten its key."""
_ALONE_AFTER = 60.0
"""Seconds without an answer of another server after which a server counts as the only one at its address."""
_UNKNOWN = "unknown"
"""Sent instead of a server's name with a repeated request that was first sent to any server."""


class AnswerLost(LongshoreError):
    """The request may have been carried out, and its server is gone."""


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server and how to reach it. `repr` does not show the token."""

    address: str
    token: str | None
    ca_file: str | None
    wait_seconds: float
    """Seconds for which a request is repeated before the server counts as unavailable."""
    answer_seconds: float
    """Seconds that one answer may take."""
    connections: int

    def __repr__(self) -> str:
        return f"Server({self.address!r})"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server."""

    body: bytes
    mark: str
    durable: bool
    """Whether the store survives its server."""


class Caller:
    """Sends requests for any thread and event loop, on its own thread that starts with the first request."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections: Connections | None = None
        self._known = ""
        """The name of the server that answered last; each start of a server has its own."""
        self._another_answered = -_ALONE_AFTER
        self._closed = False
        self._asking: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> str:
        """The address of its server."""
        return self._server.address

    # -- the thread

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Start the work on its loop; any thread may wait for the future."""
        with self._lock:
            if self._closed:
                work.close()
                raise BackendUnavailable("the connection to the server was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="longshore-remote", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(_ended(self._connections))
            loop.close()

    def close(self) -> None:
        """Wait a moment for open requests, cancel the rest, and join the thread."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._wind_down(), loop)
            thread.join(_CLOSED_WITHIN)

    async def _wind_down(self) -> None:
        """Wait for open requests, except for long polls."""
        if self._asking:
            await asyncio.wait(set(self._asking), timeout=_GRACE_SECONDS)
        asyncio.get_running_loop().stop()

    # -- on the loop

    async def ask(self, path: str, body: bytes, *, repeatable: bool) -> Answer:
        """Return the answer; `close` waits for it."""
        task = asyncio.current_task()
        assert task is not None  # it runs on a loop
        self._asking.add(task)
        try:
            return await self.ask_repeatedly(path, body, repeatable=repeatable)
        finally:
            self._asking.discard(task)

    async def ask_repeatedly(self, path: str, body: bytes, *, repeatable: bool, extra_timeout: float = 0.0) -> Answer:
        """Return the answer, or raise its error; repeat the request while no server answers, up to `wait_seconds`.

        A request that may not be done twice has a key, and names the server that knows the key. Another server refuses
        it. Then it is sent to any server, unless it may have been carried out already: then AnswerLost is raised.
        """
        headers = {} if repeatable else {KEY: new_id(), **self._meant_for()}
        if actor() and self._server.token is None:
            headers[ACTOR] = quote(actor())
        began = monotonic()
        deadline: float | None = None
        pause = _FIRST_PAUSE
        uncertain = False
        while True:
            lost, silent = False, False
            try:
                response = await self._send(path, body, headers, extra_timeout)
            except (NotSent, Lost) as error:
                lost, silent = isinstance(error, Lost), isinstance(error, Silent)
                problem, wait = str(error), pause
            else:
                mark = response.headers.get(MARK.lower(), "")
                self._note_server(mark.partition(".")[0])
                if response.status < 300 and mark:  # without a mark it is not a Longshore server
                    return Answer(response.body, mark, NOT_DURABLE.lower() not in response.headers)
                if not uncertain and _name(_problem(response.body)) == ANSWER_LOST and headers.pop(SENT_TO, ""):
                    continue  # it reached another server, or a restarted one: it was not carried out
                problem, wait = _refusal(self._server, response, pause)
                lost = response.status in (502, 504)
            if lost and not repeatable:
                uncertain = True
                headers.setdefault(SENT_TO, _UNKNOWN)
            now = monotonic()
            deadline = now + self._server.wait_seconds if deadline is None else deadline
            if uncertain and now + wait - began > _AGE:
                raise AnswerLost(f"no answer came from {self._server.address}: {problem}")
            if now + wait > deadline or self._closed:
                unknown = "; whether the request was carried out is unknown" if uncertain else ""
                raise BackendUnavailable(
                    f"nothing answers at {self._server.address}; {_HOW_TO_REACH} ({problem}){unknown}"
                    if silent
                    else f"the server at {self._server.address} cannot be used now: {problem}{unknown}"
                )
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _meant_for(self) -> dict[str, str]:
        """Name the server that answered last; none if several share the address, because others would refuse."""
        if not self._known or monotonic() - self._another_answered < _ALONE_AFTER:
            return {}
        return {SENT_TO: self._known}

    def _note_server(self, server: str) -> None:
        if not server or server == self._known:
            return
        if self._known:
            self._another_answered = monotonic()
        self._known = server

    async def _send(self, path: str, body: bytes, headers: dict[str, str], extra_timeout: float) -> Response:
        if self._connections is None:
            self._connections = _connections(self._server)
        seconds = self._server.answer_seconds
        connect_within = min(max(self._server.wait_seconds, _FIRST_PAUSE), seconds)
        return await self._connections.post(
            path, headers, body, connect_within=connect_within, answer_within=seconds + extra_timeout
        )


def _connections(server: Server) -> Connections:
    headers = {"User-Agent": "longshore", "Accept": "application/json", "Content-Type": "application/json"}
    if server.token is not None:
        headers["Authorization"] = f"Bearer {server.token}"
    return Connections(server.address, headers, _tls(server), server.connections)


def _tls(server: Server) -> ssl.SSLContext | None:
    if not server.address.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=server.ca_file)
    except OSError as error:
        raise InvalidArgument("ca_file", f"{server.ca_file} cannot be used: {error}") from None


async def _ended(connections: Connections | None) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if connections is not None:
        connections.close()


def _refusal(server: Server, response: Response, pause: float) -> tuple[str, float]:
    """Raise the error of a final answer; for a temporary one, return its text and the time until the next try."""
    status = response.status
    problem = _problem(response.body)
    name = _name(problem)
    words = str(problem.get("detail") or f"it answered {status}")
    if name == ANSWER_LOST:
        raise AnswerLost(words)
    if status in (429, 502, 504) or (status == 503 and name != "store-unavailable"):
        seconds = response.headers.get("retry-after", "")
        return words, max(pause, float(seconds)) if seconds.isascii() and seconds.isdigit() else pause
    if status == 413:
        raise InvalidArgument("request", f"{words}; send less in one request")
    if name == "unauthenticated" and server.token is None:
        raise Unauthenticated('the server needs a token; pass connect(url, token="lsk_…"), or set LONGSHORE_TOKEN')
    if name in KNOWN:
        raise error_in(problem)
    if status < 300 or status in (301, 302, 307, 308, 404, 405) or not name:
        raise BackendUnavailable(
            f"{server.address} answered {status}, which is not a Longshore answer; check that it is the address of a "
            "Longshore server of a compatible version"
        )
    raise BackendUnavailable(f"the server failed: {words} (request {problem.get('request_id', 'unknown')})")


@contextmanager
def understood(address: str) -> Iterator[None]:
    """Decode an answer inside the block: one that is not from a Longshore server raises BackendUnavailable."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BackendUnavailable(
            f"{address} gave an answer that is not from Longshore ({error!r}); check that it is the address of a "
            "Longshore server of a compatible version"
        ) from None


def _problem(body: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _name(problem: dict[str, Any]) -> str:
    return str(problem.get("type", "")).removeprefix(PREFIX)
