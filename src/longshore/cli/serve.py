"""`serve` and `up`: the HTTP API with a scheduler, and with workers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.open_store import DEFAULT_URL, Schema, Store, store_options, warn_of_password
from longshore.cli.options import option_groups
from longshore.cli.output import LogForm, flush, print_json, print_line
from longshore.cli.parsing import file_bytes
from longshore.cli.workers import (
    Concurrency,
    HarborName,
    Processes,
    builtin_at,
    capacity,
    displayed_store,
    harbor_named,
    reject_url_with_harbor,
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
        help="Require tokens. Default: off on a loopback address, on elsewhere.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="A host name clients may use, such as jobs.example.org; repeatable."),
]

TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        envvar="LONGSHORE_TRUSTED_PROXIES",
        metavar="ADDRESS",
        help="Trust X-Forwarded-For and X-Forwarded-Proto from this address or network, such as 10.0.0.0/24; "
        "repeatable. The environment variable takes several, separated by spaces. Default: none.",
    ),
]
ConnectionsPerAddress = Annotated[
    int,
    typer.Option(
        "--connections-per-address",
        envvar="LONGSHORE_CONNECTIONS_PER_ADDRESS",
        min=1,
        help="The most open connections per client address; trusted proxies are exempt.",
    ),
]

SessionKey = Annotated[
    Path | None,
    typer.Option(
        "--session-key-file",
        envvar="LONGSHORE_SESSION_KEY_FILE",
        help="A file with at least 32 random bytes. Servers that share it accept each other's browser sessions.",
    ),
]

_MIN_KEY_BYTES = 32
_SWITCH_VALUES = dict.fromkeys(("on", "true", "yes", "1"), True) | dict.fromkeys(("off", "false", "no", "0"), False)


def parse_switch(field: str, value: str) -> bool:
    """Parse a switch such as on, off, true or false; refuses any other value."""
    found = _SWITCH_VALUES.get(value.strip().lower())
    if found is None:
        raise InvalidArgument(field, f"must be one of {', '.join(_SWITCH_VALUES)}; got {value!r}")
    return found


def auth_enabled(host: str, value: str | None, *, loopback: bool) -> bool:
    """Whether to require tokens. The default is on except on loopback; elsewhere it cannot be turned off."""
    wanted = None if value is None else parse_switch("auth", value)
    if wanted is False and not loopback:
        raise InvalidArgument(
            "host",
            f"{host} is reachable from other machines, so it is not served without tokens; "
            "use --host 127.0.0.1, or remove --auth off (LONGSHORE_AUTH)",
        )
    return not loopback if wanted is None else wanted


def session_key(path: Path | None) -> bytes | None:
    """Read the key; refuses a file with too few bytes."""
    if path is None:
        return None
    key = file_bytes("session_key_file", str(path)).strip()
    if len(key) < _MIN_KEY_BYTES:
        raise InvalidArgument(
            "session_key_file", f"{path} has {len(key)} bytes; write at least {_MIN_KEY_BYTES} random bytes into it"
        )
    return key


PORT = 8470

Host = Annotated[
    str,
    typer.Option(envvar="LONGSHORE_HOST", help="The address to listen on; all but loopback addresses require tokens."),
]
Port = Annotated[
    int, typer.Option(envvar="LONGSHORE_PORT", min=0, max=65535, help="The port to listen on; 0 for any free port.")
]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log every request.")]
Tracing = Annotated[bool, typer.Option("--tracing", help="Add OpenTelemetry traces to jobs; needs the extra `otel`.")]
Certificate = Annotated[str | None, typer.Option("--tls-certificate", help="The file with the certificate chain.")]
PrivateKey = Annotated[str | None, typer.Option("--tls-key", help="The file with the private key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the address as JSON.")]

ON_STOP = "stopping: open requests may finish; press Ctrl-C again to drop them"

Announce = Callable[[str, bool], None]
"""Called when the server accepts requests, with its address and whether it requires tokens."""


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
        session_key(self.session_key_file)  # refuse an unusable file before anything starts

    def process_group(
        self, backend: Backend, *others: Stoppable, store_address: str, announce: Announce
    ) -> ProcessGroup:
        """The API server and other components as one group; `store_address` appears in a hint about tokens."""
        import asyncio

        from longshore.cli.process_group import ProcessGroup
        from longshore.runtime.signals import tune_garbage_collector
        from longshore.server.app import create_app  # an extra that other commands do not need
        from longshore.server.auth import TokenGate
        from longshore.server.options import ServerOptions
        from longshore.server.uvicorn_server import GC_THRESHOLD, ApiServer, is_loopback, return_large_blocks

        if self.tracing:
            import longshore.app.tracing  # noqa: F401 - fails at start, not at the first request, if the extra is missing
        auth = auth_enabled(self.host, self.auth, loopback=is_loopback(self.host))
        options = ServerOptions(
            access_log=self.access_log,
            tracing=self.tracing,
            allowed_hosts=tuple(self.allowed_host or ()),
            trusted_proxies=tuple(self.trusted_proxy or ()),
            max_connections_per_address=self.connections_per_address,
        )
        gate = TokenGate(backend, session_key=session_key(self.session_key_file)) if auth else None
        app = create_app(backend, options=options, gate=gate)
        warnings: list[asyncio.Task[None]] = []

        def ready(address: str) -> None:
            tune_garbage_collector(GC_THRESHOLD)
            return_large_blocks(app)
            announce(local_address(address), auth)
            if auth:
                warnings.append(asyncio.get_running_loop().create_task(_warn_without_tokens(backend, store_address)))

        tls = {"certificate": self.tls_certificate, "private_key": self.tls_key}
        server = ApiServer(app, host=self.host, port=self.port, **tls, when_ready=ready)
        return ProcessGroup(server, *others, after=backend.close)


def local_address(address: str) -> str:
    """The address for a client on this machine; a wildcard becomes loopback."""
    return address.replace("://0.0.0.0:", "://127.0.0.1:", 1).replace("://[::]:", "://[::1]:", 1)


def wildcard_note(host: str) -> str:
    """The note after the address of a server that listens on all addresses."""
    return " (and every address of this machine)" if host in ("0.0.0.0", "::") else ""


async def _warn_without_tokens(backend: Backend, address: str) -> None:
    import logging

    from longshore.backends.token_store import SupportsTokens

    log = logging.getLogger("longshore.server")
    try:
        if isinstance(backend, SupportsTokens) and not await backend.list_tokens():
            log.warning(
                "this store has no tokens, so the API rejects every request; create one with: "
                "longshore token create --url %s --scope admin you",
                address or "<the address of your harbor's store>",
            )
    except LongshoreError as error:
        log.debug("cannot list tokens: %s", error)


WithScheduler = Annotated[bool, typer.Option("--scheduler/--no-scheduler", help="Run a scheduler in this process.")]


@option_groups(api=Serving, store=store_options)
def serve_api(
    ctx: typer.Context,
    *,
    scheduler: WithScheduler = True,
    log_format: LogForm = "text",
    as_json: AsJson = False,
    api: Serving,
    store: Store,
) -> None:
    """Serve the HTTP API, the status page and the metrics of a store."""
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve

    warn_of_password(ctx, store.url)
    store.refuse_unusable_file()
    logs.set_up_logging(log_format)
    shown = shown_address(store.url)

    def announce(address: str, _: bool) -> None:
        if as_json:
            print_json({"address": address, "url": shown})
        else:
            print_line(f"Longshore serves {shown} at {address}{wildcard_note(api.host)} (status page: {address}/)")
        flush()

    def make() -> Stoppable:
        backend = store.backend(create=True)
        parts = [Scheduler(backend)] if scheduler else []
        return api.process_group(backend, *parts, store_address=shown, announce=announce)

    raise typer.Exit(serve(make, on_stop=ON_STOP))


Url = Annotated[str | None, typer.Option("--url", envvar="LONGSHORE_URL", help=f"The store. Default: {DEFAULT_URL}.")]


@option_groups(api=Serving)
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
    """Start the API, the scheduler and workers on this machine, until Ctrl-C."""
    reject_url_with_harbor(ctx, harbor)
    warn_of_password(ctx, url)
    store = Store(DEFAULT_URL if url is None else url, schema)
    if harbor is None and store.url.startswith("memory:"):
        raise InvalidArgument(
            "url", f"memory:// is visible to one process only, and `up` starts several; use {DEFAULT_URL}"
        )
    found = None if harbor is None else harbor_named(harbor)
    if found is not None and not found.backend.capabilities.shared:
        raise InvalidArgument(
            "harbor", f"has a store that one process only can use, and `up` starts several; use {DEFAULT_URL}"
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
    shown = displayed_store(ctx, harbor, own, store.url)
    first = _ECHO_JOB if found is None else _example_job(found)

    def make() -> Stoppable:
        backend = (builtin_at(store) if found is None else found).backend
        workers = Supervisor(
            "longshore.cli.workers:make_worker", processes=processes, arguments=arguments, store=backend
        )
        return api.process_group(
            backend,
            Scheduler(backend),
            Workers(workers),
            store_address="" if own is None else shown,
            announce=lambda address, auth: _announce_up(
                address, wildcard_note(api.host), shown, processes, concurrency, first=first, auth=auth, as_json=as_json
            ),
        )

    raise typer.Exit(serve(make, on_stop=ON_STOP))


def _announce_up(
    address: str, also: str, store: str, processes: int, concurrency: int, *, first: str, auth: bool, as_json: bool
) -> None:
    token = ' -H "authorization: Bearer $LONGSHORE_TOKEN"' if auth else ""
    curl = f"curl -s {address}/v1/jobs{token} -H 'content-type: application/json' -d {shlex.quote(first)}"
    if as_json:
        print_json({"address": address, "url": store, "processes": processes, "concurrency": concurrency})
    else:
        print_line(f"Longshore is up at {address}/{also} on {store}, with {capacity(processes, concurrency)}.")
        if first:
            builtin = " (the built-in types are echo, sleep and fail)" if first == _ECHO_JOB else ""
            print_line(f"Enqueue a first job{builtin}:")
            print_line()
            print_line(f"  {curl}")
            print_line()
        print_line("Press Ctrl-C to stop.")
    flush()


def _example_job(harbor: Harbor) -> str:
    """A request body for the harbor's first task, with placeholders for required arguments."""
    import inspect

    for name, task in harbor.tasks.items():
        required = [
            one.name
            for one in inspect.signature(task.function).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        return json.dumps({"type": name, "data": dict.fromkeys(required, "...")})
    return ""


_ECHO_JOB = '{"type": "echo", "data": {"say": "hello"}}'
