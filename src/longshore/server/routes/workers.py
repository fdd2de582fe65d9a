"""Workers and counts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from longshore.core.tokens import Scope
from longshore.server.auth import Calling, GuardedRoute, needs
from longshore.server.models.fields import Name
from longshore.server.models.queues import StatsView, WorkerList, stats_view, worker_view
from longshore.server.platform import Here

router = APIRouter(prefix="/v1", route_class=GuardedRoute)


@router.get("/workers", tags=["workers"], summary="List workers")
@needs(Scope.READ)
async def list_workers(here: Here, caller: Calling) -> WorkerList:
    """List the workers of the last 24 hours. `state` is the last one reported, or `silent` after one minute."""
    found = await here.queue.list_workers()
    mine = [worker for worker in found if caller.owns(worker.queues)]
    now = await here.backend.now()
    return WorkerList(items=[worker_view(worker, now) for worker in mine])


@router.get("/stats", tags=["figures"], summary="Count jobs")
@needs(Scope.READ)
async def get_stats(
    here: Here,
    caller: Calling,
    queue: Annotated[Name | None, Query(description="Only this queue.")] = None,
    tag: Annotated[
        list[Name] | None, Query(max_length=100, description="Only jobs that have all of these tags.")
    ] = None,
) -> StatsView:
    """Count all jobs, the jobs of one queue, or the jobs with all given tags. The counts are exact."""
    if queue is None:
        caller.check_everywhere()
    else:
        caller.check_queue(queue)
    stats = await here.queue.get_job_stats(tag or [], queue=queue)
    if tag:
        return stats_view(queue, stats, None, None)
    counts = await here.backend.count_jobs(queue)
    return stats_view(queue, stats, counts, await here.backend.count_delayed(queue))
