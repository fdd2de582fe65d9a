"""What queues are told: `pause`, `resume` and `limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import rows, words
from longshore.cli.completion import complete_queue
from longshore.cli.gathering import gathered
from longshore.cli.output import say, say_model
from longshore.cli.store import AsJson, Store, a_store
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.backends.base import QueueInfo
    from longshore.runtime.queue import Queue

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=complete_queue, help="The queue.")]
QueueNames = Annotated[
    list[str] | None, typer.Argument(metavar="QUEUE", autocompletion=complete_queue, help="The queues.")
]
All = Annotated[bool, typer.Option("--all", help="All queues there are.")]
Running = Annotated[str | None, typer.Option(help="Jobs that may run at once; none for no limit.")]
PerKey = Annotated[str | None, typer.Option(help="Jobs of one concurrency key that may run at once, or none.")]
RateOf = Annotated[str | None, typer.Option("--rate", help="Starts in a span of time, like 10/1m, or none.")]
RatePerKey = Annotated[str | None, typer.Option(help="The same, of each concurrency key.")]


@gathered(store=a_store)
def pause(queues: QueueNames = None, *, everything: All = False, as_json: AsJson = False, store: Store) -> None:
    """Holds queues up: nothing of them starts until they are resumed; what runs goes on."""
    _switch(store, queues or [], everything, as_json, paused=True)


@gathered(store=a_store)
def resume(queues: QueueNames = None, *, everything: All = False, as_json: AsJson = False, store: Store) -> None:
    """Lets paused queues go on."""
    _switch(store, queues or [], everything, as_json, paused=False)


def _switch(store: Store, names: list[str], everything: bool, as_json: bool, *, paused: bool) -> None:
    if bool(names) == everything:
        raise InvalidArgument("queue", "name the queues, or say --all; one of the two")

    async def switch(queue: Queue) -> None:
        if everything:
            await (queue.pause() if paused else queue.resume())
        for name in names:
            await (queue.pause_queue(name) if paused else queue.resume_queue(name))
        found = [one for one in await queue.list_queues() if everything or one.name in names]
        if as_json:
            from longshore.server.models.queues import QueueList, queue_view

            say_model(QueueList(items=[queue_view(one) for one in found]))
        else:
            for name in names or [one.name for one in found]:
                say(f"{name} is {'paused' if paused else 'open'}")

    store.within(switch)


@gathered(store=a_store)
def limits(
    queue: QueueName,
    *,
    running: Running = None,
    per_key: PerKey = None,
    rate: RateOf = None,
    rate_per_key: RatePerKey = None,
    as_json: AsJson = False,
    store: Store,
) -> None:
    """Shows the limits of a queue, after setting those that are given."""
    told: dict[str, Any] = {}
    for name, text in (("running", running), ("per_key", per_key)):
        if text is not None:
            told[name] = words.limit(name.replace("_", "-"), text)
    for name, text in (("rate", rate), ("rate_per_key", rate_per_key)):
        if text is not None:
            told[name] = words.rate(name.replace("_", "-"), text)

    async def change(found: Queue) -> None:
        if told:
            await found.set_limits(queue, **told)
        info = await _named(found, queue)
        if as_json:
            from longshore.server.models.queues import queue_view

            say_model(queue_view(info))
        else:
            say(f"{queue}: {rows.limits(info) or 'no limits'}")

    store.within(change)


async def _named(found: Queue, name: str) -> QueueInfo:
    from longshore.server.models.queues import empty_queue

    return next((one for one in await found.list_queues() if one.name == name), empty_queue(name))
