"""A server process like `longshore serve`, with one additional route that does nothing."""

from __future__ import annotations

import sys

from fastapi import APIRouter
from starlette.responses import Response

from longshore.backends.connect import connect
from longshore.core.tokens import Scope
from longshore.runtime.signals import serve, tune_garbage_collector
from longshore.server.app import create_app
from longshore.server.auth import GuardedRoute, needs
from longshore.server.uvicorn_server import GC_THRESHOLD, ApiServer

router = APIRouter(route_class=GuardedRoute)


@router.post("/nothing")
@needs(Scope.SUBMIT)
async def nothing() -> Response:
    """Has the same authorization and middleware as the other routes."""
    return Response(b'{"id":"01a13b3d-1f0a-7c7e-9d49-94a8a6a2c0c1"}', 202, media_type="application/json")


def main(url: str) -> int:
    """Print the address and serve until stopped."""

    def ready(address: str) -> None:
        tune_garbage_collector(GC_THRESHOLD)
        print(address, flush=True)

    def make() -> ApiServer:
        app = create_app(connect(url), routers=[router])
        return ApiServer(app, when_ready=ready)

    return serve(make)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
