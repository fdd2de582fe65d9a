"""Errors over HTTP: one table from each error to its status and problem type, and the model of a problem."""

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
    """The last part of its `type`, which never changes: programs may go by it."""
    title: str


TABLE: Mapping[type[LongshoreError], Kind] = {
    http_errors.NotJson: Kind(400, "not-json", "The body is not JSON"),
    errors.Unauthenticated: Kind(401, "unauthenticated", "A credential is needed"),
    errors.Forbidden: Kind(403, "forbidden", "Not allowed"),
    errors.JobNotFound: Kind(404, "job-not-found", "No such job"),
    errors.TokenNotFound: Kind(404, "token-not-found", "No such token"),
    errors.ScheduleNotFound: Kind(404, "schedule-not-found", "No such schedule"),
    http_errors.TooSlow: Kind(408, "too-slow", "The request did not arrive in time"),
    errors.DuplicateJob: Kind(409, "duplicate-job", "The id is in use"),
    errors.InvalidTransition: Kind(409, "invalid-transition", "Not from this status"),
    errors.JobNotInflight: Kind(409, "job-not-inflight", "Nobody holds the job"),
    errors.LeaseLost: Kind(409, "lease-lost", "The lease is no longer the job's"),
    errors.MoveRefused: Kind(409, "move-refused", "Refused"),
    replays.AnswerLost: Kind(409, ANSWER_LOST, "The answer is lost"),
    errors.CursorExpired: Kind(410, "cursor-expired", "The place in the log is gone"),
    http_errors.TooLarge: Kind(413, "too-large", "The request is too large"),
    http_errors.WrongMediaType: Kind(415, "wrong-media-type", "The body's form is not read here"),
    http_errors.WrongHost: Kind(421, "wrong-host", "Not the server that was meant"),
    errors.InvalidArgument: Kind(422, "invalid-argument", "A value was refused"),
    errors.KeyReused: Kind(422, "idempotency-key-reused", "The key was used for another request"),
    http_errors.TooMany: Kind(429, "too-many", "Too many"),
    errors.BackendUnavailable: Kind(503, "store-unavailable", "The store cannot be used now"),
    errors.QueueClosed: Kind(503, "closed", "The server is closing"),
    http_errors.Overloaded: Kind(503, "overloaded", "The server is overloaded"),
    http_errors.ShuttingDown: Kind(503, "closed", "The server is closing"),
    LongshoreError: Kind(500, "internal", "Something went wrong here"),
}
"""The nearest base class in the table decides; the last row is for unexpected errors."""

_RETRY_AFTER = 1
"""Seconds after which it may be worth trying a store again that cannot be used."""


def kind_of(error: type[LongshoreError]) -> Kind:
    """The row of the table for this error class."""
    return next(TABLE[ancestor] for ancestor in error.__mro__ if ancestor in TABLE)


def problem(error: LongshoreError, request_id: str = "") -> Response:
    """The answer to a request that ended with this error."""
    kind = kind_of(type(error))
    told = carried(error)
    detail = str(error) if kind.status != HTTPStatus.INTERNAL_SERVER_ERROR else _NOT_TOLD
    return _response(kind.status, kind.name, kind.title, detail, request_id, told, _headers(error, kind))


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


_NOT_TOLD = "the server's log has the reason, under the request id"


def unexpected(request_id: str) -> Response:
    """The answer to an unexpected error. Its text may hold secrets, and goes to the log only."""
    return _response(500, "internal", "Something went wrong here", _NOT_TOLD, request_id)


def bad_request(detail: str) -> Response:
    """The answer to bytes that are not a request, or to a head that is too large."""
    return _response(400, "bad-request", "No request that can be understood", detail, "")


def _response(
    status: int,
    name: str,
    title: str,
    detail: str,
    request_id: str,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    told = {"type": f"{PREFIX}{name}", "title": title, "status": status, "detail": detail}
    body = json.dumps({**told, "request_id": request_id, **(more or {})}, default=str)  # ASCII: any text is safe
    return Response(body, status, headers, MEDIA_TYPE)


# -- what FastAPI raises by itself


async def on_refusal(request: Request, error: Exception) -> Response:
    """For every LongshoreError."""
    assert isinstance(error, LongshoreError)  # it is registered for no other
    return problem(error, request_id_of(request))


async def on_bad_fields(request: Request, error: Exception) -> Response:
    """For a request that does not have the declared shape."""
    assert isinstance(error, RequestValidationError)
    body = getattr(getattr(request.scope.get("route"), "body_field", None), "field_info", None)
    asked = None if body is None else body.annotation
    found = [{"field": field_at(one["loc"]), "problem": _in_words(one, asked)} for one in error.errors()[:20]]
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
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "too_long": "must have at most {max_length} of them, not {actual_length}",
    "too_short": "must not be empty",
    "dict_type": "must be an object, like {{…}}",
    "model_type": "must be an object, like {{…}}",
    "model_attributes_type": "must be an object, like {{…}}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
"""Our text for the error types of pydantic; for others its own text is used."""


def _in_words(found: Mapping[str, Any], asked: Any) -> str:
    """Describes what is wrong with one value of a body of the type `asked`."""
    if found["type"] == "extra_forbidden":
        place = found["loc"][1:]
        return unknown("field", str(place[-1]), _fields_beside(asked, place))
    words = _WORDS.get(found["type"])
    return str(found["msg"]) if words is None else words.format_map(_plainly(found.get("ctx", {})))


def _plainly(bounds: Mapping[str, Any]) -> Mapping[str, Any]:
    """0 rather than 0.0, and 100000000000 rather than 1e11."""
    return {
        name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound for name, bound in bounds.items()
    }


def _fields_beside(asked: Any, place: Sequence[str | int]) -> Sequence[str]:
    """The fields that are known where this one stands."""
    model = _model_in(asked)
    for step in place[:-1]:
        if model is not None and step in model.model_fields:  # an index or a key stays in the same model
            model = _model_in(model.model_fields[str(step)].annotation)
    return [] if model is None else list(model.model_fields)


def _model_in(asked: Any) -> type[BaseModel] | None:
    """The model within `Model | None`, `list[Model]` and their like."""
    if isinstance(asked, type) and issubclass(asked, BaseModel):
        return asked
    return next((model for part in get_args(asked) if (model := _model_in(part)) is not None), None)


async def on_http_error(request: Request, error: Exception) -> Response:
    """For an unknown address or method, and for what went wrong while the body was read."""
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
    """Clears what an error passed: a frame of the framework refers to it, and a full collection may be hours away.

    Until then the body, as far as it was read, would stay in memory.
    """
    clear_frames(error.__traceback__)
    if error.__cause__ is not None:
        clear_frames(error.__cause__.__traceback__)


def _methods_at(request: Request) -> Sequence[str]:
    """All methods of this address: each of its routes knows of its own only."""
    meant = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in meant for method in route.methods or ()}
    return sorted(methods | {"HEAD"}) if "GET" in methods else sorted(methods)


_DETAILS = {
    HTTPStatus.NOT_FOUND: "there is nothing at this address; {root}/v1/openapi.json lists all there is",
    HTTPStatus.METHOD_NOT_ALLOWED: "this address does not know the method; {root}/v1/openapi.json lists all there is",
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
    """What is wrong with one value."""

    field: str
    problem: str


class Problem(BaseModel):
    """Problem details (RFC 9457). `type` never changes its meaning; `detail` is for people and says what to do."""

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
    request_id: str = Field(description="Under this id the server's log knows the request.")
    field: str | None = Field(None, description="The value that was refused, where there is one.")
    errors: list[FieldProblem] | None = Field(
        None, description="Of a request in the wrong shape: all that is wrong with it, up to 20; the first is `field`."
    )


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route for the document: these statuses, and those that any request may get."""
    told: dict[int | str, dict[str, Any]] = {}
    for status in sorted({400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503, *statuses}):
        titles = sorted({kind.title for kind in TABLE.values() if kind.status == status})
        told[status] = {"description": "; ".join(titles) or "Refused", "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
    return told


SCHEMA = {"$ref": "#/components/schemas/Problem"}
"""Where the document of the API has it."""
