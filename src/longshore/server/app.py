"""The server as an ASGI application: every route, behind one gate and within one envelope."""

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
from longshore.server.access import Gate, GuardedRoute, OpenGate
from longshore.server.description import DESCRIPTION, described
from longshore.server.envelope import Envelope
from longshore.server.hosts import Hosts
from longshore.server.metering import BodyMemory
from longshore.server.options import ServerOptions
from longshore.server.platform import Platform
from longshore.server.routes import (
    audit,
    bulk,
    events,
    figures,
    flows,
    jobs,
    operations,
    queues,
    schedules,
    sign_in,
    status_page,
    store,
    submission,
    tokens,
)

ROUTERS: Sequence[APIRouter] = (
    operations.router,
    status_page.router,
    sign_in.router,
    submission.router,
    bulk.router,
    events.router,
    audit.router,
    jobs.router,
    queues.router,
    schedules.router,
    flows.router,
    figures.router,
    tokens.router,
    store.router,
)
"""In the order in which an address is looked for: what has a name of its own comes before what is named by an id."""


def create_app(
    backend: Backend | Harbor,
    *,
    options: ServerOptions | None = None,
    gate: Gate | None = None,
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """An application that serves this store; closed with its lifespan, and with it the store, if nobody else uses it.

    A mounted application needs no lifespan: it starts with its first request, and ends when the host closes the
    store. Its links, redirects and cookies use the path of the mount. Given a harbor, it follows the harbor
    when that is closed and entered again.

    Without a `gate` whoever reaches it may do everything: serve it on a loopback address only. `routers` are served
    besides ours, and each of their routes must declare its scope as well.
    """
    if not isinstance(backend, Backend | Harbor):
        raise InvalidArgument(
            "backend", f"must be what connect(url) returns, or a Harbor, not {type(backend).__name__}"
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
    described(app)
    app.add_exception_handler(LongshoreError, problems.on_refusal)
    app.add_exception_handler(Unauthenticated, sign_in.on_stranger)
    app.add_exception_handler(RequestValidationError, problems.on_bad_fields)
    app.add_exception_handler(HTTPException, problems.on_http_error)
    app.add_middleware(
        Envelope,
        options=chosen,
        hosts=app.state.hosts,
        observe=platform.figures.served,
        is_closing=lambda: platform.closing,
        begin=platform.begin,
        memory=app.state.body_memory,
    )
    return app


def _guarded(router: APIRouter) -> Sequence[BaseRoute]:
    """Its routes, if they are all behind the gate."""
    for route in router.routes:
        if not isinstance(route, GuardedRoute):
            path = getattr(route, "path", route)
            raise InvalidArgument("routers", f"{path} is behind no gate; make its router with route_class=GuardedRoute")
    return router.routes
