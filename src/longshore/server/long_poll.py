"""Long polls: wait for a claim, or until a job is final."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from longshore.backends.base import SettleReport
from longshore.backends.remote.protocol import DEQUEUE_JOBS, SETTLE_AND_DEQUEUE
from longshore.core.errors import LongshoreError
from longshore.core.job import Job
from longshore.core.validation import check_names
from longshore.server.auth import Caller
from longshore.server.event_tail import first_completed
from longshore.server.platform import Platform
from longshore.server.queue_scoping import carry_out

MOST_BYTES = 64 * 1024 * 1024
"""The most bytes of the jobs of one claim, not counting its first job; the jobs and their JSON are in memory."""
MOST_AT_ONCE = 100
"""Small jobs per call to the store, so that a usual claim is one call."""
_CLAIM_AGAIN = 5.0
"""Seconds after which a waiting claim tries again without a signal."""
_SLACK = 0.002


async def claimed(here: Platform, caller: Caller, arguments: dict[str, Any]) -> list[Job]:
    """Claim up to the limit in several calls; stop early if the jobs are large."""
    return await _filled_up(here, caller, arguments, [], MOST_BYTES)


async def settle_and_claim(here: Platform, caller: Caller, arguments: dict[str, Any]) -> tuple[SettleReport, list[Job]]:
    """Settle and claim; the settlement and the first claim are one call to the store."""
    queues = _queues(caller, arguments)
    first = _at_once(arguments, here.job_sizes.of(queues), [], MOST_BYTES)
    report, jobs = await carry_out(here, caller, SETTLE_AND_DEQUEUE.name, {**arguments, "limit": first})
    left = MOST_BYTES - here.job_sizes.saw(jobs, queues)
    if jobs and len(jobs) == first:
        claim = {name: value for name, value in arguments.items() if name != "outcomes"}
        jobs = await _filled_up(here, caller, claim, jobs, left)
    return report, jobs


async def _filled_up(
    here: Platform, caller: Caller, arguments: dict[str, Any], found: list[Job], left: int
) -> list[Job]:
    queues = _queues(caller, arguments)
    while True:
        at_once = _at_once(arguments, here.job_sizes.of(queues), found, left)
        if found and at_once <= 0:
            return found
        try:
            jobs: list[Job] = await carry_out(here, caller, DEQUEUE_JOBS.name, {**arguments, "limit": at_once})
        except LongshoreError:
            if not found:
                raise
            return found  # these jobs are claimed for this caller
        left -= here.job_sizes.saw(jobs, queues)
        found = found + jobs
        if len(jobs) < at_once:
            return found


def _at_once(arguments: dict[str, Any], heaviest: int, found: Sequence[Job], left: int) -> Any:
    """The number of jobs to claim next. The store refuses a limit that is invalid."""
    limit = arguments.get("limit", 1)
    if found:
        return min(limit - len(found), MOST_AT_ONCE, left // heaviest)
    return limit if type(limit) is not int or limit <= 1 else max(1, min(limit, MOST_AT_ONCE, left // heaviest))


def _queues(caller: Caller, arguments: dict[str, Any]) -> Sequence[str] | None:
    queues = arguments.get("queues")
    if queues is not None:
        return check_names("queues", queues)
    return None if caller.queues is None else sorted(caller.queues)


async def claim_within(
    request: Request, here: Platform, caller: Caller, arguments: dict[str, Any], seconds: float
) -> list[Job]:
    """Claim as soon as there is a job; claim nothing for a client that has disconnected."""
    deadline = monotonic() + seconds
    with here.open_stream():
        while True:
            mark = await here.changes.mark()
            jobs = await claimed(here, caller, arguments)
            left = deadline - monotonic()
            if jobs or left <= 0 or here.closing:
                return jobs
            soon = await _until_due(here, caller, arguments)
            await first_completed(here.changes.after(mark, min(left, soon, _CLAIM_AGAIN)), here.closed())
            if await request.is_disconnected():
                raise ClientDisconnect
            await request.app.state.gate.admit(request)  # the token may have been revoked meanwhile


async def _until_due(here: Platform, caller: Caller, arguments: dict[str, Any]) -> float:
    """Seconds until the first delayed job is due."""
    queues = arguments.get("queues") if caller.queues is None else caller.queues_among(arguments.get("queues") or ())
    first = await here.backend.next_due(queues)
    if first is None:
        return _CLAIM_AGAIN
    return max(0.0, (first - await here.backend.now()).total_seconds()) + _SLACK


_LOOK_AGAIN = 1.0
"""Seconds between two reads without an event: on PostgreSQL an event may become readable after its commit."""


async def until_final(here: Platform, job: Job, seconds: float) -> Job:
    """Return the job when it is final, the time has passed, or the server shuts down."""
    with here.open_stream():
        waiting = asyncio.ensure_future(_wait_until_final(here, job, monotonic() + seconds))
        await first_completed(waiting, here.closed())
        return await here.backend.get_job(job.id) if waiting.cancelled() else waiting.result()


async def _wait_until_final(here: Platform, job: Job, deadline: float) -> Job:
    place = here.tail.end
    while True:
        job = await here.backend.get_job(job.id)
        left = deadline - monotonic()
        if job.status.final or left <= 0:
            return job
        until = monotonic() + min(left, _LOOK_AGAIN)
        while (rest := until - monotonic()) > 0:
            if not await here.tail.beyond(place, rest):
                break
            events, place = here.tail.since(place), here.tail.end
            if events is None or any(event.job_id == job.id for event in events):
                break
