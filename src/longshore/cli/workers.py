"""`worker` and `scheduler`: processes that run jobs and schedules."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli.open_store import Store, complete_queue, store_options, warn_of_password
from longshore.cli.options import option_groups
from longshore.cli.output import LogForm, print_stderr
from longshore.cli.parsing import duration
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.validation import counted, shown_address

if TYPE_CHECKING:
    from longshore.app.harbor import Harbor
    from longshore.runtime.logs import LogFormat
    from longshore.runtime.signals import Stoppable

HarborName = Annotated[
    str | None, typer.Option("--harbor", help="Your tasks, such as shop.jobs:harbor. Default: echo, sleep and fail.")
]
Processes = Annotated[int, typer.Option(min=1, max=64, help="Number of worker processes.")]
Concurrency = Annotated[int, typer.Option(min=1, max=10_000, help="Concurrent jobs per process.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", autocompletion=complete_queue, help="Claim from this queue; repeatable. Default: all."),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Claim only jobs with all of these tags.")]
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="Exit when no job can run now.")]
Grace = Annotated[str, typer.Option(help="Time for running jobs to finish after the first Ctrl-C or SIGTERM.")]
Interval = Annotated[float, typer.Option(min=0.01, help="Seconds between scheduler passes.")]
CancelTimeout = Annotated[
    float | None,
    typer.Option(min=0.01, help="Stop jobs that ignore a cancellation for this many seconds. Default: off."),
]


@option_groups(store=store_options)
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
    """Run jobs until Ctrl-C: those of your harbor's tasks, or the built-in types echo, sleep and fail."""
    reject_url_with_harbor(ctx, harbor)
    warn_of_password(ctx, store.url)
    if harbor is None and store.url.startswith("memory:"):
        raise InvalidArgument("url", "memory:// is visible to one process only, so no other process could enqueue jobs")
    from longshore.runtime.signals import serve

    if harbor is None:
        store.refuse_unusable_file()
    grace_seconds = duration("grace", grace)
    claims = {"queues": queue, "tags": tag or [], "concurrency": concurrency, "until_empty": until_empty}
    arguments: dict[str, Any] = {"url": store.url, "schema": store.schema, "harbor": harbor, **claims}
    arguments["log_format"] = log_format
    own = None if harbor is None else harbor_named(harbor).url
    shown = displayed_store(ctx, harbor, own, store.url)
    print_stderr(f"longshore: {capacity(processes, concurrency)} on {shown}; press Ctrl-C to stop")
    if processes == 1:
        raise typer.Exit(serve(lambda: make_worker(**arguments), grace=grace_seconds))

    import asyncio

    from longshore.runtime.supervisor import Supervisor

    backend = store.backend() if harbor is None else harbor_named(harbor).backend
    made = "longshore.cli.workers:make_worker"
    code = Supervisor(made, processes=processes, arguments=arguments, grace=grace_seconds, store=backend).run()
    asyncio.run(backend.close())
    raise typer.Exit(code)


def reject_url_with_harbor(ctx: typer.Context, harbor: str | None) -> None:
    """Reject --url together with --harbor, which has a store already. LONGSHORE_URL is ignored instead."""
    if harbor is not None and _url_source(ctx) == "COMMANDLINE":
        raise InvalidArgument("url", "cannot be combined with --harbor, which sets the store; leave out one of them")


def displayed_store(ctx: typer.Context, harbor: str | None, own: str | None, url: str) -> str:
    """Return the store's address without secrets. Warn if LONGSHORE_URL names a different store than the harbor."""
    if harbor is None:
        return shown_address(url)
    if own is None:
        return f"the store of {harbor}"
    if own != url and _url_source(ctx) == "ENVIRONMENT":
        print_stderr(
            f"longshore: using the store of {harbor}, {shown_address(own)}; ignoring LONGSHORE_URL "
            f"({shown_address(url)}), which other commands use"
        )
    return shown_address(own)


def capacity(processes: int, concurrency: int) -> str:
    """Describe the workers: `1 worker process, 10 concurrent jobs`."""
    each = "" if processes == 1 else " each"
    return f"{counted(processes, 'worker process', 'es')}, {counted(concurrency, 'concurrent job')}{each}"


def _url_source(ctx: typer.Context) -> str:
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
    """Build the worker; called in the worker's process."""
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
    """Return the built-in harbor with echo, sleep and fail; creates the store if it does not exist."""
    from longshore.app.harbor import builtin_harbor

    return builtin_harbor(store.backend(create=True))


def harbor_named(name: str) -> Harbor:
    """Import the harbor written `module:name`, with the working directory on the path."""
    from longshore.app.harbor import Harbor
    from longshore.runtime.executors.base import Target

    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InvalidArgument("harbor", f"must have the form module:name, such as shop.jobs:harbor; got {name!r}")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        found = Target.named(module, attribute, "harbor").find()
    except LongshoreError:
        raise
    except Exception as error:  # the user's module may raise anything
        if isinstance(error, AttributeError) and module in sys.modules:
            raise InvalidArgument("harbor", f"{module} has no {attribute}; name the variable with the Harbor") from None
        raise InvalidArgument("harbor", _import_problem(module, error)) from error
    if not isinstance(found, Harbor):
        kind = type(found).__name__
        raise InvalidArgument("harbor", f"{name} is {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}, not a Harbor")
    return found


def _import_problem(module: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and not f"{module}.".startswith(f"{missing}."):
        return f"{module} was found, but it imports {missing}, which is not installed here"
    why = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    top, dot, _ = module.partition(".")
    place = f"{top}/" if dot else f"{top}.py"
    hint = f"; start the command in the folder that contains {place}, or set PYTHONPATH" if missing == top else ""
    return f"cannot import {module} from the working directory: {why}{hint}"


@option_groups(store=store_options)
def scheduler(
    ctx: typer.Context,
    *,
    interval: Interval = 1.0,
    cancel_timeout: CancelTimeout = None,
    log_format: LogForm = "text",
    store: Store,
) -> None:
    """Fire schedules, sweep expired leases and clean up, until Ctrl-C. You can run several schedulers."""
    warn_of_password(ctx, store.url)
    from longshore.cli.process_group import ProcessGroup
    from longshore.runtime import logs
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.signals import serve

    logs.set_up_logging(log_format)

    def make() -> Stoppable:
        backend = store.backend(create=True)
        return ProcessGroup(Scheduler(backend, interval=interval, cancel_timeout=cancel_timeout), after=backend.close)

    print_stderr(f"longshore: scheduler running on {shown_address(store.url)}; press Ctrl-C to stop")
    raise typer.Exit(serve(make, on_stop="stopping: the scheduler finishes its current pass"))
