"""Read, pause, resume and limit queues."""

from __future__ import annotations

from fastapi import APIRouter

from longshore.core.tokens import Scope
from longshore.core.validation import check_name
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.models.queues import LimitsChange, QueueList, QueueView, queue_named, queue_view
from longshore.server.parameters import QueueName
from longshore.server.platform import Here, Platform

router = APIRouter(prefix="/v1/queues", tags=["queues"], route_class=GuardedRoute)


@router.get("", summary="List queues")
@needs(Scope.READ)
async def list_queues(here: Here, caller: Calling) -> QueueList:
    """List every queue that has jobs or settings."""
    found = await here.backend.list_queues()
    return QueueList(items=[queue_view(info) for info in found if caller.sees(info.name)])


@router.get("/{queue:name}", summary="Get a queue")
@needs(Scope.READ)
async def get_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Return the settings and counts of a queue. An unused name is an empty queue."""
    return await _shown(here, caller, queue)


@router.post("/{queue:name}/pause", summary="Pause a queue")
@needs(Scope.ADMIN)
async def pause_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Stop claims from the queue in every process until you resume it. Running jobs continue.

    Check the spelling: you can also pause a name that no job has used.
    """
    await here.queue.pause_queue(caller.check_queue(queue))
    return await _shown(here, caller, queue)


@router.post("/{queue:name}/resume", summary="Resume a queue")
@needs(Scope.ADMIN)
async def resume_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Allow claims from the queue again."""
    await here.queue.resume_queue(caller.check_queue(queue))
    return await _shown(here, caller, queue)


@router.patch("/{queue:name}/limits", summary="Limit a queue")
@needs(Scope.ADMIN)
async def set_limits(queue: QueueName, body: LimitsChange, here: Here, caller: Calling) -> QueueView:
    """Limit running jobs and starts per second, for the whole queue and per concurrency key."""
    await here.queue.set_limits(caller.check_queue(queue), **body.changes())
    return await _shown(here, caller, queue)


async def _shown(here: Platform, caller: Caller, queue: str) -> QueueView:
    name = caller.check_queue(check_name("queue", queue))
    return queue_view(queue_named(name, await here.backend.list_queues()))
