"""`longshore up`: everything one machine needs — the API, a scheduler, workers and a status page — in one go."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli.gathering import gathered
from longshore.cli.output import LogForm, flush, say, say_json
from longshore.cli.serving import ON_ASKED, AsJson, Serving, everywhere, how_to_serve
from longshore.cli.store import HERE, Schema, Store, warn_of_password
from longshore.cli.working import (
    Concurrency,
    HarborName,
    Processes,
    builtin_at,
    harbor_named,
    refuse_url_beside_harbor,
    store_shown,
)
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.app.harbor import Harbor
    from longshore.runtime.signals import Stoppable

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="LONGSHORE_URL", help=f"Where the jobs are; {HERE} if nothing is said."),
]


@gathered(api=how_to_serve)
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
    from longshore.cli.together import Workers
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve
    from longshore.runtime.supervisor import Supervisor

    logs.set_up(log_format)
    own = store.url if found is None else found.url
    shown = store_shown(ctx, harbor, own, store.url)
    first = _FIRST_JOB if found is None else _first_job_for(found)

    def make() -> Stoppable:
        backend = (builtin_at(store) if found is None else found).backend
        workers = Supervisor(
            "longshore.cli.working:make_worker", processes=processes, arguments=arguments, store=backend
        )
        return api.together(
            backend,
            Scheduler(backend),
            Workers(workers),
            store_address="" if own is None else shown,
            announce=lambda address, asks: _announce(
                address, everywhere(api.host), shown, processes, concurrency, first=first, asks=asks, as_json=as_json
            ),
        )

    raise typer.Exit(serve(make, on_asked=ON_ASKED))


def _announce(
    address: str, also: str, store: str, processes: int, concurrency: int, *, first: str, asks: bool, as_json: bool
) -> None:
    token = ' -H "authorization: Bearer $LONGSHORE_TOKEN"' if asks else ""
    curl = f"curl -s {address}/v1/jobs{token} -H 'content-type: application/json' -d {shlex.quote(first)}"
    if as_json:
        told: dict[str, Any] = {"address": address, "url": store, "processes": processes, "concurrency": concurrency}
        say_json(told)
    else:
        say(f"Longshore is up at {address}/{also} on {store}, with {processes} x {concurrency} places for jobs.")
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
