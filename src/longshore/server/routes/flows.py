"""Flows: reads, cancels, retries and reruns the jobs of a flow as one."""

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

_MAKES_ONE_MORE = reject_idempotency_key(
    "one more flow", "look for its steps with GET /v1/jobs?type=… before you repeat it"
)


class Touched(BaseModel):
    """The jobs that were acted upon."""

    job_ids: list[str]


class NewFlow(BaseModel):
    """A flow that was made."""

    id: str


@router.get("/{flow_id:name}", summary="Show a flow", responses=refusals(404))
@needs(Scope.READ)
async def get_flow(flow_id: FlowId, here: Here, caller: Calling) -> FlowView:
    """Returns the status of every step."""
    return flow_view(status_of_flow(flow_id, await _steps(here, caller, flow_id)))


@router.get("/{flow_id:name}/drawing", summary="Draw a flow", response_class=PlainTextResponse, responses=refusals(404))
@needs(Scope.READ)
async def draw_flow(flow_id: FlowId, here: Here, caller: Calling) -> PlainTextResponse:
    """The flow with its statuses as a Mermaid chart."""
    return PlainTextResponse(drawing(await _steps(here, caller, flow_id)))


@router.post("/{flow_id:name}/cancel", summary="Call a flow off", responses=refusals(404))
@needs(Scope.SUBMIT)
async def cancel_flow(flow_id: FlowId, here: Here, caller: Calling) -> Touched:
    """Cancels every step that is not final, in one transaction."""
    await _steps(here, caller, flow_id)
    return Touched(job_ids=await here.harbor.get_flow(flow_id).cancel())


@router.post("/{flow_id:name}/retry", summary="Retry a flow's dead steps", responses=refusals(404))
@needs(Scope.ADMIN)
async def retry_flow(flow_id: FlowId, here: Here, caller: Calling) -> Touched:
    """Returns DEAD steps to their queues; steps that wait for them continue."""
    await _steps(here, caller, flow_id)
    return Touched(job_ids=await here.harbor.get_flow(flow_id).retry(actor=caller.name))


@router.post(
    "/{flow_id:name}/rerun",
    summary="Run a flow's open steps anew",
    status_code=202,
    dependencies=[Depends(_MAKES_ONE_MORE)],
    responses=refusals(404, 409),
)
@needs(Scope.ADMIN)
async def rerun_flow(flow_id: FlowId, here: Here, caller: Calling) -> NewFlow:
    """Makes a new flow of the steps that did not complete; it takes the results of the others from this one.

    Sent twice it makes two, so an Idempotency-Key is refused: after a lost answer look for the new steps.
    """
    await _steps(here, caller, flow_id)
    return NewFlow(id=(await here.harbor.get_flow(flow_id).rerun()).id)


async def _steps(here: Platform, caller: Caller, flow_id: str) -> list[Job]:
    """All steps of the flow; a caller that may not see one of their queues does not see the flow."""
    steps = await here.harbor.get_flow(flow_id).steps()
    if not all(caller.sees(step.queue) for step in steps):
        raise no_such_flow(flow_id)
    return steps
