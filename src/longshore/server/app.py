"""The server as an ASGI application: all routes, authentication and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from longshore.core.errors import InvalidArgument, LongshoreError, MissingExtra

try:
    from fastapi import APIRouter, FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.routing import BaseRoute
except ImportError as error:
    raise MissingExtra("The server", "server") from error

import longshore
from longshore.app.harbor import Harbor
from longshore.backends.base import Backend
from longshore.core.errors import Unauthenticated
from longshore.server import problems
from longshore.server.auth import Gate, GuardedRoute, OpenGate
from longshore.server.body_limits import BodyMemory
from longshore.server.middleware import RequestMiddleware
from longshore.server.openapi import DESCRIPTION, serve_document
from longshore.server.options import ServerOptions
from longshore.server.platform import Platform
from longshore.server.request_origin import Hosts
from longshore.server.routes import (
    bulk_operations,
    enqueue,
    events,
    flows,
    health,
    jobs,
    pages,
    queues,
    schedules,
    store,
    tokens,
    workers,
)

ROUTERS: Sequence[APIRouter] = (
    health.router,
    pages.router,
    enqueue.router,
    bulk_operations.router,
    events.router,
    jobs.router,
    queues.router,
    schedules.router,
    flows.router,
    workers.router,
    tokens.router,
    store.router,
)
"""In the order of matching: fixed paths come before paths with an id."""


def create_app(
    backend: Backend | Harbor,
    *,
    options: ServerOptions | None = None,
    gate: Gate | None = None,
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """Return an application that serves this store. Its lifespan closes the store unless another queue uses it.

    A mounted application needs no lifespan: it starts with its first request and ends when the host closes the
    store. Its links, redirects and cookies use the mount path. With a harbor, it also works after the harbor is
    closed and entered again.

    Without a `gate` every caller may do everything, so serve it on a loopback address only. `routers` add routes; each
    of these must declare its scope. See docs/server.md.
    """
    if not isinstance(backend, Backend | Harbor):
        raise InvalidArgument(
            "backend", f"must be the result of connect(url) or a Harbor, not {type(backend).__name__}"
        )
    chosen = options or ServerOptions()
    platform = Platform(backend, chosen)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with platform.within():
            yield

    app = FastAPI(
        title="Longshore",
        version=longshore.__version__,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.platform = platform
    app.state.gate = gate or OpenGate()
    app.state.hosts = Hosts(chosen.allowed_hosts, strict=not app.state.gate.authenticates)
    app.state.body_memory = BodyMemory(chosen.max_body_memory)
    app.router.route_class = GuardedRoute
    for router in (*ROUTERS, *routers):
        app.router.routes.extend(_guarded(router))
    serve_document(app)
    app.add_exception_handler(LongshoreError, problems.on_refusal)
    app.add_exception_handler(Unauthenticated, pages.on_unauthenticated)
    app.add_exception_handler(RequestValidationError, problems.on_bad_fields)
    app.add_exception_handler(HTTPException, problems.on_http_error)
    app.add_middleware(
        RequestMiddleware,
        options=chosen,
        hosts=app.state.hosts,
        observe=platform.figures.served,
        is_closing=lambda: platform.closing,
        begin=platform.begin,
        memory=app.state.body_memory,
    )
    return app


def _guarded(router: APIRouter) -> Sequence[BaseRoute]:
    """Return the routes of a router; raise InvalidArgument if one is not guarded."""
    for route in router.routes:
        if not isinstance(route, GuardedRoute):
            path = getattr(route, "path", route)
            raise InvalidArgument(
                "routers", f"{path} has no access check; create its router with route_class=GuardedRoute"
            )
    return router.routes
