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
"""Answered however many connections there are: a server that is restarted for having many serves nobody."""


_FIRST_LOOK = 1.0
"""Seconds that a probe waits for the store's first answer."""


class Health(BaseModel):
    """That the server is alive, which it is if it answers."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether requests may be sent here."""

    status: Literal["ready", "not ready"]
    reason: str


@router.get("/healthz", summary="Is it alive?")
@needs(Scope.PUBLIC)
async def health() -> Health:
    """It answers, so it is."""
    return Health(status="ok")


@router.get(
    "/readyz",
    summary="Is it ready?",
    response_model=Readiness,
    responses={**refusals(), 503: {"model": Readiness, "description": "Not ready"}},
)
@needs(Scope.PUBLIC)
async def readiness(here: Here) -> Response:
    """Only if its store answered a moment ago, and it is not about to stop."""
    reason = ""
    if (
        here.tail.cursor is None and not here.closing
    ):  # it has just started; a mounted application starts with its first request
        with suppress(LongshoreError, TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK):
                await here.tail.catch_up()
    if here.closing:
        reason = "the server is about to stop"
    elif here.backend.unusable_because:
        reason = here.backend.unusable_because
    elif here.tail.silence > here.options.ready_within:
        reason = "the store has not answered for too long"
    told = Readiness(status="not ready" if reason else "ready", reason=reason)
    return JSONResponse(told.model_dump(), 503 if reason else 200)


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={**refusals(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@needs(Scope.READ)
async def metrics(here: Here, caller: Calling) -> Response:
    """Depth, age, throughput, latency, failures, crashes and lost leases of every queue, and this server's own."""
    caller.check_everywhere()
    seen = await look(here.backend, here.figures.label)
    written = here.figures.written(seen, streams=here.streams, silence=here.tail.silence)
    return Response(written, media_type=CONTENT_TYPE_LATEST)
