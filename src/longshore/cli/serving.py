"""How the API is served, as `serve` and `up` are told alike; and the server that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.authentication import (
    AllowedHosts,
    Auth,
    ConnectionsPerAddress,
    SessionKey,
    TrustedProxies,
    asks_for_tokens,
    no_token_yet,
    session_key,
)
from longshore.core.errors import LongshoreError

if TYPE_CHECKING:
    from longshore.backends.base import Backend
    from longshore.cli.together import Together
    from longshore.runtime.signals import Stoppable

PORT = 8470

Host = Annotated[
    str, typer.Option(envvar="LONGSHORE_HOST", help="The address to serve on; any but a loopback one asks for tokens.")
]
Port = Annotated[int, typer.Option(envvar="LONGSHORE_PORT", min=0, max=65535, help="0 is any free port.")]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log every request.")]
Tracing = Annotated[
    bool, typer.Option("--tracing", help="Have jobs carry OpenTelemetry traces; needs the extra `otel`.")
]
Certificate = Annotated[str | None, typer.Option("--tls-certificate", help="A file with the certificate chain.")]
PrivateKey = Annotated[str | None, typer.Option("--tls-key", help="A file with its private key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the address as JSON.")]

ON_ASKED = "asked to stop: requests under way may end; ask again to drop them"

Announce = Callable[[str, bool], None]
"""Called when requests are taken, with the address and with whether tokens are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a command was told of its server."""

    host: str
    port: int
    auth: str | None
    allowed_hosts: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    connections_per_address: int
    session_key: bytes | None
    access_log: bool
    tracing: bool
    tls_certificate: str | None
    tls_key: str | None

    def together(self, backend: Backend, *others: Stoppable, store_address: str, announce: Announce) -> Together:
        """The API on this backend, together with others; `store_address` is its own, if it can be shown."""
        import asyncio

        from longshore.cli.together import Together
        from longshore.runtime.signals import settle_in
        from longshore.server.app import create_app  # an extra, that other commands do without
        from longshore.server.auth import TokenGate
        from longshore.server.options import ServerOptions
        from longshore.server.uvicorn_server import OBJECTS_A_ROUND, ApiServer, is_loopback, return_large_blocks

        if self.tracing:
            import longshore.app.tracing  # noqa: F401 - to tell now, and not to the first client, that it is missing
        asks = asks_for_tokens(self.host, self.auth, loopback=is_loopback(self.host))
        options = ServerOptions(
            access_log=self.access_log,
            tracing=self.tracing,
            allowed_hosts=self.allowed_hosts,
            trusted_proxies=self.trusted_proxies,
            max_connections_per_address=self.connections_per_address,
        )
        gate = TokenGate(backend, session_key=self.session_key) if asks else None
        app = create_app(backend, options=options, gate=gate)
        telling: list[asyncio.Task[None]] = []

        def ready(address: str) -> None:
            settle_in(OBJECTS_A_ROUND)
            return_large_blocks(app)
            announce(from_here(address), asks)
            if asks:
                telling.append(
                    asyncio.get_running_loop().create_task(_tell_if_nobody_has_a_token(backend, store_address))
                )

        server = ApiServer(
            app,
            host=self.host,
            port=self.port,
            certificate=self.tls_certificate,
            private_key=self.tls_key,
            when_ready=ready,
        )
        return Together(server, *others, after=backend.close)


def from_here(address: str) -> str:
    """The address as somebody on this machine can use it: one that stands for all of them is none that answers."""
    return address.replace("://0.0.0.0:", "://127.0.0.1:", 1).replace("://[::]:", "://[::1]:", 1)


def everywhere(host: str) -> str:
    """What is said beside the address of a server that all of the machine's addresses lead to."""
    return " (and every address of this machine)" if host in ("0.0.0.0", "::") else ""


def how_to_serve(
    host: Host = "127.0.0.1",
    port: Port = PORT,
    auth: Auth = None,
    allowed_host: AllowedHosts = None,
    trusted_proxy: TrustedProxies = None,
    connections_per_address: ConnectionsPerAddress = 250,
    session_key_file: SessionKey = None,
    access_log: AccessLog = False,
    tracing: Tracing = False,
    tls_certificate: Certificate = None,
    tls_key: PrivateKey = None,
) -> Serving:
    """What every command that serves is told."""
    return Serving(
        host=host,
        port=port,
        auth=auth,
        allowed_hosts=tuple(allowed_host or ()),
        trusted_proxies=tuple(trusted_proxy or ()),
        connections_per_address=connections_per_address,
        session_key=session_key(session_key_file),
        access_log=access_log,
        tracing=tracing,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
    )


async def _tell_if_nobody_has_a_token(backend: Backend, address: str) -> None:
    import logging

    from longshore.backends.token_store import KeepsTokens

    log = logging.getLogger("longshore.server")
    try:
        if isinstance(backend, KeepsTokens) and not await backend.list_tokens():
            log.warning("%s", no_token_yet(address))
    except LongshoreError as error:
        log.debug("whether anybody has a token could not be found out: %s", error)
