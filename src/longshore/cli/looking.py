"""Looking at jobs: `list`, `show` and `explain`."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli import rows
from longshore.cli.completion import complete_job
from longshore.cli.filters import a_filter
from longshore.cli.gathering import gathered
from longshore.cli.output import complain, json_text, say, say_id, say_json, say_model, say_piece, show_rows
from longshore.cli.store import AsJson, Quiet, Store, a_store
from longshore.cli.telling import tell_job, way_out
from longshore.core.filters import JobFilter

if TYPE_CHECKING:
    from longshore.backends.base import Page
    from longshore.core.job import JobEvent
    from longshore.runtime.queue import Queue

PAGE = 500
"""Jobs read at a time where all are asked for."""
_MOST_EVENTS = 10_000
"""Events of one job that are read: more than anybody reads on a screen."""

JobId = Annotated[str, typer.Argument(metavar="ID", autocompletion=complete_job, help="The job.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE, help="Jobs to show.")]
Cursor = Annotated[str | None, typer.Option(help="Go on from here: the cursor that the page before ended with.")]
All = Annotated[bool, typer.Option("--all", help="All that match, page after page.")]
Ids = Annotated[list[str] | None, typer.Option("--id", autocompletion=complete_job, help="With one of these ids.")]


@gathered(where=a_filter, store=a_store)
def list_jobs(
    *,
    ids: Ids = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    everything: All = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    where: JobFilter,
    store: Store,
) -> None:
    """Lists jobs that match every condition given, newest first."""
    wanted = dataclasses.replace(where, ids=tuple(ids or ()))
    show_jobs(store, wanted, limit=limit, cursor=cursor, everything=everything, as_json=as_json, quiet=quiet)


def show_jobs(
    store: Store, where: JobFilter, *, limit: int, cursor: str | None, everything: bool, as_json: bool, quiet: bool
) -> None:
    """A page of jobs, or all of them, in the form asked for."""

    async def look(queue: Queue) -> None:
        pages = _pages(queue, where, PAGE if everything else limit, cursor, everything=everything)
        if as_json:
            await _as_json(queue, pages)
        else:
            await _as_rows(queue, pages, quiet=quiet, everything=everything)

    store.within(look)


async def _pages(
    queue: Queue, where: JobFilter, limit: int, cursor: str | None, *, everything: bool
) -> AsyncIterator[Page]:
    while True:
        page = await queue.list_jobs(where, limit=limit, cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None or not everything:
            return


async def _as_json(queue: Queue, pages: AsyncIterator[Page]) -> None:
    """One document, written page by page: there may be millions."""
    from longshore.server.models.jobs import summary

    now, separator, after = await queue.backend.now(), "", None
    say_piece('{"items": [')
    async for page in pages:
        for job in page.items:
            say_piece(separator + json_text(summary(job, now).model_dump(mode="json")))
            separator = ", "
        after = page.next_cursor
    say_piece(f'], "next_cursor": {json_text(after)}}}\n')


async def _as_rows(queue: Queue, pages: AsyncIterator[Page], *, quiet: bool, everything: bool) -> None:
    now, first = await queue.backend.now(), True
    async for page in pages:
        if quiet:
            for job in page.items:
                say_id(job.id)
        elif page.items:
            show_rows(rows.JOBS, [rows.job_row(job, now) for job in page.items], heads=first)
        elif first:
            complain("no job matches")
        first = False
        if page.next_cursor is not None and not everything:
            complain(f"more: --cursor {page.next_cursor}")


@gathered(store=a_store)
def show(job_id: JobId, *, as_json: AsJson = False, store: Store) -> None:
    """Shows a job: its record, every attempt at it, its data, result and error."""

    async def look(queue: Queue) -> None:
        job = await queue.get_job(job_id)
        events = await events_of(queue, job.id)
        now = await queue.backend.now()
        if as_json:
            from longshore.cli.shapes import job_detail

            say_model(job_detail(job, events, now))
        else:
            tell_job(job, events, now)

    store.within(look)


async def events_of(queue: Queue, job_id: str) -> list[JobEvent]:
    """All that the log still has of a job, up to a bound."""
    events: list[JobEvent] = []
    while len(events) < _MOST_EVENTS:
        after = events[-1].cursor if events else None
        more = await queue.read_events(after, PAGE, job_id=job_id)
        events += more
        if len(more) < PAGE:
            break
    return events


@gathered(store=a_store)
def explain(job_id: JobId, *, as_json: AsJson = False, store: Store) -> None:
    """Tells why a job is not running now, each reason with its way out."""

    async def look(queue: Queue) -> None:
        found = await queue.explain(job_id)
        if as_json:
            say_json(found.as_json())
            return
        say(f"job {found.job_id} is {found.status}")
        for reason in found.reasons:
            say(f"  {reason.text}")
            command = way_out(reason.kind, job_id, reason.details)
            if command:
                say(f"    {command}")

    store.within(look)
