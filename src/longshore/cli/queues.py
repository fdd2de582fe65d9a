"""`stats`, `queues`, `workers`, `pause`, `resume` and `limits`."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import output, parsing, rows
from longshore.cli.open_store import AsJson, OneQueue, Quiet, complete_queue
from longshore.cli.options import on_store
from longshore.cli.output import Column
from longshore.core.errors import InvalidArgument
from longshore.core.validation import counted

if TYPE_CHECKING:
    from longshore.runtime.queue import Queue
    from longshore.server.models.queues import StatsView

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=complete_queue, help="The queue's name.")]
QueueNames = Annotated[
    list[str] | None, typer.Argument(metavar="QUEUE", autocompletion=complete_queue, help="Names of queues.")
]
All = Annotated[bool, typer.Option("--all", help="All queues.")]
Running = Annotated[str | None, typer.Option(help="Most running jobs, or none for no limit.")]
PerKey = Annotated[str | None, typer.Option(help="Most running jobs per concurrency key, or none.")]
RateOf = Annotated[str | None, typer.Option("--rate", help="Most starts per duration, such as 10/1m, or none.")]
RatePerKey = Annotated[str | None, typer.Option(help="Most starts per duration and concurrency key, or none.")]


@on_store()
async def pause(found: Queue, queues: QueueNames = None, everything: All = False, as_json: AsJson = False) -> None:
    """Pause queues: none of their jobs start until you resume them. Running jobs continue."""
    await _switch(found, queues or [], everything, as_json, paused=True)


@on_store()
async def resume(found: Queue, queues: QueueNames = None, everything: All = False, as_json: AsJson = False) -> None:
    """Resume paused queues."""
    await _switch(found, queues or [], everything, as_json, paused=False)


async def _switch(queue: Queue, names: list[str], everything: bool, as_json: bool, *, paused: bool) -> None:
    if bool(names) == everything:
        raise InvalidArgument("queue", "give either names of queues or --all")
    await _warn_of_new(queue, names)
    if everything:
        await (queue.pause() if paused else queue.resume())
    for name in names:
        await (queue.pause_queue(name) if paused else queue.resume_queue(name))
    found = [one for one in await queue.list_queues() if everything or one.name in names]
    if as_json:
        from longshore.server.models.queues import QueueList, queue_view

        output.print_model(QueueList(items=[queue_view(one) for one in found]))
    else:
        for name in names or [one.name for one in found]:
            output.print_line(f"{name} is {'paused' if paused else 'active'}")


async def _warn_of_new(queue: Queue, names: Sequence[str]) -> None:
    """Print the queues that the store does not know, which may be misspelt."""
    known = [one.name for one in await queue.list_queues()] if names else []
    listed = f"; known queues: {', '.join(known[:10])}{', …' * (len(known) > 10)}" if known else ""
    for name in names:
        near = get_close_matches(name, known, 1)
        if name not in known:
            hint = f". If you meant {near[0]!r}, repeat the command with that name" if near else ""
            output.print_stderr(f"longshore: queue {name!r} has no jobs yet{listed}{hint}")


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
    """Show the limits of a queue, after setting the ones that are given."""
    numbers, rates = {"running": running, "per_key": per_key}, {"rate": rate, "rate_per_key": rate_per_key}
    changed: dict[str, Any] = {}
    for parse, given in ((parsing.limit, numbers), (parsing.rate, rates)):
        changed |= {name: parse(name.replace("_", "-"), text) for name, text in given.items() if text is not None}
    await _warn_of_new(found, [queue])
    if changed:
        await found.set_limits(queue, **changed)
    from longshore.server.models.queues import queue_named, queue_view

    info = queue_named(queue, await found.list_queues())
    if as_json:
        output.print_model(queue_view(info))
    else:
        output.print_line(f"{queue}: {rows.limits(info) or 'no limits'}")


Tags = Annotated[list[str] | None, typer.Option("--tag", help="Count only jobs with all of these tags.")]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")]
Every = Annotated[float, typer.Option(min=0.1, help="With --watch, seconds between two refreshes.")]

_COUNTS = (Column("STATUS", whole=True, coloured=True), Column("JOBS", whole=True, right=True), Column("MEANING"))


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
    """Count the jobs in each status."""
    import asyncio

    while True:
        figures = await _stats(found, queue, tag or [])
        if as_json:
            output.print_model(figures)
        else:
            if watch:
                output.clear_screen()
            _print_stats(figures)
        if not watch:
            return
        output.flush()
        await asyncio.sleep(every)


async def _stats(found: Queue, queue: str | None, tags: list[str]) -> StatsView:
    from longshore.server.models.queues import stats_view

    figures = await found.get_job_stats(tags, queue=queue)
    if tags:
        return stats_view(queue, figures, None, None)
    return stats_view(queue, figures, await found.count_jobs(queue), await found.backend.count_delayed(queue))


def _print_stats(stats: StatsView) -> None:
    if stats.counts is None:
        fields = ("total", "pending", "running", "completed", "stopped", "failed")
        output.print_rows(_COUNTS[:2], [[name, f"{getattr(stats, f'{name}_jobs'):,}"] for name in fields])
        return
    output.print_rows(
        _COUNTS, [[status.value, f"{jobs:,}", rows.STATUS_MEANINGS[status]] for status, jobs in stats.counts.items()]
    )
    output.print_line(f"{counted(stats.total_jobs, 'job')}, {stats.delayed:,} delayed")


@on_store()
async def queues(found: Queue, *, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the queues that have jobs or settings."""
    known = await found.list_queues()
    if as_json:
        from longshore.server.models.queues import QueueList, queue_view

        output.print_model(QueueList(items=[queue_view(one) for one in known]))
    else:
        nothing = "no queues; longshore enqueue creates one with its first job"
        output.print_list(rows.QUEUES, [rows.queue_row(one) for one in known], nothing=nothing, quiet=quiet)


@on_store()
async def workers(found: Queue, *, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the workers that were active in the last 24 hours."""
    known = await found.list_workers()
    now = await found.backend.now()
    if as_json:
        from longshore.server.models.queues import WorkerList, worker_view

        output.print_model(WorkerList(items=[worker_view(one, now) for one in known]))
    else:
        nothing = "no worker in the last 24 hours; start one with: longshore worker --harbor MODULE:NAME"
        output.print_list(rows.WORKERS, [rows.worker_row(one, now) for one in known], nothing=nothing, quiet=quiet)
