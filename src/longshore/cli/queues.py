"""`stats`, `queues`, `workers`, `pause`, `resume` and `limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import parsing, rows
from longshore.cli.open_store import AsJson, OneQueue, Quiet, complete_queue
from longshore.cli.options import on_store
from longshore.cli.output import Column, begin_again, flush, say, say_model, show_list, show_rows
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
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


@on_store()
async def pause(found: Queue, queues: QueueNames = None, everything: All = False, as_json: AsJson = False) -> None:
    """Pauses queues: no job of them starts until you resume them; running jobs continue."""
    await _switch(found, queues or [], everything, as_json, paused=True)


@on_store()
async def resume(found: Queue, queues: QueueNames = None, everything: All = False, as_json: AsJson = False) -> None:
    """Resumes paused queues."""
    await _switch(found, queues or [], everything, as_json, paused=False)


async def _switch(queue: Queue, names: list[str], everything: bool, as_json: bool, *, paused: bool) -> None:
    if bool(names) == everything:
        raise InvalidArgument("queue", "name the queues, or say --all; one of the two")
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


@on_store()
async def limits(
    found: Queue,
    queue: QueueName,
    running: Running = None,
    per_key: PerKey = None,
    rate: RateOf = None,
    rate_per_key: RatePerKey = None,
    as_json: AsJson = False,
) -> None:
    """Shows the limits of a queue, after setting those that are given."""
    numbers, rates = {"running": running, "per_key": per_key}, {"rate": rate, "rate_per_key": rate_per_key}
    told: dict[str, Any] = {}
    for parse, given in ((parsing.limit, numbers), (parsing.rate, rates)):
        told |= {name: parse(name.replace("_", "-"), text) for name, text in given.items() if text is not None}
    if told:
        await found.set_limits(queue, **told)
    from longshore.server.models.queues import queue_named, queue_view

    info = queue_named(queue, await found.list_queues())
    if as_json:
        say_model(queue_view(info))
    else:
        say(f"{queue}: {rows.limits(info) or 'no limits'}")


Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only jobs with all of these tags.")]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")]
Every = Annotated[float, typer.Option(min=0.1, help="With --watch, seconds between two looks.")]

_COUNTS = (Column("STATUS", whole=True, coloured=True), Column("JOBS", whole=True, right=True))


@on_store()
async def stats(
    found: Queue,
    *,
    queue: OneQueue = None,
    tag: Tags = None,
    watch: Watch = False,
    every: Every = 2.0,
    as_json: AsJson = False,
) -> None:
    """Counts the jobs in each status."""
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


@on_store()
async def queues(found: Queue, *, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Lists the queues that have jobs or settings."""
    known = await found.list_queues()
    if as_json:
        from longshore.server.models.queues import QueueList, queue_view

        say_model(QueueList(items=[queue_view(one) for one in known]))
    else:
        nothing = "there is no queue yet; longshore enqueue makes one with its first job"
        show_list(rows.QUEUES, [rows.queue_row(one) for one in known], nothing=nothing, quiet=quiet)


@on_store()
async def workers(found: Queue, *, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Lists the workers heard of in the last day."""
    known = await found.list_workers()
    now = await found.backend.now()
    if as_json:
        from longshore.server.models.queues import WorkerList, worker_view

        say_model(WorkerList(items=[worker_view(one, now) for one in known]))
    else:
        nothing = "no worker was heard of in the last day; start one with: longshore worker --harbor MODULE:NAME"
        show_list(rows.WORKERS, [rows.worker_row(one, now) for one in known], nothing=nothing, quiet=quiet)
