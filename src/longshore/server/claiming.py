"""A claim that waits: until there is something to claim, the time is over, or whoever asked has gone."""

from __future__ import annotations

from time import monotonic
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from longshore.backends.remote.protocol import DEQUEUE_JOBS
from longshore.core.job import Job
from longshore.server.access import Caller
from longshore.server.platform import Platform
from longshore.server.racing import first_of
from longshore.server.within_queues.guards import carry_out

_LOOK_AGAIN = 5.0
"""Seconds after which a claim that waits looks although it has heard nothing."""
_SLACK = 0.002


async def claimed_within(
    request: Request, here: Platform, caller: Caller, arguments: dict[str, Any], seconds: float
) -> list[Job]:
    """Claims as soon as there is something to claim; nothing for a client that has gone."""
    deadline = monotonic() + seconds
    with here.a_place():
        while True:
            mark = await here.changes.mark()
            jobs: list[Job] = await carry_out(here.backend, caller, DEQUEUE_JOBS.name, arguments)
            left = deadline - monotonic()
            if jobs or left <= 0 or here.closing:
                return jobs
            soon = await _until_due(here, caller, arguments)
            await first_of(here.changes.after(mark, min(left, soon, _LOOK_AGAIN)), here.closed())
            if await request.is_disconnected():
                raise ClientDisconnect
            await request.app.state.gate.admit(request)  # whoever waited may have lost their token meanwhile


async def _until_due(here: Platform, caller: Caller, arguments: dict[str, Any]) -> float:
    """Seconds until the time of the first delayed job comes."""
    queues = arguments.get("queues") if caller.queues is None else caller.queues_among(arguments.get("queues") or ())
    first = await here.backend.next_due(queues)
    if first is None:
        return _LOOK_AGAIN
    return max(0.0, (first - await here.backend.now()).total_seconds()) + _SLACK
