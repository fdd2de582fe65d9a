"""The event log in pages and as streams, and the audit log."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request

from longshore.core.errors import InvalidArgument
from longshore.core.job import JobEvent
from longshore.core.tokens import Scope
from longshore.core.validation import check_name
from longshore.runtime.events import EVERY, check_event
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.event_tail import Wanted, page_of_log
from longshore.server.models.events import EventPage
from longshore.server.models.fields import Name
from longshore.server.parameters import JobId
from longshore.server.platform import Here, Platform
from longshore.server.problems import refusals
from longshore.server.sse import MEDIA_TYPE, EventStream

router = APIRouter(prefix="/v1", tags=["events"], route_class=GuardedRoute)

After = Annotated[str | None, Query(max_length=1_000, description="A cursor. Default: the start of the log.")]
Limit = Annotated[int, Query(ge=1, le=1_000, description="The most events on a page.")]
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=1_000, description="The cursor to resume from; browsers send it."),
]
Since = Annotated[
    str | None, Query(max_length=1_000, description="The cursor to start from, if there is no Last-Event-ID.")
]
OnlyNamed = Annotated[list[str] | None, Query(max_length=50, description="Only events with these names.")]
WithJobs = Annotated[
    bool, Query(description="Load the job of job.added and job.active, and the result of job.completed, into `detail`.")
]
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "A stream that stays open.", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}
}


@router.get("/events", summary="Read the event log", responses=refusals(410))
@needs(Scope.READ)
async def read_events(
    here: Here,
    caller: Calling,
    after: After = None,
    limit: Limit = 100,
    queue: Annotated[Name | None, Query(description="Only events of this queue.")] = None,
    job_id: Annotated[Name | None, Query(description="Only events of this job.")] = None,
) -> EventPage:
    """Return events after a cursor, oldest first. No event is skipped, even if it was committed late.

    Continue with `next_cursor`, now or later. You are at the end when it equals the cursor you sent. If your token is
    limited to several queues, a page may be short although more events follow.
    """
    wanted = await _wanted(here, caller, queue, job_id, None)
    passes = None if wanted.queues is None or wanted.only_queue is not None else wanted.has
    return await page_of_log(here.backend, after, limit, queue=wanted.only_queue, job_id=job_id, passes=passes)


@router.get(
    "/events/stream",
    summary="Stream the event log",
    response_class=EventStream,
    status_code=200,
    responses={**refusals(410), **_STREAM},
)
@needs(Scope.READ)
async def stream_events(
    request: Request,
    here: Here,
    caller: Calling,
    queue: Annotated[Name | None, Query(description="Only events of this queue.")] = None,
    job_id: Annotated[Name | None, Query(description="Only events of this job.")] = None,
    event: OnlyNamed = None,
    jobs: WithJobs = False,
    after: Since = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Stream server-sent events from now on, or from a cursor. Each `id` is a cursor."""
    wanted = dataclasses.replace(await _wanted(here, caller, queue, job_id, event), jobs=jobs)
    return await _stream(request, here, last_event_id, after, wanted)


@router.get("/jobs/{job_id:name}/events", summary="Get the events of a job", responses=refusals(404, 410))
@needs(Scope.READ)
async def get_history(job_id: JobId, here: Here, caller: Calling, after: After = None, limit: Limit = 100) -> EventPage:
    """Return the events of a job, oldest first."""
    await here.job(caller, job_id)
    passes = (
        None if caller.queues is None else lambda event: caller.sees(event.queue)
    )  # the id may have belonged to a job in another queue
    return await page_of_log(here.backend, after, limit, job_id=job_id, passes=passes)


@router.get(
    "/jobs/{job_id:name}/events/stream",
    summary="Stream the events of a job",
    response_class=EventStream,
    status_code=200,
    responses={**refusals(404, 410), **_STREAM},
)
@needs(Scope.READ)
async def stream_job(
    job_id: JobId, request: Request, here: Here, caller: Calling, after: Since = None, last_event_id: LastEventId = None
) -> EventStream:
    """Stream the events of a job from its first event, or from a cursor, and then as they happen."""
    await here.job(caller, job_id)
    return await _stream(request, here, last_event_id, after, Wanted(caller.queues, job_id), whole=True)


async def _wanted(
    here: Platform, caller: Caller, queue: str | None, job_id: str | None, names: list[str] | None
) -> Wanted:
    if job_id is not None:
        check_name("job_id", job_id)
        await here.check_job(caller, job_id)
    queues = caller.queues if queue is None else frozenset({caller.check_queue(check_name("queue", queue))})
    wanted = None if not names or EVERY in names else frozenset(check_event(name) for name in names)
    return Wanted(queues, job_id, wanted)


async def _stream(
    request: Request, here: Platform, last_id: str | None, after: str | None, wanted: Wanted, *, whole: bool = False
) -> EventStream:
    cursor = last_id or after
    if cursor:
        try:
            await here.backend.read_events(cursor, 1)  # raises CursorExpired before the stream begins
        except InvalidArgument as error:
            raise InvalidArgument("Last-Event-ID" if last_id else "after", error.problem) from None
    with here.open_stream():
        return EventStream(request, here, cursor or None, wanted, whole=whole)


@router.get("/audit", summary="Read the audit log", responses=refusals(410))
@needs(Scope.READ)
async def read_audit(
    here: Here,
    caller: Calling,
    after: After = None,
    limit: Limit = 100,
    actor: Annotated[Name | None, Query(description="Only events of this actor.")] = None,
    queue: Annotated[Name | None, Query(description="Only events of this queue.")] = None,
) -> EventPage:
    """Return events with an `actor`, oldest first. A page may be short: continue while `next_cursor` changes."""
    who = None if actor is None else check_name("actor", actor)
    only = None if queue is None else caller.check_queue(check_name("queue", queue))

    def passes(event: JobEvent) -> bool:
        return bool(event.actor) and who in (None, event.actor) and caller.sees(event.queue)

    return await page_of_log(here.backend, after, limit, queue=only, passes=passes)
