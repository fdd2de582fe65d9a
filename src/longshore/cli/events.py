"""`logs` of a job, and `events` of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.inspect import JobId
from longshore.cli.open_store import AsJson, OneQueue, complete_job
from longshore.cli.options import on_store
from longshore.cli.output import complain, flush, say, say_model
from longshore.cli.rows import clock, event_line

if TYPE_CHECKING:
    from longshore.core.job import JobEvent, LogEntry
    from longshore.runtime.queue import Queue

_PATIENCE = 1.0
"""Seconds between two looks when nothing is heard."""
_PAUSE = 0.05
"""Seconds between two looks at a store that is busy with other things."""
_AT_ONCE = 500

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for new entries and print them.")]
AfterLine = Annotated[int, typer.Option("--after", min=0, help="Only lines after this number.")]
AfterEvent = Annotated[
    str | None, typer.Option("--after", help="Begin after this cursor; else at the start, or with -f now.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Events to show; with -f there is no end.")]
JobOption = Annotated[str | None, typer.Option("--job", autocompletion=complete_job, help="Only of this job.")]
EventName = Annotated[
    list[str] | None, typer.Option("--event", help="Only events of this name, like job.dead; may be given many times.")
]


@on_store()
async def logs(
    queue: Queue, job_id: JobId, *, follow: Follow = False, after: AfterLine = 0, as_json: AsJson = False
) -> None:
    """Prints the log of a job; with -f until the job ends."""
    last = after
    while True:
        over = (await queue.get_job(job_id)).status.final  # asked first: nothing is written after the end
        for line in await queue.read_logs(job_id, last):
            _tell_line(line, as_json)
            last = line.number
        flush()
        if over or not follow:
            return
        await _something_new(queue)


def _tell_line(line: LogEntry, as_json: bool) -> None:
    if as_json:
        from longshore.server.models.fields import view_of
        from longshore.server.models.jobs import LogLine

        say_model(view_of(LogLine, line))
        return
    first, *more = line.message.splitlines() or [""]
    say(f"{clock(line.at)} {line.level:<5} {first}")
    for rest in more:
        say(f"    {rest}")


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
    """Prints the durable log of all that happened; as JSON one event on each line."""
    from longshore.runtime.events import check_event, is_named

    wanted = {check_event(name) for name in event or []}
    place = after
    if follow and place is None:
        place = await found.backend.end_of_events()
    told = 0
    while follow or told < limit:
        some, reached = await look(found, place, queue, job)
        for one in some:
            if follow or told < limit:
                place = one.cursor
                if not wanted or any(is_named(one, name) for name in wanted):
                    _tell_event(one, as_json)
                    told += 1
        flush()
        if len(some) < _AT_ONCE:
            if not follow:
                return
            place = reached
            await _something_new(found, place)
    complain(f"more, perhaps: --after {place}")


async def look(
    found: Queue, place: str | None, queue: str | None, job: str | None
) -> tuple[list[JobEvent], str | None]:
    """The next events, and up to where the log was looked through for them."""
    some = await found.read_events(place, _AT_ONCE, queue=queue, job_id=job)
    if some:
        return some, some[-1].cursor
    # what others did is behind us from now on, or it would wake us again and again
    end = await found.backend.end_of_events()
    some = await found.read_events(place, _AT_ONCE, queue=queue, job_id=job)
    return some, some[-1].cursor if some else end


async def _something_new(queue: Queue, after: str | None = None) -> None:
    import asyncio

    await queue.wait_for_change(_PATIENCE, after)
    await asyncio.sleep(_PAUSE)


def _tell_event(event: JobEvent, as_json: bool) -> None:
    if as_json:
        from longshore.server.models.events import event_view

        say_model(event_view(event))
    else:
        say(event_line(event))
