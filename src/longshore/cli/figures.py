"""Counts and the present state of queues and workers: `stats`, `queues`, `workers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli import rows
from longshore.cli.gathering import gathered
from longshore.cli.output import begin_again, complain, flush, say, say_id, say_model, show_rows
from longshore.cli.store import AsJson, OneQueue, Quiet, Store, a_store
from longshore.cli.tables import Column

if TYPE_CHECKING:
    from longshore.runtime.job_queue import Queue
    from longshore.server.models.figures import StatsView

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
    from longshore.server.models.figures import stats_view

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
            from longshore.server.models.figures import WorkerList, worker_view

            say_model(WorkerList(items=[worker_view(one, now) for one in known]))
        elif quiet:
            for one in known:
                say_id(one.id)
        elif known:
            show_rows(rows.WORKERS, [rows.worker_row(one, now) for one in known])
        else:
            complain("no worker was heard of in the last day; start one with: longshore worker --harbor MODULE:NAME")

    store.within(look)
