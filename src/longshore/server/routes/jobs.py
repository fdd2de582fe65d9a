"""Operations on one job, and lists of jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool
from starlette.responses import Response

from longshore.core.explain import explanation_of
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.tokens import Scope
from longshore.core.validation import LARGE
from longshore.runtime.bulk_operations import cancel_one, delete_one
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.filter_parameters import QueryFilter
from longshore.server.long_poll import until_final
from longshore.server.models.fields import view_of
from longshore.server.models.jobs import (
    ExplanationView,
    JobPage,
    JobView,
    LogLine,
    LogLines,
    ProgressView,
    summary,
    view,
    written_view,
)
from longshore.server.options import MOST_PER_PAGE
from longshore.server.parameters import JobId
from longshore.server.platform import Here, Platform
from longshore.server.problems import refusals
from longshore.server.queue_scoping import facts_for, redact
from longshore.server.response_limits import run_in_thread

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=GuardedRoute)

Cursor = Annotated[str | None, Query(max_length=1_000, description="The `next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="The most jobs on a page.")]


class RetryBody(BaseModel):
    """The options of a retry."""

    model_config = ConfigDict(extra="forbid")

    reset: StrictBool = Field(True, description="Whether to reset the counts of failures and crashes.")


@router.get("", summary="List jobs")
@needs(Scope.READ)
async def list_jobs(
    here: Here,
    caller: Calling,
    wanted: QueryFilter,
    limit: Limit = 100,
    cursor: Cursor = None,
    order: Annotated[Literal["newest", "oldest"], Query()] = "newest",
    due: Annotated[bool | None, Query(description="Only waiting jobs that are due (true) or delayed (false).")] = None,
) -> JobPage:
    """List the jobs that match all conditions. A cursor stays valid while jobs are added and removed."""
    return await page_of(here, wanted.filter(caller), limit, cursor, oldest_first=order == "oldest", due=due)


@router.get("/{job_id:name}", summary="Get a job", response_model=JobView, responses=refusals(404))
@needs(Scope.READ)
async def get_job(
    job_id: JobId,
    request: Request,
    here: Here,
    caller: Calling,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait until the job is final.")] = 0,
) -> JobView | Response:
    """Return the job with its data and result. With `wait`, respond when the job is final or the time has passed."""
    job = await here.job(caller, job_id)
    if wait and not job.status.final:
        job = await until_final(here, job, min(wait, here.options.longest_wait))
        await request.app.state.gate.admit(request)  # the token may have been revoked meanwhile
        caller.check_job(job)  # another job may have the id now
    return await _shown(here, job)


@router.delete(
    "/{job_id:name}", summary="Delete a job", status_code=204, response_class=Response, responses=refusals(404, 409)
)
@needs(Scope.ADMIN)
async def delete_job(job_id: JobId, here: Here, caller: Calling) -> Response:
    """Delete a final job permanently. A job that is not final is refused with 409; cancel it first."""
    await here.check_job(caller, job_id)
    await delete_one(here.queue, job_id)
    return Response(status_code=204)


@router.post("/{job_id:name}/cancel", summary="Cancel a job", response_model=JobView, responses=refusals(404, 409))
@needs(Scope.SUBMIT)
async def cancel_job(job_id: JobId, here: Here, caller: Calling) -> JobView | Response:
    """Cancel a waiting job, or ask a running job to stop (CANCELLING). A final job is refused with 409.

    A caller without the scope `read` gets the id, queue, type, status and key; the other fields are empty.
    """
    await here.check_job(caller, job_id)
    return await _shown(here, redact(caller, caller.check_job(await cancel_one(here.queue, job_id))))


@router.post("/{job_id:name}/retry", summary="Retry a dead job", response_model=JobView, responses=refusals(404, 409))
@needs(Scope.ADMIN)
async def retry_job(job_id: JobId, here: Here, caller: Calling, body: RetryBody | None = None) -> JobView | Response:
    """Return a DEAD job to its queue. The event log records the caller as the actor."""
    await here.check_job(caller, job_id)
    await here.queue.retry_job(job_id, reset=body is None or body.reset, actor=caller.name)
    return await _now(here, caller, job_id)


@router.post(
    "/{job_id:name}/promote", summary="Make a job due now", response_model=JobView, responses=refusals(404, 409)
)
@needs(Scope.ADMIN)
async def promote_job(job_id: JobId, here: Here, caller: Calling) -> JobView | Response:
    """Make a delayed job due now."""
    await here.check_job(caller, job_id)
    await here.queue.promote_job(job_id)
    return await _now(here, caller, job_id)


@router.get("/{job_id:name}/explain", summary="Explain why a job is not running", responses=refusals(404))
@needs(Scope.READ)
async def explain_job(job_id: JobId, here: Here, caller: Calling) -> ExplanationView:
    """Return every reason why the job is not running, each with a remedy."""
    await here.check_job(caller, job_id)
    if caller.queues is None:
        found = await here.queue.explain(job_id)
    else:
        found = explanation_of(await facts_for(here.backend, caller, await here.backend.facts_about(job_id)))
    return ExplanationView.model_validate(found.as_json())


@router.get("/{job_id:name}/progress", summary="Get the progress of a job", responses=refusals(404))
@needs(Scope.READ)
async def get_progress(job_id: JobId, here: Here, caller: Calling) -> ProgressView:
    """Return the progress that the job reported last."""
    job = await here.job(caller, job_id)
    return view_of(ProgressView, summary(job, await here.backend.now()))


@router.get("/{job_id:name}/logs", summary="Get the log of a job", responses=refusals(404))
@needs(Scope.READ)
async def get_logs(
    job_id: JobId,
    here: Here,
    caller: Calling,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only lines after this number.")] = 0,
) -> LogLines:
    """Return the lines of the job's log."""
    await here.check_job(caller, job_id)
    lines = await here.queue.read_logs(job_id, after)
    if not lines:
        await here.job(caller, job_id)  # JobNotFound instead of an empty log
    return LogLines(items=[view_of(LogLine, line) for line in lines])


async def page_of(
    here: Platform,
    wanted: JobFilter,
    limit: int,
    cursor: str | None,
    *,
    oldest_first: bool = False,
    due: bool | None = None,
) -> JobPage:
    """Return a page of jobs without payloads and results, reading few of those into memory at once."""
    now = await here.backend.now()
    look = partial(here.backend.list_jobs, wanted, oldest_first=oldest_first, due=due)
    items, following = await here.job_sizes.map_page(
        look, limit, list(wanted.queues) or None, lambda job: summary(job, now), cursor
    )
    return JobPage.model_construct(items=items, next_cursor=following)


async def _now(here: Platform, caller: Caller, job_id: str) -> JobView | Response:
    return await _shown(here, await here.job(caller, job_id))


async def _shown(here: Platform, job: Job) -> JobView | Response:
    now = await here.backend.now()
    if len(job.payload) + len(job.result or b"") < LARGE:
        return view(job, now)
    return Response(await run_in_thread(written_view, job, now), media_type="application/json")
