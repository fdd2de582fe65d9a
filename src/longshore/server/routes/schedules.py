"""Store, read, preview, pause, run and remove schedules."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.job_options import job_from
from longshore.core.schedule import Schedule, schedule_errors
from longshore.core.tokens import Scope
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.models import schedules as models
from longshore.server.models.jobs import Accepted
from longshore.server.parameters import ScheduleId
from longshore.server.platform import Here, Platform
from longshore.server.problems import refusals
from longshore.server.queue_scoping import check_parents, check_schedule_id
from longshore.server.replays import reject_idempotency_key

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=GuardedRoute)

_NOT_IDEMPOTENT = reject_idempotency_key("a new job", "look for it with GET /v1/jobs?schedule_id=…")
HowMany = Annotated[int, Query(ge=1, le=100, description="The number of times to return.")]


@router.get("", summary="List schedules")
@needs(Scope.READ)
async def list_schedules(here: Here, caller: Calling) -> models.ScheduleList:
    """List all schedules."""
    now = await here.backend.now()
    found = await here.queue.get_schedules()
    return models.ScheduleList.model_construct(
        items=[models.schedule_view(one, now) for one in found if caller.sees(one.job.queue)]
    )


@router.post("/preview", summary="Preview a new schedule")
@needs(Scope.READ)
async def preview_repeat(body: models.RepeatBody, here: Here, count: HowMany = 10) -> models.Times:
    """Return the next occurrences of a schedule that is not stored."""
    return models.Times(items=await here.queue.preview_schedule(body.repeat(), count))


@router.get("/{schedule_id:name}", summary="Get a schedule", responses=refusals(404))
@needs(Scope.READ)
async def get_schedule(schedule_id: ScheduleId, here: Here, caller: Calling) -> models.ScheduleView:
    """Return the schedule."""
    return await _view(here, await _seen(here, caller, schedule_id))


@router.put("/{schedule_id:name}", summary="Create or change a schedule")
@needs(Scope.ADMIN)
async def put_schedule(
    schedule_id: ScheduleId, body: models.SchedulePut, here: Here, caller: Calling
) -> models.ScheduleView:
    """Create or change a schedule. If `repeat` changes, the next occurrence is planned from now."""
    caller.check_queue(body.job.queue)
    await check_schedule_id(here.backend, caller, schedule_id)
    given = body.job.options()
    queue, expires_at = given.pop("queue"), given.pop("expires_after")
    try:
        job = job_from(**given, expires_at=expires_at, queue=queue)
    except InvalidArgument as error:
        raise InvalidArgument(f"job.{error.field}", error.problem) from None
    await check_parents(here.backend, caller, [job])
    schedule = Schedule(id=schedule_id, job=job, repeat=body.repeat.repeat(), paused=bool(body.paused))
    with schedule_errors("schedule_id"):
        stored = await here.queue.put_schedule(schedule, keep_pause=body.paused is None)
    return await _view(here, stored)


@router.delete(
    "/{schedule_id:name}",
    summary="Remove a schedule",
    status_code=204,
    response_class=Response,
    responses=refusals(404),
)
@needs(Scope.ADMIN)
async def remove_schedule(schedule_id: ScheduleId, here: Here, caller: Calling) -> Response:
    """Remove the schedule; its jobs stay."""
    await _seen(here, caller, schedule_id)
    await here.queue.remove_schedule(schedule_id)
    return Response(status_code=204)


@router.get("/{schedule_id:name}/preview", summary="Preview a schedule", responses=refusals(404))
@needs(Scope.READ)
async def preview_schedule(schedule_id: ScheduleId, here: Here, caller: Calling, count: HowMany = 10) -> models.Times:
    """Return the next occurrences of the schedule, within its limit and end."""
    await _seen(here, caller, schedule_id)
    return models.Times(items=await here.queue.preview_schedule(schedule_id, count))


@router.post(
    "/{schedule_id:name}/run",
    summary="Run a schedule now",
    status_code=202,
    response_model=Accepted,
    dependencies=[Depends(_NOT_IDEMPOTENT)],
    responses=refusals(404),
)
@needs(Scope.ADMIN)
async def run_schedule(schedule_id: ScheduleId, here: Here, caller: Calling) -> Response:
    """Enqueue one job of the schedule now. Its planned times do not change.

    Each request enqueues a job, so an Idempotency-Key is refused. After a lost response, look for the job by
    `schedule_id`.
    """
    await _seen(here, caller, schedule_id)
    job = await here.queue.run_schedule(schedule_id)
    made = Accepted(id=job.id, queue=str(job.queue), type=job.type, status=job.status, replayed=False)
    return Response(made.model_dump_json(), 202, media_type="application/json")


@router.post("/{schedule_id:name}/pause", summary="Pause a schedule", responses=refusals(404))
@needs(Scope.ADMIN)
async def pause_schedule(schedule_id: ScheduleId, here: Here, caller: Calling) -> models.ScheduleView:
    """Pause the schedule until you resume it. Its jobs stay."""
    await _seen(here, caller, schedule_id)
    return await _view(here, await here.queue.pause_schedule(schedule_id))


@router.post("/{schedule_id:name}/resume", summary="Resume a schedule", responses=refusals(404))
@needs(Scope.ADMIN)
async def resume_schedule(schedule_id: ScheduleId, here: Here, caller: Calling) -> models.ScheduleView:
    """Resume the schedule at its next occurrence. Occurrences during the pause are skipped."""
    await _seen(here, caller, schedule_id)
    return await _view(here, await here.queue.resume_schedule(schedule_id))


async def _seen(here: Platform, caller: Caller, schedule_id: str) -> Schedule:
    schedule = await here.queue.get_schedule(schedule_id)
    if not caller.sees(schedule.job.queue):
        raise ScheduleNotFound(schedule_id)
    return schedule


async def _view(here: Platform, schedule: Schedule) -> models.ScheduleView:
    return models.schedule_view(schedule, await here.backend.now())
