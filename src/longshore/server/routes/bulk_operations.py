"""Operations on all jobs that match a filter, and on dead letters."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from longshore.core.errors import InvalidArgument
from longshore.core.status import JobStatus
from longshore.core.tokens import Scope
from longshore.runtime.bulk_operations import act_on_all
from longshore.server.auth import Calling, GuardedRoute, needs
from longshore.server.filter_parameters import FilterBody, InAnyStatus
from longshore.server.models.jobs import JobPage
from longshore.server.platform import Here
from longshore.server.routes.jobs import Cursor, Limit, page_of

router = APIRouter(prefix="/v1", route_class=GuardedRoute)

MOST = 100_000


class BulkBody(BaseModel):
    """An action and the jobs it applies to."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"action": "cancel", "filter": {"tags": ["eu"]}, "dry_run": True}]},
    )

    action: Literal["cancel", "retry", "promote", "delete"]
    filter: FilterBody = Field(description="At least one condition.")
    dry_run: StrictBool = Field(False, description="Only count the matching jobs.")
    limit: StrictInt = Field(10_000, ge=1, le=MOST, description="The most jobs to change.")


class RetryAllBody(BaseModel):
    """The dead letters to retry."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"filter": {"types": ["pay"]}}]})

    filter: FilterBody = Field(
        default_factory=lambda: FilterBody.model_validate({}),
        description="At least one condition, unless `all` is true.",
    )
    all: StrictBool = Field(False, description="Retry every dead letter; allows an empty filter.")
    dry_run: StrictBool = Field(False, description="Only count the matching jobs.")
    reset: StrictBool = Field(True, description="Whether to reset the counts of failures and crashes.")
    limit: StrictInt = Field(10_000, ge=1, le=MOST, description="The most jobs to retry.")


class BulkAnswer(BaseModel):
    """The result of an action on all jobs that match a filter."""

    action: str
    dry_run: bool
    matched: int = Field(description="Matching jobs in a status to which the action applies.")
    changed: int = Field(description="Changed jobs; fewer if another process changed some first. 0 in a dry run.")
    more: bool = Field(description="Whether more jobs match than `limit`; if so, send the request again.")


@router.post("/jobs/bulk", tags=["jobs"], summary="Change all jobs that match")
@needs(Scope.ADMIN)
async def act_on_jobs(body: BulkBody, here: Here, caller: Calling) -> BulkAnswer:
    """Cancel, retry, promote or delete all matching jobs whose status allows it. Use `dry_run` to count them first."""
    if body.filter.is_empty:
        raise InvalidArgument("filter", "needs at least one condition, so that no mistake changes every job")
    report = await act_on_all(
        here.queue, body.action, body.filter.filter(caller), most=body.limit, dry_run=body.dry_run, actor=caller.name
    )
    return BulkAnswer(
        action=body.action, dry_run=body.dry_run, matched=report.matched, changed=report.changed, more=report.more
    )


@router.get("/dead-letters", tags=["dead letters"], summary="List dead letters")
@needs(Scope.READ)
async def list_dead_letters(
    here: Here, caller: Calling, wanted: InAnyStatus, limit: Limit = 100, cursor: Cursor = None
) -> JobPage:
    """List the DEAD jobs that match all conditions, newest first. `status` is not a parameter."""
    dead = wanted.model_copy(update={"statuses": [JobStatus.DEAD]})
    return await page_of(here, dead.filter(caller), limit, cursor)


@router.post("/dead-letters/retry", tags=["dead letters"], summary="Retry dead letters")
@needs(Scope.ADMIN)
async def retry_dead_letters(here: Here, caller: Calling, body: RetryAllBody | None = None) -> BulkAnswer:
    """Return all matching dead jobs to their queues, or every dead job with `all`. The caller is the actor."""
    body = body or RetryAllBody.model_validate({})  # so that a request without a body gets the error below
    if body.filter.is_empty and not body.all:
        raise InvalidArgument("filter", 'needs at least one condition; for every dead letter send {"all": true}')
    report = await act_on_all(
        here.queue,
        "retry",
        body.filter.filter(caller),
        most=body.limit,
        dry_run=body.dry_run,
        actor=caller.name,
        reset=body.reset,
    )
    return BulkAnswer(
        action="retry", dry_run=body.dry_run, matched=report.matched, changed=report.changed, more=report.more
    )
