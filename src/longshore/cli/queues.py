"""`stats`, `queues`, `workers`, `pause`, `resume` and `limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import parsing, rows
from longshore.cli.open_store import AsJson, OneQueue, Quiet, Store, a_store, complete_queue
from longshore.cli.options import gathered
from longshore.cli.output import Column, begin_again, complain, flush, say, say_id, say_model, show_rows
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.backends.base import QueueInfo
    from longshore.runtime.queue import Queue
    from longshore.server.models.queues import StatsView

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
            told[name] = parsing.limit(name.replace("_", "-"), text)
    for name, text in (("rate", rate), ("rate_per_key", rate_per_key)):
        if text is not None:
            told[name] = parsing.rate(name.replace("_", "-"), text)

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


Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only jobs with all of these tags.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on showing them until Ctrl-C.")]
Every = Annotated[float, typer.Option(min=0.1, help="With --watch, seconds between two looks.")]

_COUNTS = (Column("STATUS", whole=True, coloured=True), Column("JOBS", whole=True, right=True))


@gathered(store=a_store)
def stats(
    *,
    queue: OneQueue = None,
    tag: Tags = None,
    watch: Watch = False,
    every: Every = 2.0,
    as_json: AsJson = False,
    store: Store,
) -> None:
    """Counts the jobs in each status."""

    async def look(found: Queue) -> None:
        import asyncio

        while True:
            told = await _counted(found, queue, tag or [])
            if as_json:
                say_model(told)
            else:
                if watch:
                    begin_again()
                _tell(told)
            if not watch:
                return
            flush()
            await asyncio.sleep(every)

    store.within(look)


async def _counted(found: Queue, queue: str | None, tags: list[str]) -> StatsView:
    from longshore.server.models.queues import stats_view

    figures = await found.get_job_stats(tags, queue=queue)
    if tags:
        return stats_view(queue, figures, None, None)
    return stats_view(queue, figures, await found.count_jobs(queue), await found.backend.count_delayed(queue))


def _tell(told: StatsView) -> None:
    if told.counts is None:
        fields = ("total", "pending", "running", "completed", "stopped", "failed")
        show_rows(_COUNTS, [[name, f"{getattr(told, f'{name}_jobs'):,}"] for name in fields])
        return
    show_rows(_COUNTS, [[status.value, f"{jobs:,}"] for status, jobs in told.counts.items()])
    say(f"{told.total_jobs:,} jobs, {told.delayed:,} of them wait for their time")


@gathered(store=a_store)
def queues(*, as_json: AsJson = False, quiet: Quiet = False, store: Store) -> None:
    """Lists the queues that have jobs or settings."""

    async def look(found: Queue) -> None:
        known = await found.list_queues()
        if as_json:
            from longshore.server.models.queues import QueueList, queue_view

            say_model(QueueList(items=[queue_view(one) for one in known]))
        elif quiet:
            for one in known:
                say_id(one.name)
        elif known:
            show_rows(rows.QUEUES, [rows.queue_row(one) for one in known])
        else:
            complain("there is no queue yet; longshore enqueue makes one with its first job")

    store.within(look)


@gathered(store=a_store)
def workers(*, as_json: AsJson = False, quiet: Quiet = False, store: Store) -> None:
    """Lists the workers heard of in the last day."""

    async def look(found: Queue) -> None:
        known = await found.list_workers()
        now = await found.backend.now()
        if as_json:
            from longshore.server.models.queues import WorkerList, worker_view

            say_model(WorkerList(items=[worker_view(one, now) for one in known]))
        elif quiet:
            for one in known:
                say_id(one.id)
        elif known:
            show_rows(rows.WORKERS, [rows.worker_row(one, now) for one in known])
        else:
            complain("no worker was heard of in the last day; start one with: longshore worker --harbor MODULE:NAME")

    store.within(look)
