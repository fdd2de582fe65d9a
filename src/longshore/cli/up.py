"""`longshore up`: everything one machine needs — the API, a scheduler, workers and a status page — in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli.authentication import AllowedHosts, Auth, SessionKey, session_key
from longshore.cli.output import flush, say, say_json
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
)
from longshore.cli.store import HERE, Schema, Store, without_password
from longshore.cli.working import Concurrency, HarborName, Processes, builtin_at, harbor_named
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.runtime.signals import Stoppable

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="LONGSHORE_URL", help=f"Where the jobs are; {HERE} if nothing is said."),
]


def up(
    url: Url = None,
    schema: Schema = None,
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
    store = Store(HERE if url is None else url, schema)
    if store.url.startswith("memory:"):
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
        "tracing": tracing,
    }
    from longshore.cli.together import Workers
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve
    from longshore.runtime.supervisor import Supervisor

    key = session_key(session_key_file)
    logs.set_up(log_format)
    shown = f"the store of {harbor}" if harbor is not None else without_password(store.url)

    def make() -> Stoppable:
        backend = (builtin_at(store) if found is None else found).backend
        workers = Supervisor("longshore.cli.working:make_worker", processes=processes, arguments=arguments)
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

    raise typer.Exit(serve(make, on_asked=ON_ASKED))


def _announce(
    address: str, store: str, processes: int, concurrency: int, *, builtin: bool, asks: bool, as_json: bool
) -> None:
    token = ' -H "authorization: Bearer $LONGSHORE_TOKEN"' if asks else ""
    curl = f"curl -s {address}/v1/jobs{token} -H 'content-type: application/json' -d '{_FIRST_JOB}'"
    if as_json:
        told: dict[str, Any] = {"address": address, "url": store, "processes": processes, "concurrency": concurrency}
        say_json(told)
    else:
        say(f"Longshore is up at {address}/ on {store}, with {processes} x {concurrency} places for jobs.")
        if builtin:
            say("Send it a first job (the types echo, sleep and fail are there):")
            say()
            say(f"  {curl}")
            say()
        say("Ctrl-C stops it in order.")
    flush()


_FIRST_JOB = '{"type": "echo", "data": {"say": "hello"}}'
