"""`longshore up`: everything one machine needs — the API, a scheduler, workers and a status page — in one go."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from longshore.app.builtin import builtin_harbor
from longshore.app.harbor import Harbor
from longshore.cli.authentication import AllowedHosts, Auth, SessionKey, session_key
from longshore.cli.output import printable
from longshore.cli.serve import (
    ON_ASKED,
    PORT,
    AccessLog,
    AsJson,
    Certificate,
    Host,
    LogForm,
    Port,
    PrivateKey,
    Tracing,
    serving,
    without_password,
)
from longshore.cli.together import Workers
from longshore.core.errors import InvalidArgument
from longshore.runtime import logs
from longshore.runtime.executors.target import Target
from longshore.runtime.scheduler import Scheduler
from longshore.runtime.signals import STOP_GRACE, Stoppable, serve
from longshore.runtime.supervisor import Supervisor
from longshore.runtime.worker import Worker

STORE = "sqlite:///longshore.db"

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="LONGSHORE_URL", help=f"Where the jobs are; {STORE} if nothing is said."),
]
HarborName = Annotated[
    str | None, typer.Option("--harbor", help="Your tasks, like shop.jobs:harbor; else echo, sleep and fail are there.")
]
Processes = Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")]
Concurrency = Annotated[int, typer.Option(min=1, max=10_000, help="Jobs each of them runs at a time.")]


def up(
    url: Url = None,
    harbor: HarborName = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    processes: Processes = 1,
    concurrency: Concurrency = 10,
    log_format: LogForm = "text",
    auth: Auth = None,
    allowed_host: AllowedHosts = None,
    session_key_file: SessionKey = None,
    access_log: AccessLog = False,
    tracing: Tracing = False,
    tls_certificate: Certificate = None,
    tls_key: PrivateKey = None,
    as_json: AsJson = False,
) -> None:
    """Starts all of Longshore on this machine, and stops it in order with Ctrl-C."""
    if url is not None and harbor is not None:
        raise InvalidArgument("url", "is the harbor's own affair; leave out --url (and LONGSHORE_URL), or --harbor")
    store = STORE if url is None else url
    if store.startswith("memory:"):
        raise InvalidArgument("url", f"memory:// is seen by one process only, and this starts several; use {STORE}")
    found = None if harbor is None else harbor_named(harbor)
    arguments = {
        "url": store,
        "harbor": harbor,
        "concurrency": concurrency,
        "log_format": log_format,
        "tracing": tracing,
    }
    key = session_key(session_key_file)
    logs.set_up(log_format)
    shown = f"the store of {harbor}" if harbor is not None else without_password(store)

    def make() -> Stoppable:
        backend = (builtin_harbor(store) if found is None else found).backend
        workers = Supervisor("longshore.cli.up:make_worker", processes=processes, arguments=arguments)
        return serving(
            backend,
            Scheduler(backend),
            Workers(workers),
            host=host,
            port=port,
            auth=auth,
            allowed_hosts=allowed_host or (),
            key=key,
            store=shown,
            access_log=access_log,
            tracing=tracing,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            announce=lambda address, asks: _announce(
                address, shown, processes, concurrency, builtin=found is None, asks=asks, as_json=as_json
            ),
        )

    sys.exit(serve(make, grace=STOP_GRACE, on_asked=ON_ASKED))


def harbor_named(name: str) -> Harbor:
    """The harbor written `module:name`, looked for from the working directory on."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InvalidArgument("harbor", f"must be written module:name, as in shop.jobs:harbor; got {name!r}")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        found = Target.named(module, attribute, "harbor").find()
    except ImportError as error:
        raise InvalidArgument("harbor", f"{module} cannot be imported from here: {error}") from None
    if not isinstance(found, Harbor):
        raise InvalidArgument("harbor", f"{name} is a {type(found).__name__}, not a Harbor")
    return found


def make_worker(*, url: str, harbor: str | None, concurrency: int, log_format: logs.LogFormat, tracing: bool) -> Worker:
    """In a worker's process."""
    logs.set_up(log_format)
    found = builtin_harbor(url) if harbor is None else harbor_named(harbor)
    if tracing:
        from longshore.app.tracing import Tracing as TracingLayer  # an extra

        found.add_middleware(TracingLayer())
    return found.worker(concurrency=concurrency)


def _announce(
    address: str, store: str, processes: int, concurrency: int, *, builtin: bool, asks: bool, as_json: bool
) -> None:
    token = ' -H "authorization: Bearer $LONGSHORE_TOKEN"' if asks else ""
    curl = f"curl -s {address}/v1/jobs{token} -H 'content-type: application/json' -d '{_FIRST_JOB}'"
    if as_json:
        told: dict[str, Any] = {"address": address, "url": store, "processes": processes, "concurrency": concurrency}
        typer.echo(json.dumps(told))
    else:
        typer.echo(
            f"Longshore is up at {address}/ on {printable(store)}, with {processes} x {concurrency} places for jobs."
        )
        if builtin:
            typer.echo(f"Send it a first job (the types echo, sleep and fail are there):\n\n  {curl}\n")
        typer.echo("Ctrl-C stops it in order.")
    sys.stdout.flush()


_FIRST_JOB = '{"type": "echo", "data": {"say": "hello"}}'
