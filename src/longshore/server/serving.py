"""The application on an address: who may reach it, and an end that is prompt."""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, Duration, check_duration
from longshore.server.access import Gate
from longshore.server.connection import REPEATED, BoundedProtocol, Shared
from longshore.server.platform import Platform
from longshore.server.repeated_lines import without_repetition

_KEEP_ALIVE = 30
_BACKLOG = 512
_LAST_WORDS = 1.0
"""Seconds in which a request that was cut off when the server stopped must have been told."""

OBJECTS_A_ROUND = 50_000
"""See `settle_in`: a process that only serves leaves no cycles behind, and a batch of 1,000 jobs is many objects."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; a name other than localhost might lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, gate: Gate) -> None:
    """Refuses an address that others reach, as long as nobody is asked who they are."""
    if not is_loopback(host) and not gate.authenticates:
        raise InvalidArgument(
            "host",
            f"{host} is reached from other machines, and this server asks nobody who they are; "
            "serve on 127.0.0.1, or have it ask for tokens",
        )


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 256 * 1024


def return_large_blocks(app: FastAPI) -> None:
    """Makes the C library return large free blocks to the system at once; for a process that only serves.

    By default glibc keeps them: after a flood of large bodies the process held 160 MB more, now 50 MB.
    """
    try:
        mallopt, trim = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library
        return
    mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)
    mallopt(_TRIM_THRESHOLD, 4 * _LARGE_BLOCK)
    app.state.body_memory.when_idle = lambda: asyncio.get_running_loop().run_in_executor(None, trim, 0)


class _Uvicorn(uvicorn.Server):
    """Without signals of its own: whoever runs the process hears them."""

    def __init__(self, config: uvicorn.Config, shared: Shared, when_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.server_state: Shared = shared
        self._when_ready = when_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells when requests are taken."""
        await super().startup(sockets)
        self._when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes nobody any more, those on their way included; and those whose time is over are told so."""
        self.server_state.stopping = True
        await super().shutdown(sockets)
        if self.server_state.tasks and not self.force_exit:
            await asyncio.wait(self.server_state.tasks, timeout=_LAST_WORDS)


class ApiServer:
    """Serves an application made by `create_app`; runs and closes like a Worker."""

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
        """Binds its address at once, so that a port in use is told before anything else begins; 0 is any free one.

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
        self._over = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it is, like http://127.0.0.1:8470."""
        host, port = self._socket.getsockname()[:2]
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def ready(self) -> None:
        """Returns when requests are taken."""
        await self._ready.wait()

    async def run(self) -> None:
        """Until it is closed."""
        try:
            with without_repetition("longshore.server", REPEATED), without_repetition("uvicorn.error"):
                await self._server.serve(sockets=[self._socket])
        finally:
            self._platform.begin_to_close()  # whatever is cancelled from now on is cancelled because nobody serves
            self._socket.close()
            self._over.set()

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Takes no more requests, ends all streams, and lets what is under way end within the grace."""
        self._platform.begin_to_close()
        if grace is not None:
            seconds = check_duration("grace", grace, positive=False) / SECOND
            allowed = self._server.config.timeout_graceful_shutdown or 1
            self._server.config.timeout_graceful_shutdown = max(1, min(allowed, round(seconds)))
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or force
        if self._ready.is_set():
            await self._over.wait()

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
        raise InvalidArgument(
            "port", f"{host}:{port} cannot be served on: {error}; choose another with --port"
        ) from None
    return bound


def _check_tls(certificate: str | None, private_key: str | None) -> None:
    """Refuses what could not be served with, while there is still somebody to tell."""
    if certificate is None:
        if private_key is not None:
            raise InvalidArgument("private_key", "is of no use without a certificate")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key)
    except ssl.SSLError as error:
        if private_key is None:
            found = f"{certificate} has no private key in it; name the file that has one, too: --tls-key ({error})"
        else:
            found = f"{private_key} is not the key of the certificate in {certificate} ({error})"
        raise InvalidArgument("private_key", found) from None
    except OSError as error:
        named = certificate if private_key is None else f"{certificate} with the key {private_key}"
        raise InvalidArgument("certificate", f"{named} cannot be used: {error}") from None
