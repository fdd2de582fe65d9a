"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from longshore.core.errors import LongshoreError
from longshore.core.tokens import Scope
from longshore.server.auth import Calling, GuardedRoute, needs
from longshore.server.metrics import look
from longshore.server.platform import Here
from longshore.server.problems import refusals

router = APIRouter(tags=["operations"], route_class=GuardedRoute)

PROBES = frozenset({b"/healthz", b"/readyz"})
"""Exempt from connection limits: an orchestrator must not restart a server because it is busy."""


_FIRST_LOOK = 1.0
"""Seconds that a probe waits for the store's first answer."""


class Health(BaseModel):
    """The response of a running server."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether the server can take requests."""

    status: Literal["ready", "not ready"]
    reason: str


@router.get("/healthz", summary="Liveness probe")
@needs(Scope.PUBLIC)
async def health() -> Health:
    """Respond with 200 while the process runs."""
    return Health(status="ok")


@router.get(
    "/readyz",
    summary="Readiness probe",
    response_model=Readiness,
    responses={**refusals(), 503: {"model": Readiness, "description": "Not ready"}},
)
@needs(Scope.PUBLIC)
async def readiness(here: Here) -> Response:
    """Respond with 200 if the store answered recently and the server is not shutting down."""
    reason = ""
    if here.tail.cursor is None and not here.closing:  # just started: a mounted application starts with this request
        with suppress(LongshoreError, TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK):
                await here.tail.catch_up()
    if here.closing:
        reason = "the server is shutting down"
    elif here.backend.unusable_because:
        reason = here.backend.unusable_because
    elif here.tail.silence > here.options.ready_within:
        reason = "the store has not answered for too long"
    readiness = Readiness(status="not ready" if reason else "ready", reason=reason)
    return JSONResponse(readiness.model_dump(), 503 if reason else 200)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={**refusals(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@needs(Scope.READ)
async def metrics(here: Here, caller: Calling) -> Response:
    """Return depth, age, throughput, latency, failures, crashes and lost leases per queue, and server metrics."""
    caller.check_everywhere()
    seen = await look(here.backend, here.figures.label)
    written = here.figures.written(seen, streams=here.streams, silence=here.tail.silence)
    return Response(written, media_type=CONTENT_TYPE_LATEST)
