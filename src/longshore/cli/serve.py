"""`longshore serve`: the HTTP API on a store, with a scheduler beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longshore.cli.authentication import NO_TOKEN_YET, AllowedHosts, Auth, SessionKey, asks_for_tokens, session_key
from longshore.cli.gathering import gathered
from longshore.cli.output import flush, say, say_json
from longshore.cli.store import Store, a_store, without_password
from longshore.core.errors import LongshoreError

if TYPE_CHECKING:
    from longshore.backends.contract import Backend
    from longshore.cli.together import Together
    from longshore.runtime.signals import Stoppable

PORT = 8470

Host = Annotated[str, typer.Option(envvar="LONGSHORE_HOST", help="The address to serve on; others need tokens.")]
Port = Annotated[int, typer.Option(envvar="LONGSHORE_PORT", min=0, max=65535, help="0 is any free port.")]
WithScheduler = Annotated[
    bool, typer.Option("--scheduler/--no-scheduler", help="Fire schedules, sweep and clean up here.")
]
LogForm = Annotated[Literal["text", "json"], typer.Option("--log-format", help="How log lines are written.")]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log every request.")]
Tracing = Annotated[
    bool, typer.Option("--tracing", help="Have jobs carry OpenTelemetry traces; needs the extra `otel`.")
]
Certificate = Annotated[str | None, typer.Option("--tls-certificate", help="A file with the certificate chain.")]
PrivateKey = Annotated[str | None, typer.Option("--tls-key", help="A file with its private key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the address as JSON.")]

ON_ASKED = "asked to stop: requests under way may end; ask again to drop them"


@gathered(store=a_store)
def serve_api(
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    scheduler: WithScheduler = True,
    log_format: LogForm = "text",
    auth: Auth = None,
    allowed_host: AllowedHosts = None,
    session_key_file: SessionKey = None,
    access_log: AccessLog = False,
    tracing: Tracing = False,
    tls_certificate: Certificate = None,
    tls_key: PrivateKey = None,
    as_json: AsJson = False,
    store: Store,
) -> None:
    """Serves the HTTP API, the status page and the figures of a store."""
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve

    store.refuse_unusable_file()
    logs.set_up(log_format)

    def make() -> Stoppable:
        backend = store.backend(create=True)
        parts = [Scheduler(backend)] if scheduler else []
        return serving(
            backend,
            *parts,
            host=host,
            port=port,
            auth=auth,
            allowed_hosts=allowed_host or (),
            key=session_key(session_key_file),
            store=without_password(store.url),
            access_log=access_log,
            tracing=tracing,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            announce=lambda address, _: announce(address, store.url, as_json),
        )

    raise typer.Exit(serve(make, on_asked=ON_ASKED))


def announce(address: str, url: str, as_json: bool) -> None:
    """One line that a person reads, or a program."""
    shown = without_password(url)
    if as_json:
        say_json({"address": address, "url": shown})
    else:
        say(f"Longshore serves {shown} at {address} (status page: {address}/)")
    flush()


def serving(
    backend: Backend,
    *others: Stoppable,
    host: str,
    port: int,
    auth: str | None,
    allowed_hosts: Sequence[str],
    key: bytes | None,
    store: str,
    access_log: bool,
    tracing: bool,
    announce: Callable[[str, bool], None],
    tls_certificate: str | None = None,
    tls_key: str | None = None,
) -> Together:
    """The API on this store, together with others.

    `announce` is called when requests are taken, with the address and with whether tokens are asked for.
    """
    import asyncio

    from longshore.cli.together import Together
    from longshore.runtime.signals import settle_in
    from longshore.server.app import create_app  # an extra, that other commands do without
    from longshore.server.options import ServerOptions
    from longshore.server.serving import OBJECTS_A_ROUND, ApiServer, is_loopback
    from longshore.server.token_gate import TokenGate

    if tracing:
        import longshore.app.tracing  # noqa: F401 - to tell now, and not to the first client, that it is missing
    asks = asks_for_tokens(host, auth, loopback=is_loopback(host))
    options = ServerOptions(access_log=access_log, tracing=tracing, allowed_hosts=tuple(allowed_hosts))
    app = create_app(backend, options=options, gate=TokenGate(backend, session_key=key) if asks else None)
    telling: list[asyncio.Task[None]] = []

    def ready(address: str) -> None:
        settle_in(OBJECTS_A_ROUND)
        announce(address, asks)
        if asks:
            telling.append(asyncio.get_running_loop().create_task(_tell_if_nobody_has_a_token(backend, store)))

    server = ApiServer(app, host=host, port=port, certificate=tls_certificate, private_key=tls_key, when_ready=ready)
    return Together(server, *others, after=backend.close)


async def _tell_if_nobody_has_a_token(backend: Backend, store: str) -> None:
    import logging

    from longshore.backends.tokens import KeepsTokens

    log = logging.getLogger("longshore.server")
    try:
        if isinstance(backend, KeepsTokens) and not await backend.list_tokens():
            log.warning(NO_TOKEN_YET.format(url=store))
    except LongshoreError as error:
        log.debug("whether anybody has a token could not be found out: %s", error)
