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
    """What to do, to which jobs."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"action": "cancel", "filter": {"tags": ["eu"]}, "dry_run": True}]},
    )

    action: Literal["cancel", "retry", "promote", "delete"]
    filter: FilterBody = Field(description="At least one condition.")
    dry_run: StrictBool = Field(False, description="Only count.")
    limit: StrictInt = Field(10_000, ge=1, le=MOST, description="Jobs to act upon at most.")


class RetryAllBody(BaseModel):
    """Which dead letters to bring back."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"filter": {"types": ["pay"]}}]})

    filter: FilterBody = Field(
        default_factory=lambda: FilterBody.model_validate({}), description="At least one condition, or else `all`."
    )
    all: StrictBool = Field(False, description="That every dead letter is meant, where the filter has no condition.")
    dry_run: StrictBool = Field(False, description="Only count.")
    reset: StrictBool = Field(True, description="Whether their failures and crashes are counted anew.")
    limit: StrictInt = Field(10_000, ge=1, le=MOST, description="Jobs to bring back at most.")


class BulkAnswer(BaseModel):
    """The result of an operation on all jobs that match a filter."""

    action: str
    dry_run: bool
    matched: int = Field(description="Jobs that match, in a status in which this can be done to them.")
    changed: int = Field(description="Jobs it was done to; fewer if somebody else was first. 0 in a dry run.")
    more: bool = Field(description="Whether more of them match than the limit let through: ask again.")


@router.post("/jobs/bulk", tags=["jobs"], summary="Act on all jobs that match")
@needs(Scope.ADMIN)
async def act_on_jobs(body: BulkBody, here: Here, caller: Calling) -> BulkAnswer:
    """Cancels, retries, promotes or deletes whatever matches and is in a status for it. Try it with `dry_run` first."""
    if body.filter.is_empty:
        raise InvalidArgument("filter", "needs at least one condition, so that no slip of the hand meets every job")
    report = await act_on_all(
        here.queue, body.action, body.filter.filter(caller), most=body.limit, dry_run=body.dry_run, actor=caller.name
    )
    return BulkAnswer(
        action=body.action, dry_run=body.dry_run, matched=report.matched, changed=report.changed, more=report.more
    )


@router.get("/dead-letters", tags=["dead letters"], summary="Jobs that failed for good")
@needs(Scope.READ)
async def list_dead_letters(
    here: Here, caller: Calling, wanted: InAnyStatus, limit: Limit = 100, cursor: Cursor = None
) -> JobPage:
    """Lists DEAD jobs that match every condition, newest first; `status` is not a parameter."""
    dead = wanted.model_copy(update={"statuses": [JobStatus.DEAD]})
    return await page_of(here, dead.filter(caller), limit, cursor)


@router.post("/dead-letters/retry", tags=["dead letters"], summary="Bring dead letters back")
@needs(Scope.ADMIN)
async def retry_dead_letters(here: Here, caller: Calling, body: RetryAllBody | None = None) -> BulkAnswer:
    """Returns all dead jobs that match to their queues, with the caller as the actor; every one with `all`."""
    body = body or RetryAllBody.model_validate({})  # so that a request without a body gets the error below
    if body.filter.is_empty and not body.all:
        raise InvalidArgument("filter", 'needs at least one condition; for every dead letter say {"all": true}')
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
