"""Jobs looked at and acted upon, one by one."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool
from starlette.responses import Response

from longshore.backends.base import Page
from longshore.core.explain import explanation_of
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.tokens import Scope
from longshore.core.validation import LARGE
from longshore.runtime.bulk_operations import cancel_one, delete_one
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.filter_parameters import AskedFor
from longshore.server.long_poll import until_over
from longshore.server.models.jobs import (
    ExplanationView,
    JobPage,
    JobSummary,
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
from longshore.server.queue_scoping.operations import facts_for
from longshore.server.redaction import told_of
from longshore.server.response_limits import beside_the_loop

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=GuardedRoute)

Cursor = Annotated[str | None, Query(max_length=1_000, description="From `next_cursor` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="Jobs on a page.")]


class RetryBody(BaseModel):
    """How to bring a dead job back."""

    model_config = ConfigDict(extra="forbid")

    reset: StrictBool = Field(True, description="Whether its failures and crashes are counted anew.")


@router.get("", operation_id="list_jobs", summary="List jobs", response_model=JobPage, responses=refusals())
@needs(Scope.READ)
async def list_jobs(
    here: Here,
    caller: Calling,
    wanted: AskedFor,
    limit: Limit = 100,
    cursor: Cursor = None,
    order: Annotated[Literal["newest", "oldest"], Query()] = "newest",
    due: Annotated[
        bool | None, Query(description="Of jobs that can start: only those whose time has come, or not.")
    ] = None,
) -> JobPage:
    """Jobs that match every condition given. A cursor stays good whatever comes or goes meanwhile."""
    return await page_of(here, wanted.filter(caller), limit, cursor, oldest_first=order == "oldest", due=due)


@router.get(
    "/{job_id:name}", operation_id="get_job", summary="Show a job", response_model=JobView, responses=refusals(404)
)
@needs(Scope.READ)
async def get_job(
    job_id: JobId,
    request: Request,
    here: Here,
    caller: Calling,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for its end, if it is not over.")] = 0,
) -> JobView | Response:
    """All that is known of it. With `wait` the answer comes when the job is over, or the time is."""
    job = await here.job(caller, job_id)
    if wait and not job.status.final:
        job = await until_over(here, job, min(wait, here.options.longest_wait))
        await request.app.state.gate.admit(request)  # whoever waited may have lost their token meanwhile
        caller.check_job(job)  # and its id may have become another's
    return await _shown(here, job)


@router.delete(
    "/{job_id:name}",
    operation_id="delete_job",
    summary="Remove a job",
    status_code=204,
    response_class=Response,
    responses=refusals(404, 409),
)
@needs(Scope.ADMIN)
async def delete_job(job_id: JobId, here: Here, caller: Calling) -> Response:
    """Removes a job that is over, for good. One that waits or runs is refused: cancel it first."""
    await here.check_job(caller, job_id)
    await delete_one(here.queue, job_id)
    return Response(status_code=204)


@router.post(
    "/{job_id:name}/cancel",
    operation_id="cancel_job",
    summary="Call a job off",
    response_model=JobView,
    responses=refusals(404, 409),
)
@needs(Scope.SUBMIT)
async def cancel_job(job_id: JobId, here: Here, caller: Calling) -> JobView | Response:
    """Ends it if nobody runs it, and asks for its end if somebody does (CANCELLING). One that is over is refused.

    Whoever has not the scope `read` is told its id, queue, type, status and key; all else reads as if there were none.
    """
    await here.check_job(caller, job_id)
    return await _shown(here, told_of(caller, caller.check_job(await cancel_one(here.queue, job_id))))


@router.post(
    "/{job_id:name}/retry",
    operation_id="retry_job",
    summary="Bring a dead job back",
    response_model=JobView,
    responses=refusals(404, 409),
)
@needs(Scope.ADMIN)
async def retry_job(job_id: JobId, here: Here, caller: Calling, body: RetryBody | None = None) -> JobView | Response:
    """DEAD back to its queue, recorded with who asked for it."""
    await here.check_job(caller, job_id)
    await here.queue.retry_job(job_id, reset=body is None or body.reset, actor=caller.name)
    return await _now(here, caller, job_id)


@router.post(
    "/{job_id:name}/promote",
    operation_id="promote_job",
    summary="Let a job run now",
    response_model=JobView,
    responses=refusals(404, 409),
)
@needs(Scope.ADMIN)
async def promote_job(job_id: JobId, here: Here, caller: Calling) -> JobView | Response:
    """A job that waits for its time need not wait any longer."""
    await here.check_job(caller, job_id)
    await here.queue.promote_job(job_id)
    return await _now(here, caller, job_id)


@router.get(
    "/{job_id:name}/explain",
    operation_id="explain_job",
    summary="Why is it not running?",
    response_model=ExplanationView,
    responses=refusals(404),
)
@needs(Scope.READ)
async def explain_job(job_id: JobId, here: Here, caller: Calling) -> ExplanationView:
    """Who or what is in its way now, each reason with its way out."""
    await here.check_job(caller, job_id)
    if caller.queues is None:
        found = await here.queue.explain(job_id)
    else:
        found = explanation_of(await facts_for(here.backend, caller, await here.backend.facts_about(job_id)))
    return ExplanationView.model_validate(found.as_json())


@router.get(
    "/{job_id:name}/progress",
    operation_id="get_progress",
    summary="How far is it?",
    response_model=ProgressView,
    responses=refusals(404),
)
@needs(Scope.READ)
async def get_progress(job_id: JobId, here: Here, caller: Calling) -> ProgressView:
    """What the job said last of how far it is."""
    job = await here.job(caller, job_id)
    shown = summary(job, await here.backend.now())
    return ProgressView.model_construct(
        status=shown.status, state=shown.state, progress=shown.progress, executions=shown.executions
    )


@router.get(
    "/{job_id:name}/logs",
    operation_id="get_logs",
    summary="What it wrote",
    response_model=LogLines,
    responses=refusals(404),
)
@needs(Scope.READ)
async def get_logs(
    job_id: JobId,
    here: Here,
    caller: Calling,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only lines with a greater number.")] = 0,
) -> LogLines:
    """The lines of its log."""
    await here.check_job(caller, job_id)
    lines = await here.queue.read_logs(job_id, after)
    if not lines:
        await here.job(caller, job_id)  # JobNotFound, rather than an empty log of nothing
    return LogLines(
        items=[LogLine(number=line.number, at=line.at, level=line.level, message=line.message) for line in lines]
    )


async def page_of(
    here: Platform,
    wanted: JobFilter,
    limit: int,
    cursor: str | None,
    *,
    oldest_first: bool = False,
    due: bool | None = None,
) -> JobPage:
    """One page of them, without what they carry: of that little is in memory at once."""
    now = await here.backend.now()

    async def look(most: int, after: str | None) -> Page:
        return await here.backend.list_jobs(wanted, limit=most, cursor=after, oldest_first=oldest_first, due=due)

    def told(job: Job) -> JobSummary:
        return summary(job, now)

    items, following = await here.heaviest.told_of_each(look, limit, list(wanted.queues) or None, told, cursor)
    return JobPage.model_construct(items=items, next_cursor=following)


async def _now(here: Platform, caller: Caller, job_id: str) -> JobView | Response:
    return await _shown(here, await here.job(caller, job_id))


async def _shown(here: Platform, job: Job) -> JobView | Response:
    now = await here.backend.now()
    if len(job.payload) + len(job.result or b"") < LARGE:
        return view(job, now)
    return Response(await beside_the_loop(written_view, job, now), media_type="application/json")
