"""`logs`: the log of a job. `events`: the event log of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.inspect import JobId
from longshore.cli.open_store import AsJson, OneQueue, complete_job
from longshore.cli.options import on_store
from longshore.cli.output import flush, print_line, print_model, print_stderr
from longshore.cli.rows import clock, event_line

if TYPE_CHECKING:
    from longshore.core.job import JobEvent, LogEntry
    from longshore.runtime.queue import Queue

_POLL_SECONDS = 1.0
"""Seconds between two reads without a change notification."""
_PAUSE = 0.05
"""Seconds to wait after a notification, so that a busy store is not read continuously."""
_PAGE_SIZE = 500

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new entries.")]
AfterLine = Annotated[int, typer.Option("--after", min=0, help="Only lines after this number.")]
AfterEvent = Annotated[
    str | None, typer.Option("--after", help="Start after this cursor. Default: the oldest event; with -f, now.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of events to show; ignored with -f.")]
JobOption = Annotated[str | None, typer.Option("--job", autocompletion=complete_job, help="Only events of this job.")]
EventName = Annotated[
    list[str] | None, typer.Option("--event", help="Only events of this name, such as job.dead; repeatable.")
]


@on_store()
async def logs(
    queue: Queue, job_id: JobId, *, follow: Follow = False, after: AfterLine = 0, as_json: AsJson = False
) -> None:
    """Print the log of a job; with -f, until the job ends."""
    last = after
    while True:
        final = (await queue.get_job(job_id)).status.final  # read first: no line is written to a final job
        for line in await queue.read_logs(job_id, last):
            _print_log_line(line, as_json)
            last = line.number
        flush()
        if final or not follow:
            return
        await _wait_for_change(queue)


def _print_log_line(line: LogEntry, as_json: bool) -> None:
    if as_json:
        from longshore.server.models.fields import view_of
        from longshore.server.models.jobs import LogLine

        print_model(view_of(LogLine, line))
        return
    first, *more = line.message.splitlines() or [""]
    print_line(f"{clock(line.at)} {line.level:<5} {first}")
    for rest in more:
        print_line(f"    {rest}")


@on_store()
async def events(
    found: Queue,
    follow: Follow = False,
    after: AfterEvent = None,
    limit: Limit = 100,
    queue: OneQueue = None,
    job: JobOption = None,
    event: EventName = None,
    as_json: AsJson = False,
) -> None:
    """Print the event log of the store, oldest first; with --json, one event per line."""
    from longshore.runtime.events import check_event, is_named

    wanted = {check_event(name) for name in event or []}
    place = after
    if follow and place is None:
        place = await found.backend.end_of_events()
    printed = 0
    while follow or printed < limit:
        some, reached = await look(found, place, queue, job)
        for one in some:
            if follow or printed < limit:
                place = one.cursor
                if not wanted or any(is_named(one, name) for name in wanted):
                    _print_event(one, as_json)
                    printed += 1
        flush()
        if len(some) < _PAGE_SIZE:
            if not follow:
                return
            place = reached
            await _wait_for_change(found, place)
    print_stderr(f"next page: --after {place}")


async def look(
    found: Queue, place: str | None, queue: str | None, job: str | None
) -> tuple[list[JobEvent], str | None]:
    """Return the next events and the cursor up to which the log was read."""
    some = await found.read_events(place, _PAGE_SIZE, queue=queue, job_id=job)
    if some:
        return some, some[-1].cursor
    # advance past events that the filters exclude; otherwise each of them would wake the follower again
    end = await found.backend.end_of_events()
    some = await found.read_events(place, _PAGE_SIZE, queue=queue, job_id=job)
    return some, some[-1].cursor if some else end


async def _wait_for_change(queue: Queue, after: str | None = None) -> None:
    import asyncio

    await queue.wait_for_change(_POLL_SECONDS, after)
    await asyncio.sleep(_PAUSE)


def _print_event(event: JobEvent, as_json: bool) -> None:
    if as_json:
        from longshore.server.models.events import event_view

        print_model(event_view(event))
    else:
        print_line(event_line(event))
