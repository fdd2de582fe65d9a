"""The status page: what stands where, for a person with a browser; it needs no script."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus
from longshore.core.tokens import Scope
from longshore.server.access import Calling, GuardedRoute, needs
from longshore.server.names_in_paths import root_of
from longshore.server.pages.rendering import page
from longshore.server.pages.status import status_of
from longshore.server.platform import Here

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_SHOWN = 20


@router.get("/", operation_id="status_page", response_class=HTMLResponse)
@needs(Scope.READ)
async def status_page(request: Request, here: Here, caller: Calling) -> HTMLResponse:
    """Queues, counts, the latest and the failed jobs, workers."""
    queues = [info for info in await here.backend.list_queues() if caller.sees(info.name)]
    theirs = caller.queues_among(())
    latest = await here.backend.list_jobs(JobFilter(queues=theirs), limit=_SHOWN)
    failed = await here.backend.list_jobs(
        JobFilter(queues=theirs, statuses=(JobStatus.DEAD, JobStatus.FAILED_RETRY)), limit=_SHOWN
    )
    workers = [worker for worker in await here.backend.list_workers() if caller.owns(worker.queues)]
    now = await here.backend.now()
    signed_in = caller.name if getattr(request.state, "signed_in", False) else ""
    shown = status_of(queues, latest.items, failed.items, workers, now)
    return page("status.html", {**shown, "signed_in": signed_in, "root": root_of(request)})
