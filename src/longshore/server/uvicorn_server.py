"""The uvicorn server: listeners, connection limits and graceful shutdown."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httptools
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, Duration, check_duration
from longshore.safe_logging import logger
from longshore.server import problems
from longshore.server.auth import Gate, network_of
from longshore.server.middleware import BREAK_OFF, CROWDED, HEADERS, IS_WHOLE, OVERLOADED
from longshore.server.options import Network
from longshore.server.platform import Platform
from longshore.server.rate_limit import without_repetition
from longshore.server.routes.health import PROBES

_LONGEST_HEAD = 64 * 1024
_MOST_HEADERS = 100
_HEAD_TIMEOUT = 10.0
"""Seconds in which the head of a request must be complete, so that a slow sender does not hold a connection."""
_WRITE_TIMEOUT = 15.0
"""Seconds between two checks of unsent data; if none was sent meanwhile, the client does not read."""
_LINGER = 2.0
"""Seconds in which a client that is still sending can read the response."""

_log = logger("longshore.server")
_REFUSED = "request refused: %d connections are open"
_ADDRESS_REFUSED = "request refused: too many connections are open from %s"
_CLOSED_AT_ONCE = "connection closed: more than twice the allowed connections are open from %s"
REPEATED = frozenset({_REFUSED, _ADDRESS_REFUSED, _CLOSED_AT_ONCE})
"""Rate-limited messages; a flood would log them once per request."""


class Shared(ServerState):
    """The shared state of all connections of one server."""

    stopping = False

    def __init__(self, most_per_address: int, trusted: Sequence[Network] = ()) -> None:
        super().__init__()
        self.most_per_address = most_per_address
        self._trusted = trusted
        self._from_address: Counter[str] = Counter()

    def opened(self, address: str) -> int:
        """Count a new connection and return the number from its address; 0 for a trusted proxy."""
        if self._is_trusted(address):
            return 0
        place = network_of(address)
        self._from_address[place] += 1
        return self._from_address[place]

    def closed(self, address: str) -> None:
        """Count a closed connection."""
        place = network_of(address)
        self._from_address[place] -= 1
        if self._from_address[place] <= 0:
            del self._from_address[place]

    def is_crowded(self, address: str) -> bool:
        """Whether this address has too many connections."""
        return self._from_address.get(network_of(address), 0) > self.most_per_address

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._trusted)


class _Arrival:
    """Whether a whole request has arrived."""

    whole = False

    def __call__(self) -> bool:
        return self.whole


class _AnswerTransport(asyncio.Transport):
    """The transport of one response; it decides how the connection is closed."""

    def __init__(self, transport: asyncio.Transport, arrival: _Arrival, linger: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._arrival = arrival
        self._linger = linger

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write to the connection."""
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether the connection is closing."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close at once if the request has arrived; otherwise let the client read the response first."""
        if self._arrival.whole:
            self._transport.close()
        else:
            self._linger()


class BoundedProtocol(HttpToolsProtocol):
    """HTTP with limits on the size, the number of headers and the duration of a request's head.

    The same limit applies to chunk extensions and trailers, which are discarded.
    """

    server_state: Shared
    _timer: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _unsent = 0
    _arrival: _Arrival
    _beside_body = 0
    """Bytes since the message began, or since the last part of its body."""
    _trailers = 0
    _in_head = False
    _in_message = False
    _most: int | None = None
    _counted: str | None = None
    """The address under which this connection is counted."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.server_state.stopping:
            transport.close()  # accepted during shutdown: uvicorn would never close it
        self._most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own response is not a problem
        address = self.client[0] if self.client else ""
        if number := self.server_state.opened(address):
            self._counted = address
            if number > 2 * self.server_state.most_per_address:
                _log.warning(_CLOSED_AT_ONCE, address)
                transport.close()
        self._begin_head()
        self._looking = self.loop.call_later(_WRITE_TIMEOUT, self._check_reader)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        if self._counted is not None:
            self.server_state.closed(self._counted)
            self._counted = None
        for timer in (self._lingering, self._looking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self.cycle is not None:
            self.cycle.transport = self.transport  # breaks a reference cycle, so that both are freed immediately

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            return
        self._beside_body += len(data)
        super().data_received(data)
        is_open = self._in_head or self._in_message
        if is_open and self._beside_body > _LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"the request's {'head is' if self._in_head else 'trailers are'} too large")
        if self.cycle is None or self.cycle.response_complete:  # uvicorn has no timeout for an incomplete head
            self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = True
        self._trailers = 0
        self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        self._trailers += 1  # trailers are unchecked, so they must not become headers
        if self._trailers > _MOST_HEADERS:
            raise httptools.HttpParserError("too many trailers")

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._arrival.whole = True
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._end_head()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > _LONGEST_HEAD or len(self.headers) > _MOST_HEADERS:
            raise httptools.HttpParserError("the head is too large")  # uvicorn responds with 400
        is_full = self._most is not None and max(len(self.connections), len(self.tasks)) >= self._most
        is_probe = self.url.partition(b"?")[0] in PROBES
        if is_full and not is_probe:
            _log.warning(_REFUSED, len(self.connections))
            self.scope["state"][OVERLOADED] = True
        elif self._counted is not None and self.server_state.is_crowded(self._counted) and not is_probe:
            _log.warning(_ADDRESS_REFUSED, self._counted)
            self.scope["state"][CROWDED] = True
        self.scope["state"][BREAK_OFF] = self.transport.abort
        super().on_headers_complete()
        self._arrival = self.scope["state"][IS_WHOLE] = _Arrival()
        self.cycle.transport = _AnswerTransport(self.transport, self._arrival, self.linger)

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are not a request with a problem."""
        answer = problems.bad_request(msg)
        lines = [
            b"HTTP/1.1 400 Bad Request",
            *(b": ".join(header) for header in (*answer.raw_headers, *HEADERS)),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        if self.pipeline or (self.cycle is not None and self.cycle.response_started):
            self.transport.close()  # other responses may be in progress and cannot be stopped
        else:
            self.linger()

    def linger(self) -> None:
        """Stop reading and writing, and close after a delay; closing immediately could lose the response."""
        if self._lingering is not None or self.transport.is_closing():
            return
        self._end_head()
        self._lingering = self.loop.call_later(_LINGER, self.transport.close)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()

    def resume_writing(self) -> None:
        self._unsent = 0
        super().resume_writing()

    def _check_reader(self) -> None:
        # otherwise new data could hide that the client reads
        nothing_is_added = self.flow.write_paused or self.transport.is_closing()
        unsent = self.transport.get_write_buffer_size() if nothing_is_added else 0
        if unsent and unsent == self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self._looking = self.loop.call_later(_WRITE_TIMEOUT, self._check_reader)

    def _begin_head(self) -> None:
        if not self._in_head:
            self._in_head = True
            self._beside_body = 0
            self._expect_head()

    def _expect_head(self) -> None:
        if self._timer is None and not self.transport.is_closing() and self._lingering is None:
            self._timer = self.loop.call_later(_HEAD_TIMEOUT, self.transport.close)

    def _end_head(self) -> None:
        self._in_head = False
        self._beside_body = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_KEEP_ALIVE = 30
_BACKLOG = 512
_CANCELLED_RESPONSE_TIMEOUT = 1.0
"""Seconds for responses to requests that the shutdown cancels."""

GC_THRESHOLD = 50_000
"""See `tune_garbage_collector`: a server creates no reference cycles, and a batch of jobs is many objects."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; a name other than localhost may resolve to any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, gate: Gate) -> None:
    """Refuse a public address without authentication."""
    if not is_loopback(host) and not gate.authenticates:
        raise InvalidArgument(
            "host",
            f"{host} is reachable from other machines, so it is not served without tokens; "
            "serve on 127.0.0.1, or require tokens",
        )


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 256 * 1024


def return_large_blocks(app: FastAPI) -> None:
    """Make the C library return large free blocks to the system immediately; for a process that only serves.

    By default glibc keeps them: after a flood of large bodies the process held 160 MB more, with this 50 MB.
    """
    try:
        mallopt, trim = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library
        return
    mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)
    mallopt(_TRIM_THRESHOLD, 4 * _LARGE_BLOCK)
    app.state.body_memory.when_idle = lambda: asyncio.get_running_loop().run_in_executor(None, trim, 0)


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that leaves signals to the process that runs it."""

    def __init__(self, config: uvicorn.Config, shared: Shared, when_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.server_state: Shared = shared
        self._when_ready = when_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report when the server accepts requests."""
        await super().startup(sockets)
        self._when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, including pending ones, and respond to requests that run out of time."""
        self.server_state.stopping = True
        await super().shutdown(sockets)
        if self.server_state.tasks and not self.force_exit:
            await asyncio.wait(self.server_state.tasks, timeout=_CANCELLED_RESPONSE_TIMEOUT)


class ApiServer:
    """Serves an application made by `create_app`; runs and closes like a Worker. See docs/server.md."""

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: str | None = None,
        private_key: str | None = None,
        when_ready: Callable[[str], None] | None = None,
    ) -> None:
        """Bind its address at once, so that a port in use is reported first; 0 is any free port.

        `when_ready` is called with the address as soon as requests are taken.
        """
        check_exposure(host, app.state.gate)
        _check_tls(certificate, private_key)
        app.state.hosts.strict = app.state.hosts.strict or is_loopback(host)
        self._platform: Platform = app.state.platform
        self._socket = _bound(host, port)
        options = self._platform.options
        proxies = options.networks()
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            limit_concurrency=options.max_connections,
            proxy_headers=bool(proxies),  # uvicorn would trust every caller on this machine
            forwarded_allow_ips=[str(network) for network in proxies],
            timeout_graceful_shutdown=max(1, round(options.grace)),
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
        )
        self._scheme = "http" if certificate is None else "https"
        self._server = _Uvicorn(config, Shared(options.max_connections_per_address, proxies), self._is_ready)
        self._when_ready = when_ready
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it is, like http://127.0.0.1:8470."""
        host, port = self._socket.getsockname()[:2]
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def ready(self) -> None:
        """Return when requests are taken."""
        await self._ready.wait()

    async def run(self) -> None:
        """Until it is closed."""
        try:
            with without_repetition("longshore.server", REPEATED), without_repetition("uvicorn.error"):
                await self._server.serve(sockets=[self._socket])
        finally:
            self._platform.begin_to_close()  # later cancellations of requests come from the shutdown
            self._socket.close()
            self._ended.set()

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Accept no more requests, ends all streams, and lets open requests finish within the grace period."""
        self._platform.begin_to_close()
        if grace is not None:
            seconds = check_duration("grace", grace, positive=False) / SECOND
            allowed = self._server.config.timeout_graceful_shutdown or 1
            self._server.config.timeout_graceful_shutdown = max(1, min(allowed, round(seconds)))
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or force
        if self._ready.is_set():
            await self._ended.wait()

    def _is_ready(self) -> None:
        self._ready.set()
        if self._when_ready is not None:
            self._when_ready(self.address)


def _bound(host: str, port: int) -> socket.socket:
    try:
        places: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = places[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
        except BaseException:
            bound.close()
            raise
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        if isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
            raise InvalidArgument("host", f"this machine has no address {host}; choose another with --host") from None
        found = f"cannot listen on {host}:{port}: {error};"
        if number == errno.EADDRINUSE:
            found = f"{host}:{port} is in use by another process; stop it, or"
        raise InvalidArgument("port", f"{found} choose another with --port") from None
    return bound


def _check_tls(certificate: str | None, private_key: str | None) -> None:
    """Check the certificate and its key before the server starts."""
    if certificate is None:
        if private_key is not None:
            raise InvalidArgument("private_key", "--tls-key needs a certificate; name it with --tls-certificate")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key)
    except ssl.SSLError as error:
        if private_key is None:
            found = f"{certificate} contains no private key; name the file with the key with --tls-key ({error})"
        else:
            found = f"{private_key} does not match the certificate in {certificate}; correct --tls-key ({error})"
        raise InvalidArgument("private_key", found) from None
    except OSError as error:
        named = certificate if private_key is None else f"{certificate} with the key {private_key}"
        hint = f"check --tls-certificate{'' if private_key is None else ' and --tls-key'}"
        raise InvalidArgument("certificate", f"cannot use {named}: {error.strerror}; {hint}") from None
