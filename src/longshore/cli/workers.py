"""`worker` and `scheduler`: processes that run jobs and schedules."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli.open_store import Store, a_store, complete_queue, warn_of_password
from longshore.cli.options import gathered
from longshore.cli.output import LogForm, complain
from longshore.cli.parsing import duration
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.validation import shown_address

if TYPE_CHECKING:
    from longshore.app.harbor import Harbor
    from longshore.runtime.logs import LogFormat
    from longshore.runtime.signals import Stoppable


HarborName = Annotated[
    str | None, typer.Option("--harbor", help="Your tasks, like shop.jobs:harbor; else echo, sleep and fail are there.")
]
Processes = Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")]
Concurrency = Annotated[int, typer.Option(min=1, max=10_000, help="Jobs each of them runs at a time.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", autocompletion=complete_queue, help="Take jobs of this queue; else of all."),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Take only jobs with all of these tags.")]
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="End when nothing is left that could be run now.")]
Grace = Annotated[str, typer.Option(help="How long running jobs may go on after the first Ctrl-C or SIGTERM.")]
Interval = Annotated[float, typer.Option(min=0.01, help="Seconds between two passes.")]
CancelTimeout = Annotated[
    float | None,
    typer.Option(min=0.01, help="End jobs that do not answer a cancellation within this many seconds; off by default."),
]


@gathered(store=a_store)
def worker(
    ctx: typer.Context,
    *,
    harbor: HarborName = None,
    queue: Queues = None,
    tag: Tags = None,
    concurrency: Concurrency = 10,
    processes: Processes = 1,
    until_empty: UntilEmpty = False,
    grace: Grace = "30s",
    log_format: LogForm = "text",
    store: Store,
) -> None:
    """Runs jobs until Ctrl-C: those of your harbor's tasks, or the types echo, sleep and fail."""
    refuse_url_beside_harbor(ctx, harbor)
    warn_of_password(ctx, store.url)
    if harbor is None and store.url.startswith("memory:"):
        raise InvalidArgument("url", "memory:// is seen by one process only, and nobody else could add jobs to it")
    from longshore.runtime.signals import serve

    if harbor is None:
        store.refuse_unusable_file()
    patience = duration("grace", grace)
    arguments: dict[str, Any] = {
        "url": store.url,
        "schema": store.schema,
        "harbor": harbor,
        "queues": queue,
        "tags": tag or [],
        "concurrency": concurrency,
        "until_empty": until_empty,
        "log_format": log_format,
    }
    own = None if harbor is None else harbor_named(harbor).url
    shown = store_shown(ctx, harbor, own, store.url)
    complain(f"longshore: {capacity(processes, concurrency)} on {shown}; Ctrl-C stops it in order")
    if processes == 1:
        raise typer.Exit(serve(lambda: make_worker(**arguments), grace=patience))

    import asyncio

    from longshore.runtime.supervisor import Supervisor

    backend = store.backend() if harbor is None else harbor_named(harbor).backend
    made = Supervisor(
        "longshore.cli.workers:make_worker",
        processes=processes,
        arguments=arguments,
        grace=patience,
        store=backend,
    )
    code = made.run()
    asyncio.run(backend.close())
    raise typer.Exit(code)


def refuse_url_beside_harbor(ctx: typer.Context, harbor: str | None) -> None:
    """A harbor has its own store. What LONGSHORE_URL says is for other commands, and is let stand."""
    if harbor is not None and _came_from(ctx) == "COMMANDLINE":
        raise InvalidArgument("url", "is the harbor's own affair; leave out --url, or --harbor")


def store_shown(ctx: typer.Context, harbor: str | None, own: str | None, url: str) -> str:
    """The store's address for people; warns if LONGSHORE_URL names another store than the harbor's."""
    if harbor is None:
        return shown_address(url)
    if own is None:
        return f"the store of {harbor}"
    if own != url and _came_from(ctx) == "ENVIRONMENT":
        complain(
            f"longshore: the jobs are where {harbor} keeps them, {shown_address(own)}; what LONGSHORE_URL names, "
            f"{shown_address(url)}, is left alone, and is where other commands look"
        )
    return shown_address(own)


def capacity(processes: int, concurrency: int) -> str:
    """How many jobs run at once, in words."""
    if processes == 1:
        return f"1 worker process, {concurrency} concurrent jobs"
    return f"{processes} worker processes, {concurrency} concurrent jobs each"


def _came_from(ctx: typer.Context) -> str:
    return str(getattr(ctx.get_parameter_source("url"), "name", ""))


def make_worker(
    *,
    url: str,
    schema: str | None = None,
    harbor: str | None,
    concurrency: int,
    log_format: LogFormat,
    queues: list[str] | None = None,
    tags: list[str] | None = None,
    until_empty: bool = False,
    tracing: bool = False,
) -> Stoppable:
    """In a worker's process."""
    from longshore.cli.process_group import ProcessGroup
    from longshore.runtime import logs

    logs.set_up_logging(log_format)
    found = harbor_named(harbor) if harbor is not None else builtin_at(Store(url, schema))
    if tracing:
        from longshore.app.tracing import Tracing  # an extra

        found.add_middleware(Tracing())
    made = found.worker(queues, concurrency=concurrency, tags=tags or (), until_empty=until_empty)
    return ProcessGroup(made, after=found.close)


def builtin_at(store: Store) -> Harbor:
    """The harbor with echo, sleep and fail, on a store that is made if there is none."""
    from longshore.app.harbor import builtin_harbor

    return builtin_harbor(store.backend(create=True))


def harbor_named(name: str) -> Harbor:
    """The harbor written `module:name`, looked for from the working directory on."""
    from longshore.app.harbor import Harbor
    from longshore.runtime.executors.base import Target

    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InvalidArgument("harbor", f"must be written module:name, as in shop.jobs:harbor; got {name!r}")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        found = Target.named(module, attribute, "harbor").find()
    except LongshoreError:
        raise
    except Exception as error:  # whatever goes wrong in a file of the user's own
        if isinstance(error, AttributeError) and module in sys.modules:
            raise InvalidArgument("harbor", f"{module} has no {attribute}; name the Harbor that is in it") from None
        why = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise InvalidArgument("harbor", f"{module} cannot be imported from here: {why}") from error
    if not isinstance(found, Harbor):
        raise InvalidArgument("harbor", f"{name} is a {type(found).__name__}, not a Harbor")
    return found


@gathered(store=a_store)
def scheduler(
    ctx: typer.Context,
    *,
    interval: Interval = 1.0,
    cancel_timeout: CancelTimeout = None,
    log_format: LogForm = "text",
    store: Store,
) -> None:
    """Fires schedules, sweeps expired leases and cleans up, until Ctrl-C. Several at once do no harm."""
    warn_of_password(ctx, store.url)
    from longshore.cli.process_group import ProcessGroup
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve

    logs.set_up_logging(log_format)

    def make() -> Stoppable:
        backend = store.backend(create=True)
        return ProcessGroup(Scheduler(backend, interval=interval, cancel_timeout=cancel_timeout), after=backend.close)

    complain(f"longshore: the scheduler of {shown_address(store.url)} runs; Ctrl-C stops it in order")
    raise typer.Exit(serve(make, on_asked="asked to stop: the scheduler ends what it has begun"))
