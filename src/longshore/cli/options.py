"""Options that many commands share, and the filter options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from longshore.cli import parsing
from longshore.cli.open_store import Store, a_store, complete_queue, complete_schedule, complete_type
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus


def gathered(**makers: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command, in place of each parameter named here, the options of its maker: `@gathered(where=a_filter)`."""

    def around(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        asked = {name: inspect.signature(maker, eval_str=True).parameters for name, maker in makers.items()}
        parameters = [given for name, given in own.parameters.items() if name not in makers]
        parameters += [given for options in asked.values() for given in options.values()]

        # keyword only, so that one that must be given may stand behind one that need not
        told = [given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in parameters]
        signature = own.replace(parameters=told)

        @wraps(command)
        def called(**given: Any) -> Any:
            bound = signature.bind(**given)
            bound.apply_defaults()
            values = bound.kwargs
            made = {
                name: maker(**{option: values.pop(option) for option in asked[name]}) for name, maker in makers.items()
            }
            return command(**values, **made)

        called.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
        called.__annotations__ = {given.name: given.annotation for given in told}
        return called

    return around


def on_store(
    *, create: bool = False, **makers: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a command of a coroutine function, whose first parameter is a queue of all jobs in the store of --url.

    A command with a parameter `store` gets the `Store` as well. `makers` are those of `gathered`.
    """

    def around(command: Callable[..., Any]) -> Callable[..., Any]:
        # Queue is imported for type checkers alone: `--help` must not load the runtime
        own = inspect.signature(command, eval_str=True, locals={"Queue": object})
        _, *parameters = (given for name, given in own.parameters.items() if name != "store")
        takes_store = "store" in own.parameters

        @wraps(command)
        def opened(*, store: Store, **given: Any) -> Any:
            if takes_store:
                given["store"] = store
            return store.within(lambda queue: command(queue, **given), create=create)

        told = [given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in parameters]
        told.append(inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY))
        opened.__signature__ = own.replace(parameters=told)  # type: ignore[attr-defined]  # what `gathered` reads
        return gathered(**{"store": a_store, **makers})(opened)

    return around


def _statuses(_ctx: typer.Context, incomplete: str) -> list[str]:
    names = [status.value.lower() if incomplete.islower() else status.value for status in JobStatus]
    return [name for name in names if name.startswith(incomplete)]


Statuses = Annotated[
    list[str] | None, typer.Option("--status", autocompletion=_statuses, help="In one of these statuses.")
]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", autocompletion=complete_queue, help="In one of these queues.")
]
Types = Annotated[list[str] | None, typer.Option("--type", autocompletion=complete_type, help="Of one of these types.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="With all of these tags.")]
Text = Annotated[str, typer.Option("--text", help="With this in the id, type, data or error.")]
Data = Annotated[list[str] | None, typer.Option("--data", help="With this in the data: address.city=Bergen.")]
Error = Annotated[str, typer.Option("--error", help="With this in the error.")]
Worker = Annotated[str | None, typer.Option("--worker", help="Last held by this worker.")]
Parent = Annotated[str | None, typer.Option("--parent", help="Of this parent or flow.")]
ScheduleId = Annotated[
    str | None, typer.Option("--schedule", autocompletion=complete_schedule, help="Made by this schedule.")
]
Key = Annotated[str | None, typer.Option("--key", help="With this concurrency key.")]
After = Annotated[str | None, typer.Option("--created-after", help="Made after 2026-05-01T12:00Z, or in the last 2h.")]
Before = Annotated[str | None, typer.Option("--created-before", help="Made before then.")]


def a_filter(
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
    """The filter that these options mean."""
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
        raise InvalidArgument("status", f"there is no status {text!r}; there are {', '.join(JobStatus)}") from None
