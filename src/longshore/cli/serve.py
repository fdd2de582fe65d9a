"""`serve` and `up`: the HTTP API, with a scheduler and workers beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli.open_store import HERE, Schema, Store, a_store, warn_of_password
from longshore.cli.options import gathered
from longshore.cli.output import LogForm, flush, say, say_json
from longshore.cli.parsing import file_bytes
from longshore.cli.workers import (
    Concurrency,
    HarborName,
    Processes,
    builtin_at,
    capacity,
    harbor_named,
    refuse_url_beside_harbor,
    store_shown,
)
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.validation import shown_address

if TYPE_CHECKING:
    from longshore.app.harbor import Harbor
    from longshore.backends.base import Backend
    from longshore.cli.process_group import ProcessGroup
    from longshore.runtime.signals import Stoppable

Auth = Annotated[
    str | None,
    typer.Option(
        "--auth",
        envvar="LONGSHORE_AUTH",
        metavar="on|off",
        help="Ask for tokens. Left out: not on a loopback address, always on any other.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="A name this server is called by, like jobs.example.org; may be repeated."),
]

TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        envvar="LONGSHORE_TRUSTED_PROXIES",
        metavar="ADDRESS",
        help="A proxy whose X-Forwarded-For and X-Forwarded-Proto are trusted: an address, or a network like "
        "10.0.0.0/24; may be repeated. In the variable, spaces separate several. None by default.",
    ),
]
ConnectionsPerAddress = Annotated[
    int,
    typer.Option(
        "--connections-per-address",
        envvar="LONGSHORE_CONNECTIONS_PER_ADDRESS",
        min=1,
        help="Maximum open connections per address; trusted proxies are not limited.",
    ),
]

SessionKey = Annotated[
    Path | None,
    typer.Option(
        "--session-key-file",
        envvar="LONGSHORE_SESSION_KEY_FILE",
        help="A file with 32 or more random bytes that several servers share, so that a browser signs in to all.",
    ),
]

_SHORTEST_KEY = 32
_WORDS = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


def switch(field: str, said: str) -> bool:
    """On or off, in one of the usual words; anything else is refused rather than guessed."""
    found = _WORDS.get(said.strip().lower())
    if found is None:
        raise InvalidArgument(field, f"must be one of {', '.join(_WORDS)}; got {said!r}")
    return found


def asks_for_tokens(host: str, said: str | None, *, loopback: bool) -> bool:
    """As it was said; and if nothing was, on wherever other machines reach. There it cannot be turned off."""
    wanted = None if said is None else switch("auth", said)
    if wanted is False and not loopback:
        raise InvalidArgument(
            "host",
            f"{host} is reached from other machines, and LONGSHORE_AUTH or --auth turns tokens off; "
            "serve on 127.0.0.1, or leave tokens on",
        )
    return not loopback if wanted is None else wanted


def session_key(path: Path | None) -> bytes | None:
    """The bytes in the file."""
    if path is None:
        return None
    key = file_bytes("session_key_file", str(path)).strip()
    if len(key) < _SHORTEST_KEY:
        raise InvalidArgument(
            "session_key_file", f"{path} has {len(key)} bytes; write {_SHORTEST_KEY} or more that are random into it"
        )
    return key


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


@dataclass(frozen=True)
class Serving:
    """The options of the commands that serve the API."""

    host: Host = "127.0.0.1"
    port: Port = PORT
    auth: Auth = None
    allowed_host: AllowedHosts = None
    trusted_proxy: TrustedProxies = None
    connections_per_address: ConnectionsPerAddress = 250
    session_key_file: SessionKey = None
    access_log: AccessLog = False
    tracing: Tracing = False
    tls_certificate: Certificate = None
    tls_key: PrivateKey = None

    def __post_init__(self) -> None:
        session_key(self.session_key_file)  # refuses a file that cannot be used, before anything is started

    def together(self, backend: Backend, *others: Stoppable, store_address: str, announce: Announce) -> ProcessGroup:
        """The API on this backend, together with others; `store_address` is its own, if it can be shown."""
        import asyncio

        from longshore.cli.process_group import ProcessGroup
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
            allowed_hosts=tuple(self.allowed_host or ()),
            trusted_proxies=tuple(self.trusted_proxy or ()),
            max_connections_per_address=self.connections_per_address,
        )
        gate = TokenGate(backend, session_key=session_key(self.session_key_file)) if asks else None
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
        return ProcessGroup(server, *others, after=backend.close)


def from_here(address: str) -> str:
    """The address as a client on this machine uses it; a wildcard address becomes the loopback one."""
    return address.replace("://0.0.0.0:", "://127.0.0.1:", 1).replace("://[::]:", "://[::1]:", 1)


def everywhere(host: str) -> str:
    """What is said beside the address of a server that all of the machine's addresses lead to."""
    return " (and every address of this machine)" if host in ("0.0.0.0", "::") else ""


async def _tell_if_nobody_has_a_token(backend: Backend, address: str) -> None:
    import logging

    from longshore.backends.token_store import SupportsTokens

    log = logging.getLogger("longshore.server")
    try:
        if isinstance(backend, SupportsTokens) and not await backend.list_tokens():
            log.warning(
                "this store has no token yet, so the API refuses every request; create one with: "
                "longshore token create --url %s --scope admin you",
                address or "<the address of your harbor's store>",
            )
    except LongshoreError as error:
        log.debug("whether anybody has a token could not be found out: %s", error)


WithScheduler = Annotated[
    bool, typer.Option("--scheduler/--no-scheduler", help="Fire schedules, sweep and clean up here.")
]


@gathered(api=Serving, store=a_store)
def serve_api(
    ctx: typer.Context,
    *,
    scheduler: WithScheduler = True,
    log_format: LogForm = "text",
    as_json: AsJson = False,
    api: Serving,
    store: Store,
) -> None:
    """Serves the HTTP API, the status page and the figures of a store."""
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve

    warn_of_password(ctx, store.url)
    store.refuse_unusable_file()
    logs.set_up_logging(log_format)
    shown = shown_address(store.url)

    def announce(address: str, _: bool) -> None:
        if as_json:
            say_json({"address": address, "url": shown})
        else:
            say(f"Longshore serves {shown} at {address}{everywhere(api.host)} (status page: {address}/)")
        flush()

    def make() -> Stoppable:
        backend = store.backend(create=True)
        parts = [Scheduler(backend)] if scheduler else []
        return api.together(backend, *parts, store_address=shown, announce=announce)

    raise typer.Exit(serve(make, on_asked=ON_ASKED))


Url = Annotated[
    str | None,
    typer.Option("--url", envvar="LONGSHORE_URL", help=f"Where the jobs are; {HERE} if nothing is said."),
]


@gathered(api=Serving)
def up(
    ctx: typer.Context,
    *,
    url: Url = None,
    schema: Schema = None,
    harbor: HarborName = None,
    processes: Processes = 1,
    concurrency: Concurrency = 10,
    log_format: LogForm = "text",
    as_json: AsJson = False,
    api: Serving,
) -> None:
    """Starts all of Longshore on this machine, and stops it in order with Ctrl-C."""
    refuse_url_beside_harbor(ctx, harbor)
    warn_of_password(ctx, url)
    store = Store(HERE if url is None else url, schema)
    if harbor is None and store.url.startswith("memory:"):
        raise InvalidArgument("url", f"memory:// is seen by one process only, and this starts several; use {HERE}")
    found = None if harbor is None else harbor_named(harbor)
    if found is not None and not found.backend.capabilities.shared:
        raise InvalidArgument(
            "harbor", f"keeps its jobs where one process sees them, and this starts several; use {HERE}"
        )
    if found is None:
        store.refuse_unusable_file()
    arguments = {
        "url": store.url,
        "schema": schema,
        "harbor": harbor,
        "concurrency": concurrency,
        "log_format": log_format,
        "tracing": api.tracing,
    }
    from longshore.cli.process_group import Workers
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve
    from longshore.runtime.supervisor import Supervisor

    logs.set_up_logging(log_format)
    own = store.url if found is None else found.url
    shown = store_shown(ctx, harbor, own, store.url)
    first = _FIRST_JOB if found is None else _first_job_for(found)

    def make() -> Stoppable:
        backend = (builtin_at(store) if found is None else found).backend
        workers = Supervisor(
            "longshore.cli.workers:make_worker", processes=processes, arguments=arguments, store=backend
        )
        return api.together(
            backend,
            Scheduler(backend),
            Workers(workers),
            store_address="" if own is None else shown,
            announce=lambda address, asks: _announce_platform(
                address, everywhere(api.host), shown, processes, concurrency, first=first, asks=asks, as_json=as_json
            ),
        )

    raise typer.Exit(serve(make, on_asked=ON_ASKED))


def _announce_platform(
    address: str, also: str, store: str, processes: int, concurrency: int, *, first: str, asks: bool, as_json: bool
) -> None:
    token = ' -H "authorization: Bearer $LONGSHORE_TOKEN"' if asks else ""
    curl = f"curl -s {address}/v1/jobs{token} -H 'content-type: application/json' -d {shlex.quote(first)}"
    if as_json:
        told: dict[str, Any] = {"address": address, "url": store, "processes": processes, "concurrency": concurrency}
        say_json(told)
    else:
        say(f"Longshore is up at {address}/{also} on {store}, with {capacity(processes, concurrency)}.")
        if first:
            builtin = " (the types echo, sleep and fail are there)" if first == _FIRST_JOB else ""
            say(f"Send it a first job{builtin}:")
            say()
            say(f"  {curl}")
            say()
        say("Ctrl-C stops it in order.")
    flush()


def _first_job_for(harbor: Harbor) -> str:
    """A job for the first of its tasks, with something to fill in for whatever it cannot do without."""
    import inspect

    for name, task in harbor.tasks.items():
        asked = inspect.signature(task.function).parameters.values()
        must = [
            one.name
            for one in asked
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        return json.dumps({"type": name, "data": dict.fromkeys(must, "...")})
    return ""


_FIRST_JOB = '{"type": "echo", "data": {"say": "hello"}}'
