"""The contract over HTTP: `/v1/work` for workers in any language, `/v1/store` for the remote backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longshore.backends import argument_checks as checks
from longshore.backends.base import Page
from longshore.backends.remote import protocol
from longshore.backends.remote.codecs import check_object, only, read_span
from longshore.backends.remote.records.jobs import LEASE
from longshore.core.actor import acting
from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, check_duration
from longshore.core.tokens import Scope
from longshore.core.validation import LARGE as LARGE_BODY
from longshore.core.validation import check_name
from longshore.server.auth import Caller, GuardedRoute, as_the_store, needs
from longshore.server.body_limits import read_body
from longshore.server.event_tail import first_completed
from longshore.server.long_poll import claim_within, claimed, settle_and_claim
from longshore.server.openapi import CHANGES_ANSWER, CHANGES_BODY, full_description, operation_schema
from longshore.server.platform import Platform
from longshore.server.problems import refusals
from longshore.server.queue_scoping import carry_out
from longshore.server.response_limits import LARGE, page_within, run_in_thread, weight_of

router = APIRouter(route_class=GuardedRoute)

_USUAL_PAGE = 100

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_write = json.JSONEncoder(separators=(",", ":"), default=str).encode


def _serving(operation: protocol.RemoteOperation) -> Handler:
    """The route of one operation."""

    async def serve(request: Request) -> Response:
        here: Platform = request.app.state.platform
        caller: Caller = request.state.caller
        raw = await request.body()
        if len(raw) < LARGE_BODY:
            arguments, wait = _arguments(here, operation, raw)
        else:
            arguments, wait = await run_in_thread(_arguments, here, operation, raw)
        unfenced = _is_unfenced(operation, arguments)
        if unfenced:  # a call without a lease needs the rights of an operator
            caller.check_scope(Scope.ADMIN)
        if operation.note_of:
            here.notes.count(caller.name, check_name(operation.note_of, arguments[operation.note_of]))
        if "actor" in operation.takes and request.app.state.gate.authenticates:
            arguments["actor"] = caller.name  # not the one that the request names

        async def answer() -> bytes:
            if wait:
                found: Any = await claim_within(request, here, caller, arguments, wait)
            elif unfenced and request.app.state.gate.authenticates:
                with acting(caller.name):
                    found = await _call_operation(here, caller, operation, arguments)
            else:
                found = await _call_operation(here, caller, operation, arguments)
            if weight_of(found) < LARGE:
                return _written(operation, caller, found, _write)
            return await run_in_thread(_written, operation, caller, found, _write_incrementally)

        key = request.headers.get(protocol.KEY, "")
        if key and not operation.reads:
            name = f"{caller.name}\n{operation.name}"
            sent_to = request.headers.get(protocol.SENT_TO, "")
            body = await here.replays.once(name, check_name(protocol.KEY, key), sent_to, raw, answer)
        else:
            body = await answer()
        headers = {protocol.MARK: await here.changes.mark()}
        if not here.backend.capabilities.durable:
            headers[protocol.NOT_DURABLE] = "yes"
        if operation.returns_nothing:
            return Response(status_code=204, headers=headers)
        return Response(body, 200, headers, "application/json")

    serve.__name__ = operation.operation_id
    serve.__doc__ = full_description(operation)
    return serve


def _arguments(here: Platform, operation: protocol.RemoteOperation, raw: bytes) -> tuple[dict[str, Any], float]:
    """The arguments of the call, and how long a claim may wait."""
    body = check_object("body", read_body(raw))
    wait = 0.0
    if operation is protocol.DEQUEUE_JOBS and "wait" in body:
        given = read_span("wait", body.pop("wait"))
        wait = min(check_duration("wait", given, positive=False) / SECOND, here.options.longest_wait)
    only("", body, operation.takes)
    for name in operation.needed:
        if name not in body:
            raise InvalidArgument(name, "is missing")
    arguments = {name: operation.takes[name].read(name, value) for name, value in body.items()}
    if operation.bounded and type(arguments.get("limit")) is int:
        arguments["limit"] = min(arguments["limit"], protocol.MOST_AT_ONCE)
    if operation.name == "wait_for_change":  # CHANGES is the path for long polls
        arguments["timeout"] = 0
    return arguments, wait


def _is_unfenced(operation: protocol.RemoteOperation, arguments: dict[str, Any]) -> bool:
    """Whether the call changes a job without its lease."""
    if operation.takes.get("lease") is LEASE:
        return arguments.get("lease") is None
    return any(outcome.lease is None for outcome in arguments.get("outcomes", ()))


def _written(operation: protocol.RemoteOperation, caller: Caller, found: Any, write: Callable[[Any], str]) -> bytes:
    if operation.returns_nothing:
        return b""
    value = operation.returns.write(operation.answer, found)
    if not caller.scopes & {Scope.WORK, Scope.ADMIN}:
        _hide_tokens(value)
    return write({operation.answer: value} if operation.answer else value).encode()


def _write_incrementally(value: Any) -> str:
    """Like `_write`, but record by record: one long call would block all other threads."""
    if isinstance(value, dict):
        return f"{{{','.join([f'{_write(name)}:{_write_incrementally(inner)}' for name, inner in value.items()])}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_write, value))}]"
    return _write(value)


async def _call_operation(
    here: Platform, caller: Caller, operation: protocol.RemoteOperation, arguments: dict[str, Any]
) -> Any:
    """Call the operation; the result holds no more large jobs than fit into one response."""
    if operation is protocol.SETTLE_AND_DEQUEUE:
        return await settle_and_claim(here, caller, arguments)
    if operation is protocol.DEQUEUE_JOBS:
        return await claimed(here, caller, arguments)
    if operation is protocol.LIST_JOBS:
        return await _page(here, caller, arguments)
    found = await carry_out(here, caller, operation.name, arguments)
    if "jobs" in arguments:  # after the store has checked them
        here.job_sizes.note_added(arguments["jobs"])
    elif "job" in arguments:
        here.job_sizes.note_added([arguments["job"]])
    return found


async def _page(here: Platform, caller: Caller, arguments: dict[str, Any]) -> Page:
    async def look(limit: int, cursor: str | None) -> Page:
        page: Page = await carry_out(
            here, caller, protocol.LIST_JOBS.name, {**arguments, "limit": limit, "cursor": cursor}
        )
        return page

    return await page_within(look, checks.limit(arguments.get("limit", _USUAL_PAGE)), arguments.get("cursor"))


def _hide_tokens(value: Any) -> None:
    """Remove lease tokens, which only workers need. Other callers see when a lease expires."""
    if isinstance(value, list):
        for one in value:
            _hide_tokens(one)
    elif isinstance(value, dict):
        if isinstance(value.get("lease"), dict):
            value["lease"]["token"] = ""
        _hide_tokens(value.get("items"))
        _hide_tokens(value.get("job"))


# -- long poll for changes


@router.post(
    protocol.CHANGES,
    tags=["store"],
    summary="Wait for a change",
    responses={**refusals(), 200: CHANGES_ANSWER},
    response_class=Response,
    openapi_extra=CHANGES_BODY,
)
@needs(Scope.READ)
async def wait_for_changes(request: Request) -> Response:
    """Respond when the store has changed since `mark`, or after `timeout` seconds.

    Without a mark, respond at once with the current one. Every response of the store has the mark as a header.
    """
    here: Platform = request.app.state.platform
    raw = await request.body()
    body = check_object("body", read_body(raw) if len(raw) < LARGE_BODY else await run_in_thread(read_body, raw))
    only("", body, {"mark": "", "timeout": 0})
    mark, given = body.get("mark", ""), read_span("timeout", body.get("timeout", 0))
    if not isinstance(mark, str):
        raise InvalidArgument("mark", "must be the mark of an earlier response")
    seconds = min(check_duration("timeout", given, positive=False) / SECOND, here.options.longest_wait)
    now = await here.changes.mark()
    if mark == now and seconds:
        with here.open_stream():
            await first_completed(here.changes.after(mark, seconds), here.closed())
        await request.app.state.gate.admit(request)
        now = await here.changes.mark()
    changed = bool(mark) and mark != now
    return Response(_write({"mark": now, "changed": changed}), 200, {protocol.MARK: now}, "application/json")


# -- all operations


def _add(operation: protocol.RemoteOperation) -> None:
    responses: dict[int | str, dict[str, Any]] = refusals(404, 409, 410)
    if not operation.returns_nothing:
        responses[200] = {"description": "Success", "content": {"application/json": {"schema": operation.answers}}}
    endpoint = needs(Scope(operation.scope))(as_the_store(_serving(operation)))
    router.add_api_route(
        operation.path,
        endpoint,
        methods=["POST"],
        tags=["work" if operation.path.startswith("/v1/work/") else "store"],
        operation_id=operation.operation_id,
        summary=operation.description.partition("\n")[0],
        description=full_description(operation),
        status_code=204 if operation.returns_nothing else 200,
        response_class=Response,
        responses=responses,
        openapi_extra=operation_schema(operation),
    )


for _operation in protocol.OPERATIONS.values():
    _add(_operation)
