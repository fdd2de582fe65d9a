"""Queues: looked at, paused, resumed and limited."""

from __future__ import annotations

from fastapi import APIRouter

from longshore.core.tokens import Scope
from longshore.core.validation import check_name
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.models.queues import LimitsChange, QueueList, QueueView, empty_queue, queue_view
from longshore.server.parameters import QueueName
from longshore.server.platform import Here, Platform
from longshore.server.problems import refusals

router = APIRouter(prefix="/v1/queues", tags=["queues"], route_class=GuardedRoute)


@router.get("", operation_id="list_queues", summary="List queues", response_model=QueueList, responses=refusals())
@needs(Scope.READ)
async def list_queues(here: Here, caller: Calling) -> QueueList:
    """Every queue that has jobs or settings."""
    found = await here.backend.list_queues()
    return QueueList(items=[queue_view(info) for info in found if caller.sees(info.name)])


@router.get(
    "/{queue:name}", operation_id="get_queue", summary="Show a queue", response_model=QueueView, responses=refusals()
)
@needs(Scope.READ)
async def get_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """A queue exists as soon as it is named: one that nobody has used yet is empty."""
    return await _shown(here, caller, queue)


@router.post(
    "/{queue:name}/pause",
    operation_id="pause_queue",
    summary="Pause a queue",
    response_model=QueueView,
    responses=refusals(),
)
@needs(Scope.ADMIN)
async def pause_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Nothing of it starts until it is resumed, in any process; what runs goes on.

    Any name is a queue: one that nobody has used yet is paused as well, so mind the spelling.
    """
    await here.queue.pause_queue(caller.check_queue(queue))
    return await _shown(here, caller, queue)


@router.post(
    "/{queue:name}/resume",
    operation_id="resume_queue",
    summary="Resume a queue",
    response_model=QueueView,
    responses=refusals(),
)
@needs(Scope.ADMIN)
async def resume_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Undoes a pause."""
    await here.queue.resume_queue(caller.check_queue(queue))
    return await _shown(here, caller, queue)


@router.patch(
    "/{queue:name}/limits",
    operation_id="set_limits",
    summary="Limit a queue",
    response_model=QueueView,
    responses=refusals(),
)
@needs(Scope.ADMIN)
async def set_limits(queue: QueueName, body: LimitsChange, here: Here, caller: Calling) -> QueueView:
    """How many of its jobs may run at once, in all and of each key, and how often they may start."""
    await here.queue.set_limits(caller.check_queue(queue), **body.told())
    return await _shown(here, caller, queue)


async def _shown(here: Platform, caller: Caller, queue: str) -> QueueView:
    name = caller.check_queue(check_name("queue", queue))
    found = await here.backend.list_queues()
    return queue_view(next((info for info in found if info.name == name), empty_queue(name)))
