"""Who did what: those lines of the durable log that somebody signed for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from longshore.core.job import JobEvent
from longshore.core.tokens import Scope
from longshore.core.validation import check_name
from longshore.server.access import Calling, GuardedRoute, needs
from longshore.server.log_pages import page_of_log
from longshore.server.models.events import EventPage
from longshore.server.models.fields import Name
from longshore.server.models.problems import refusals
from longshore.server.platform import Here
from longshore.server.routes.events import After, Limit

router = APIRouter(prefix="/v1", tags=["events"], route_class=GuardedRoute)


@router.get(
    "/audit", operation_id="read_audit", summary="Who did what", response_model=EventPage, responses=refusals(410)
)
@needs(Scope.READ)
async def read_audit(
    here: Here,
    caller: Calling,
    after: After = None,
    limit: Limit = 100,
    actor: Annotated[Name | None, Query(description="Only what this one did.")] = None,
    queue: Annotated[Name | None, Query(description="Only of this queue.")] = None,
) -> EventPage:
    """Events with an `actor`, oldest first. A page may be short and not the last: ask on while `next_cursor` moves."""
    who = None if actor is None else check_name("actor", actor)
    only = None if queue is None else caller.check_queue(check_name("queue", queue))

    def passes(event: JobEvent) -> bool:
        return bool(event.actor) and who in (None, event.actor) and caller.sees(event.queue)

    return await page_of_log(here.backend, after, limit, queue=only, passes=passes)
