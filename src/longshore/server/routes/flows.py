"""Flows: read, cancel, retry and rerun the jobs of a flow together."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

from longshore.app.flows import no_such_flow
from longshore.core.flows import drawing, status_of_flow
from longshore.core.job import Job
from longshore.core.tokens import Scope
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.models.jobs import FlowView, flow_view
from longshore.server.parameters import FlowId
from longshore.server.platform import Here, Platform
from longshore.server.problems import refusals
from longshore.server.replays import reject_idempotency_key

router = APIRouter(prefix="/v1/flows", tags=["flows"], route_class=GuardedRoute)

_NOT_IDEMPOTENT = reject_idempotency_key("a new flow", "look for its steps with GET /v1/jobs?type=…")


class Touched(BaseModel):
    """The ids of the changed jobs."""

    job_ids: list[str]


class NewFlow(BaseModel):
    """The id of the new flow."""

    id: str


@router.get("/{flow_id:name}", summary="Get a flow", responses=refusals(404))
@needs(Scope.READ)
async def get_flow(flow_id: FlowId, here: Here, caller: Calling) -> FlowView:
    """Return the state of the flow and of every step."""
    return flow_view(status_of_flow(flow_id, await _steps(here, caller, flow_id)))


@router.get("/{flow_id:name}/drawing", summary="Draw a flow", response_class=PlainTextResponse, responses=refusals(404))
@needs(Scope.READ)
async def draw_flow(flow_id: FlowId, here: Here, caller: Calling) -> PlainTextResponse:
    """Return the flow with its statuses as a Mermaid chart."""
    return PlainTextResponse(drawing(await _steps(here, caller, flow_id)))


@router.post("/{flow_id:name}/cancel", summary="Cancel a flow", responses=refusals(404))
@needs(Scope.SUBMIT)
async def cancel_flow(flow_id: FlowId, here: Here, caller: Calling) -> Touched:
    """Cancel every step that is not final, in one transaction."""
    await _steps(here, caller, flow_id)
    return Touched(job_ids=await here.harbor.get_flow(flow_id).cancel())


@router.post("/{flow_id:name}/retry", summary="Retry the dead steps of a flow", responses=refusals(404))
@needs(Scope.ADMIN)
async def retry_flow(flow_id: FlowId, here: Here, caller: Calling) -> Touched:
    """Return DEAD steps to their queues; steps that wait for them continue."""
    await _steps(here, caller, flow_id)
    return Touched(job_ids=await here.harbor.get_flow(flow_id).retry(actor=caller.name))


@router.post(
    "/{flow_id:name}/rerun",
    summary="Rerun the unfinished steps of a flow",
    status_code=202,
    dependencies=[Depends(_NOT_IDEMPOTENT)],
    responses=refusals(404, 409),
)
@needs(Scope.ADMIN)
async def rerun_flow(flow_id: FlowId, here: Here, caller: Calling) -> NewFlow:
    """Create a flow from the steps that did not complete. It uses the results of the completed steps.

    Each request creates a flow, so an Idempotency-Key is refused. After a lost response, look for the new steps.
    """
    await _steps(here, caller, flow_id)
    return NewFlow(id=(await here.harbor.get_flow(flow_id).rerun()).id)


async def _steps(here: Platform, caller: Caller, flow_id: str) -> list[Job]:
    """Return all steps of the flow; a caller without access to all of their queues does not see the flow."""
    steps = await here.harbor.get_flow(flow_id).steps()
    if not all(caller.sees(step.queue) for step in steps):
        raise no_such_flow(flow_id)
    return steps
