"""The OpenAPI document: written once when the server starts, and served like everything else."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import JSONResponse

from longshore.backends.remote.records import SCHEMAS
from longshore.core.tokens import Scope
from longshore.server.access import needs
from longshore.server.models.problems import Problem, refusals
from longshore.server.names_in_paths import root_of

DESCRIPTION = """
Submit a job, get an answer at once, follow it, and trust it.

Errors are problem details (RFC 9457): go by `type`, which never changes its meaning. Times are RFC 3339 in UTC,
durations are seconds. Every answer carries an `X-Request-ID`. An operation's scope is told as `x-longshore-scope`.
"""

ADDRESS = "/v1/openapi.json"
USUAL_ADDRESS = "/openapi.json"
"""Where tools look for it by themselves."""


def described(app: FastAPI) -> None:
    """Serves the document of all routes that the app has when it is first asked for."""

    @app.get(USUAL_ADDRESS, include_in_schema=False)
    @app.get(
        ADDRESS,
        tags=["operations"],
        operation_id="describe",
        summary="This document",
        response_class=JSONResponse,
        responses=refusals(),
    )
    @needs(Scope.READ)
    async def describe(request: Request) -> JSONResponse:
        """What this server understands, in the words of OpenAPI 3.1."""
        root = root_of(request)
        return JSONResponse({**app.openapi(), "servers": [{"url": root}]} if root else app.openapi())

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _written(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI asks for it


def _written(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(SCHEMAS)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components["schemas"] |= {**problem.pop("$defs"), "Problem": problem}
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API token; not asked for on a loopback address.",
        }
    }
    if not app.state.gate.authenticates:  # a client made from this document may do without as well
        for operation in (one for path in document["paths"].values() for one in path.values()):
            if "security" in operation:
                operation["security"] = [*operation["security"], {}]
    return document
