"""`longshore serve`: the HTTP API on a store, with a scheduler beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.gathering import gathered
from longshore.cli.output import LogForm, flush, say, say_json
from longshore.cli.serving import ON_ASKED, AsJson, Serving, everywhere, how_to_serve
from longshore.cli.store import Store, a_store, warn_of_password
from longshore.core.validation import shown_address

if TYPE_CHECKING:
    from longshore.runtime.signals import Stoppable

WithScheduler = Annotated[
    bool, typer.Option("--scheduler/--no-scheduler", help="Fire schedules, sweep and clean up here.")
]


@gathered(api=how_to_serve, store=a_store)
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
    logs.set_up(log_format)
    shown = shown_address(store.url)

    def make() -> Stoppable:
        backend = store.backend(create=True)
        parts = [Scheduler(backend)] if scheduler else []
        return api.together(
            backend,
            *parts,
            store_address=shown,
            announce=lambda address, _: _announce(address, everywhere(api.host), shown, as_json),
        )

    raise typer.Exit(serve(make, on_asked=ON_ASKED))


def _announce(address: str, also: str, store: str, as_json: bool) -> None:
    """One line that a person reads, or a program."""
    if as_json:
        say_json({"address": address, "url": store})
    else:
        say(f"Longshore serves {store} at {address}{also} (status page: {address}/)")
    flush()
