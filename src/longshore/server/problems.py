"""Errors over HTTP: the table from errors to status and problem type, and the model of a problem."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from traceback import clear_frames
from typing import Any, NamedTuple, get_args

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from longshore.backends.remote.codecs import PREFIX, carried
from longshore.backends.remote.protocol import ANSWER_LOST
from longshore.core import errors
from longshore.core.errors import LongshoreError
from longshore.server import http_errors, replays
from longshore.server.parameters import root_of, unknown

MEDIA_TYPE = "application/problem+json"


class Kind(NamedTuple):
    """The status, type and title of one error class."""

    status: int
    name: str
    """The last part of `type`. It never changes, so programs may depend on it."""
    title: str


TABLE: Mapping[type[LongshoreError], Kind] = {
    http_errors.NotJson: Kind(400, "not-json", "The body is not JSON"),
    errors.Unauthenticated: Kind(401, "unauthenticated", "Authentication required"),
    errors.Forbidden: Kind(403, "forbidden", "Not allowed"),
    errors.JobNotFound: Kind(404, "job-not-found", "No such job"),
    errors.TokenNotFound: Kind(404, "token-not-found", "No such token"),
    errors.ScheduleNotFound: Kind(404, "schedule-not-found", "No such schedule"),
    http_errors.TooSlow: Kind(408, "too-slow", "The request did not arrive in time"),
    errors.DuplicateJob: Kind(409, "duplicate-job", "The id is in use"),
    errors.InvalidTransition: Kind(409, "invalid-transition", "Not possible in this status"),
    errors.JobNotInflight: Kind(409, "job-not-inflight", "The job is not running"),
    errors.LeaseLost: Kind(409, "lease-lost", "The lease is no longer valid"),
    errors.MoveRefused: Kind(409, "move-refused", "Refused"),
    replays.AnswerLost: Kind(409, ANSWER_LOST, "The response is lost"),
    errors.CursorExpired: Kind(410, "cursor-expired", "The cursor has expired"),
    http_errors.TooLarge: Kind(413, "too-large", "The request is too large"),
    http_errors.WrongMediaType: Kind(415, "wrong-media-type", "Unsupported media type"),
    http_errors.WrongHost: Kind(421, "wrong-host", "Host not allowed"),
    errors.InvalidArgument: Kind(422, "invalid-argument", "Invalid value"),
    errors.KeyReused: Kind(422, "idempotency-key-reused", "The idempotency key was used for another request"),
    http_errors.TooMany: Kind(429, "too-many", "Too many requests"),
    errors.BackendUnavailable: Kind(503, "store-unavailable", "The store is unavailable"),
    errors.QueueClosed: Kind(503, "closed", "The server is shutting down"),
    http_errors.Overloaded: Kind(503, "overloaded", "The server is overloaded"),
    http_errors.ShuttingDown: Kind(503, "closed", "The server is shutting down"),
    LongshoreError: Kind(500, "internal", "Internal error"),
}
"""The nearest base class in the table decides; the last row is for unexpected errors."""

_RETRY_AFTER = 1
"""Seconds after which a client may try an unavailable store again."""


def kind_of(error: type[LongshoreError]) -> Kind:
    """The row of the table for this error class."""
    return next(TABLE[ancestor] for ancestor in error.__mro__ if ancestor in TABLE)


def problem(error: LongshoreError, request_id: str = "") -> Response:
    """Return the response for an error."""
    kind = kind_of(type(error))
    detail = str(error) if kind.status != HTTPStatus.INTERNAL_SERVER_ERROR else _IN_THE_LOG
    return _response(kind.status, kind.name, kind.title, detail, request_id, carried(error), _headers(error, kind))


def _headers(error: LongshoreError, kind: Kind) -> dict[str, str]:
    if kind.status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": 'Bearer realm="longshore"'}
    if kind.status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        return {"Connection": "close"}  # the rest of the body is not read
    if isinstance(error, http_errors.TooMany):
        return {"Retry-After": str(error.retry_after)}
    if kind.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return {"Retry-After": str(_RETRY_AFTER)}
    return {}


_IN_THE_LOG = "the server logged the cause; search its log for the request id"


def unexpected(request_id: str) -> Response:
    """Return the response for an unexpected error. Its text may contain secrets, so only the log has it."""
    return _response(500, "internal", "Internal error", _IN_THE_LOG, request_id)


def bad_request(detail: str) -> Response:
    """Return the response for bytes that are not a request, or for a head that is too large."""
    return _response(400, "bad-request", "Malformed request", detail, "")


def _response(
    status: int,
    name: str,
    title: str,
    detail: str,
    request_id: str,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    fields = {"type": f"{PREFIX}{name}", "title": title, "status": status, "detail": detail}
    body = json.dumps({**fields, "request_id": request_id, **(more or {})}, default=str)  # ASCII: any text is safe
    return Response(body, status, headers, MEDIA_TYPE)


# -- handlers for FastAPI


async def on_refusal(request: Request, error: Exception) -> Response:
    """Handle a LongshoreError."""
    assert isinstance(error, LongshoreError)  # registered for this class only
    return problem(error, request_id_of(request))


async def on_bad_fields(request: Request, error: Exception) -> Response:
    """Handle a request that does not match its model."""
    assert isinstance(error, RequestValidationError)
    body = getattr(getattr(request.scope.get("route"), "body_field", None), "field_info", None)
    model = None if body is None else body.annotation
    found = [{"field": field_at(one["loc"]), "problem": _describe(one, model)} for one in error.errors()[:20]]
    first = found[0]
    more = {"field": first["field"], "errors": found}
    kind = TABLE[errors.InvalidArgument]
    detail = f"{first['field']}: {first['problem']}"
    return _response(kind.status, kind.name, kind.title, detail, request_id_of(request), more)


_WORDS: Mapping[str, str] = {
    "missing": "is missing",
    "string_type": "must be text",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number"),
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "too_long": "must have at most {max_length} items; got {actual_length}",
    "too_short": "must not be empty",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be an object such as {{…}}"),
    **dict.fromkeys(("literal_error", "enum"), "must be {expected}"),
}
"""Texts for the error types of pydantic; other types keep pydantic's text."""


def _describe(found: Mapping[str, Any], body_type: Any) -> str:
    """Describe what is wrong with one value of a body of this type."""
    if found["type"] == "extra_forbidden":
        place = found["loc"][1:]
        return unknown("field", str(place[-1]), _known_fields(body_type, place))
    words = _WORDS.get(found["type"])
    return str(found["msg"]) if words is None else words.format_map(_whole_numbers(found.get("ctx", {})))


def _whole_numbers(bounds: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write 0 instead of 0.0, and 100000000000 instead of 1e11."""
    return {
        name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound for name, bound in bounds.items()
    }


def _known_fields(body_type: Any, place: Sequence[str | int]) -> Sequence[str]:
    """The known fields of the object that contains this place."""
    model = _model_in(body_type)
    for step in place[:-1]:
        if model is not None and step in model.model_fields:  # an index or a key stays in the same model
            model = _model_in(model.model_fields[str(step)].annotation)
    return [] if model is None else list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model within `Model | None`, `list[Model]` and similar types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Handle an unknown path or method, and errors while the body was read."""
    assert isinstance(error, HTTPException)
    _release_frames(error)
    if isinstance(error.__cause__, LongshoreError):
        return problem(error.__cause__, request_id_of(request))
    status = HTTPStatus(error.status_code)
    name = status.phrase.lower().replace(" ", "-")
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods_at(request))
    detail = _DETAILS[status].format(root=root_of(request)) if status in _DETAILS else str(error.detail)
    return _response(status, name, status.phrase, detail, request_id_of(request), headers=headers)


def _release_frames(error: Exception) -> None:
    """Clear the frames of an error: the framework refers to them, so the partly read body would stay in memory.

    A full garbage collection may be hours away.
    """
    clear_frames(error.__traceback__)
    if error.__cause__ is not None:
        clear_frames(error.__cause__.__traceback__)


def _methods_at(request: Request) -> Sequence[str]:
    """All methods of this path; each route knows only its own."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in route.methods or ()}
    return sorted(methods | {"HEAD"}) if "GET" in methods else sorted(methods)


_DETAILS = {
    HTTPStatus.NOT_FOUND: "no such path; {root}/v1/openapi.json lists all paths",
    HTTPStatus.METHOD_NOT_ALLOWED: "this path does not support the method; {root}/v1/openapi.json lists the methods",
}


def field_at(place: Sequence[str | int]) -> str:
    """The path of a value: `jobs[3].tags[0]`."""
    written = ""
    for step in place[1:] if len(place) > 1 and place[0] in ("body", "query", "path", "header") else place:
        written += f"[{step}]" if isinstance(step, int) else f".{step}" if written else str(step)
    return written


def request_id_of(request: Request) -> str:
    """The id of this request in the log."""
    return str(request.scope.get("state", {}).get("request_id", ""))


class FieldProblem(BaseModel):
    """One invalid field of a request."""

    field: str
    problem: str


class Problem(BaseModel):
    """Problem details (RFC 9457). The meaning of `type` never changes. `detail` says what is wrong and what to do."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:longshore:job-not-found",
                    "title": "No such job",
                    "status": 404,
                    "detail": "no job has the id 'x'; it was never enqueued here, or it has been removed",
                    "request_id": "01a13b3d-1f0a-7c7e-9d49-94a8a6a2c0c1",
                    "job_id": "x",
                }
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str
    request_id: str = Field(description="The id of the request in the server's log.")
    field: str | None = Field(None, description="The invalid field, if there is one.")
    errors: list[FieldProblem] | None = Field(
        None, description="All invalid fields of the request, up to 20; the first is `field`."
    )


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route for the OpenAPI document: these statuses, and those of every route."""
    responses: dict[int | str, dict[str, Any]] = {}
    for status in sorted({400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503, *statuses}):
        titles = sorted({kind.title for kind in TABLE.values() if kind.status == status})
        responses[status] = {"description": "; ".join(titles) or "Refused", "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
    return responses


SCHEMA = {"$ref": "#/components/schemas/Problem"}
"""The place of the model in the OpenAPI document."""
