"""The OpenAPI document, written once when the server starts."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import JSONResponse

from longshore.backends.remote.codecs import WAIT
from longshore.backends.remote.protocol import DEQUEUE_JOBS, KEY, RemoteOperation
from longshore.backends.remote.records.jobs import LEASE, SCHEMAS
from longshore.core.tokens import Scope
from longshore.server.auth import needs
from longshore.server.parameters import root_of
from longshore.server.problems import Problem, refusals

CHANGES_ANSWER: dict[str, Any] = {
    "description": "The current mark of the store, and whether it differs from the one in the request.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"mark": {"type": "string"}, "changed": {"type": "boolean"}},
                "required": ["mark", "changed"],
            }
        }
    },
}
CHANGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"mark": {"type": "string"}, "timeout": WAIT.schema},
                    "additionalProperties": False,
                }
            }
        },
    }
}

_EXAMPLES: dict[str, Any] = {
    "dequeue_jobs": {"assignee_id": "worker-1", "queues": ["mail"], "limit": 10, "lease": 30, "wait": 20},
    "extend_leases": {"leases": {"welcome-ada": {"token": "6f1c…", "epoch": 1}}, "duration": 30},
    "settle_jobs": {
        "outcomes": [{"job_id": "welcome-ada", "lease": {"token": "6f1c…", "epoch": 1}, "result": '{"sent": true}'}]
    },
    "set_progress": {"job_id": "welcome-ada", "value": 0.5, "lease": {"token": "6f1c…", "epoch": 1}},
}


def full_description(operation: RemoteOperation) -> str:
    """The description of an operation, with the scope it needs without a lease."""
    lease = "\n\nWithout a lease it needs the scope admin." if operation.takes.get("lease") is LEASE else ""
    return operation.description + lease


def operation_schema(operation: RemoteOperation) -> dict[str, Any]:
    """The request body and headers of an operation in the OpenAPI document."""
    schema = dict(operation.body)
    if operation is DEQUEUE_JOBS:
        waits = {**WAIT.schema, "description": "Seconds to wait for a job if there is none now."}
        schema["properties"] = {**schema["properties"], "wait": waits}
    content: dict[str, Any] = {"schema": schema}
    if operation.name in _EXAMPLES:
        content["example"] = _EXAMPLES[operation.name]
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": content}}}
    if not operation.reads:
        extra["parameters"] = [
            {
                "name": KEY,
                "in": "header",
                "required": False,
                "description": "Makes the request safe to repeat for two minutes: it gets the first response.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        ]
    return extra


DESCRIPTION = """
Enqueue jobs, follow them, and manage queues, schedules and flows.

Errors are problem details (RFC 9457). Use `type` in programs: its meaning never changes. Times are RFC 3339 in UTC,
durations are seconds. Every response has an `X-Request-ID`. `x-longshore-scope` is the scope that an operation needs.
"""

ADDRESS = "/v1/openapi.json"
USUAL_ADDRESS = "/openapi.json"
"""The path where tools look for it by default."""


def serve_document(app: FastAPI) -> None:
    """Serve the OpenAPI document, created at the first request."""

    @app.get(USUAL_ADDRESS, include_in_schema=False)
    @app.get(
        ADDRESS,
        tags=["operations"],
        operation_id="describe",
        summary="Get the OpenAPI document",
        response_class=JSONResponse,
        responses=refusals(),
    )
    @needs(Scope.READ)
    async def describe(request: Request) -> JSONResponse:
        """Return the OpenAPI 3.1 document of this server."""
        root = root_of(request)
        return JSONResponse({**app.openapi(), "servers": [{"url": root}]} if root else app.openapi())

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _written(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as the documentation of FastAPI describes


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
            "description": "An API token; by default not required on a loopback address.",
        }
    }
    if not app.state.gate.authenticates:  # clients generated from this document need no token
        for operation in (one for path in document["paths"].values() for one in path.values()):
            if "security" in operation:
                operation["security"] = [*operation["security"], {}]
    return document
