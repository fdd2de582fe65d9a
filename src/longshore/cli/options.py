"""Options that several commands share, such as the job filter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from longshore.cli import parsing
from longshore.cli.open_store import Store, complete_queue, complete_schedule, complete_type, store_options
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus


def option_groups(**makers: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace each parameter named here by the options of a function: `@option_groups(where=filter_options)`."""

    def around(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        groups = {name: inspect.signature(maker, eval_str=True).parameters for name, maker in makers.items()}
        parameters = [given for name, given in own.parameters.items() if name not in makers]
        parameters += [given for options in groups.values() for given in options.values()]

        # keyword only, so that a required option may follow one with a default
        flat = [given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in parameters]
        signature = own.replace(parameters=flat)

        @wraps(command)
        def called(**given: Any) -> Any:
            bound = signature.bind(**given)
            bound.apply_defaults()
            values = bound.kwargs
            made = {
                name: maker(**{option: values.pop(option) for option in groups[name]}) for name, maker in makers.items()
            }
            return command(**values, **made)

        called.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
        called.__annotations__ = {given.name: given.annotation for given in flat}
        return called

    return around


def on_store(
    *, create: bool = False, **makers: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn a coroutine function into a command; its first parameter is a queue of all jobs in the store of --url.

    A command with a parameter `store` also gets the `Store`. `makers` are passed on to `option_groups`.
    """

    def around(command: Callable[..., Any]) -> Callable[..., Any]:
        # Queue is imported for type checkers only, so that `--help` does not load the runtime
        own = inspect.signature(command, eval_str=True, locals={"Queue": object})
        _, *parameters = (given for name, given in own.parameters.items() if name != "store")
        takes_store = "store" in own.parameters

        @wraps(command)
        def opened(*, store: Store, **given: Any) -> Any:
            if takes_store:
                given["store"] = store
            return store.within(lambda queue: command(queue, **given), create=create)

        flat = [given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in parameters]
        flat.append(inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY))
        opened.__signature__ = own.replace(parameters=flat)  # type: ignore[attr-defined]  # what `option_groups` reads
        return option_groups(**{"store": store_options, **makers})(opened)

    return around


def _statuses(_ctx: typer.Context, incomplete: str) -> list[str]:
    names = [status.value.lower() if incomplete.islower() else status.value for status in JobStatus]
    return [name for name in names if name.startswith(incomplete)]


Statuses = Annotated[
    list[str] | None, typer.Option("--status", autocompletion=_statuses, help="Has this status; repeatable.")
]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", autocompletion=complete_queue, help="Is in this queue; repeatable.")
]
Types = Annotated[
    list[str] | None, typer.Option("--type", autocompletion=complete_type, help="Has this type; repeatable.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Has all of these tags.")]
Text = Annotated[str, typer.Option("--text", help="Has this text in the id, type, data or error.")]
Data = Annotated[list[str] | None, typer.Option("--data", help="Has this value in the data: address.city=Bergen.")]
Error = Annotated[str, typer.Option("--error", help="Has this text in the error.")]
Worker = Annotated[str | None, typer.Option("--worker", help="Was last claimed by this worker.")]
Parent = Annotated[str | None, typer.Option("--parent", help="Belongs to this parent or flow.")]
ScheduleId = Annotated[
    str | None, typer.Option("--schedule", autocompletion=complete_schedule, help="Was enqueued by this schedule.")
]
Key = Annotated[str | None, typer.Option("--key", help="Has this concurrency key.")]
After = Annotated[str | None, typer.Option("--created-after", help="Created after a time, or in the last 2h.")]
Before = Annotated[str | None, typer.Option("--created-before", help="Created before a time, or more than 2h ago.")]


def filter_options(
    status: Statuses = None,
    queue: Queues = None,
    type: Types = None,
    tag: Tags = None,
    text: Text = "",
    data: Data = None,
    error: Error = "",
    worker: Worker = None,
    parent: Parent = None,
    schedule: ScheduleId = None,
    key: Key = None,
    created_after: After = None,
    created_before: Before = None,
) -> JobFilter:
    """The filter options; a job must match all that are given."""
    return JobFilter(
        statuses=tuple(_status(one) for one in status or ()),
        queues=tuple(queue or ()),
        types=tuple(type or ()),
        tags=tuple(tag or ()),
        text=text,
        data=parsing.paths(data),
        error=error,
        assignee_id=worker,
        parent_id=parent,
        schedule_id=schedule,
        concurrency_key=key,
        created_after=None if created_after is None else parsing.past("created-after", created_after),
        created_before=None if created_before is None else parsing.past("created-before", created_before),
    )


def _status(text: str) -> JobStatus:
    try:
        return JobStatus(text.upper())
    except ValueError:
        raise InvalidArgument("status", f"unknown status {text!r}; use one of {', '.join(JobStatus)}") from None
