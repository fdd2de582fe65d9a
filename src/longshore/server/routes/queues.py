"""Reads, pauses, resumes and limits queues."""

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
    """Every queue that has jobs or settings."""
    found = await here.backend.list_queues()
    return QueueList(items=[queue_view(info) for info in found if caller.sees(info.name)])


@router.get("/{queue:name}", summary="Show a queue")
@needs(Scope.READ)
async def get_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Any name is a queue: an unused one is empty."""
    return await _shown(here, caller, queue)


@router.post("/{queue:name}/pause", summary="Pause a queue")
@needs(Scope.ADMIN)
async def pause_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Stops claims from it in every process until it is resumed. Running jobs continue.

    Any name is a queue, so check the spelling: an unused queue can be paused, too.
    """
    await here.queue.pause_queue(caller.check_queue(queue))
    return await _shown(here, caller, queue)


@router.post("/{queue:name}/resume", summary="Resume a queue")
@needs(Scope.ADMIN)
async def resume_queue(queue: QueueName, here: Here, caller: Calling) -> QueueView:
    """Undoes a pause."""
    await here.queue.resume_queue(caller.check_queue(queue))
    return await _shown(here, caller, queue)


@router.patch("/{queue:name}/limits", summary="Limit a queue")
@needs(Scope.ADMIN)
async def set_limits(queue: QueueName, body: LimitsChange, here: Here, caller: Calling) -> QueueView:
    """Limits how many jobs run at once, in all and per concurrency key, and how often they start."""
    await here.queue.set_limits(caller.check_queue(queue), **body.told())
    return await _shown(here, caller, queue)


async def _shown(here: Platform, caller: Caller, queue: str) -> QueueView:
    name = caller.check_queue(check_name("queue", queue))
    return queue_view(queue_named(name, await here.backend.list_queues()))
