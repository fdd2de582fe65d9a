"""The contract over HTTP: work for workers on other machines, and every other verb for the remote backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longshore.backends import argument_checks
from longshore.backends.base import Page
from longshore.backends.remote import records
from longshore.backends.remote.codecs import an_object, only, read_span
from longshore.backends.remote.protocol import (
    CHANGES,
    DEQUEUE_JOBS,
    FORGETFUL,
    KEY,
    LIST_JOBS,
    MARK,
    MOST_AT_ONCE,
    SENT_TO,
    SETTLE_AND_DEQUEUE,
    VERBS,
    Verb,
)
from longshore.core.actor import acting
from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, check_duration
from longshore.core.tokens import Scope
from longshore.core.validation import LARGE as LARGE_BODY
from longshore.core.validation import check_name
from longshore.server.auth import Caller, GuardedRoute, as_the_store, needs
from longshore.server.body_limits import read_body
from longshore.server.event_tail import first_of
from longshore.server.long_poll import claimed, claimed_within, settled_and_claimed
from longshore.server.openapi import CHANGES_ANSWER, CHANGES_BODY, operation_schema, told_in_full
from longshore.server.platform import Platform
from longshore.server.problems import refusals
from longshore.server.queue_scoping.guards import carry_out
from longshore.server.response_limits import LARGE, beside_the_loop, page_within, weight_of

router = APIRouter(route_class=GuardedRoute)

_USUAL_PAGE = 100

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_write = json.JSONEncoder(separators=(",", ":"), default=str).encode


def _serving(verb: Verb[Any]) -> Handler:
    """The route of one verb."""

    async def serve(request: Request) -> Response:
        here: Platform = request.app.state.platform
        caller: Caller = request.state.caller
        raw = await request.body()
        if len(raw) < LARGE_BODY:
            arguments, wait = _arguments(here, verb, raw)
        else:
            arguments, wait = await beside_the_loop(_arguments, here, verb, raw)
        unfenced = _is_unfenced(verb, arguments)
        if unfenced:  # what is done to a job without its lease is an operator's act
            caller.check_scope(Scope.ADMIN)
        if verb.note_of:
            here.notes.count(caller.name, check_name(verb.note_of, arguments[verb.note_of]))
        if "actor" in verb.takes and request.app.state.gate.authenticates:
            arguments["actor"] = caller.name  # whoever they say they are

        async def answer() -> bytes:
            if wait:
                found: Any = await claimed_within(request, here, caller, arguments, wait)
            elif unfenced and request.app.state.gate.authenticates:
                with acting(caller.name):
                    found = await _carried_out(here, caller, verb, arguments)
            else:
                found = await _carried_out(here, caller, verb, arguments)
            if weight_of(found) < LARGE:
                return _written(verb, caller, found, _write)
            return await beside_the_loop(_written, verb, caller, found, _write_in_pieces)

        key = request.headers.get(KEY, "")
        if key and not verb.looks:
            name = f"{caller.name}\n{verb.name}"
            sent_to = request.headers.get(SENT_TO, "")
            body = await here.replays.once(name, check_name(KEY, key), sent_to, raw, answer)
        else:
            body = await answer()
        headers = {MARK: await here.changes.mark()}
        if not here.backend.capabilities.durable:
            headers[FORGETFUL] = "yes"
        if verb.says_nothing:
            return Response(status_code=204, headers=headers)
        return Response(body, 200, headers, "application/json")

    serve.__name__ = verb.operation
    serve.__doc__ = told_in_full(verb)
    return serve


def _arguments(here: Platform, verb: Verb[Any], raw: bytes) -> tuple[dict[str, Any], float]:
    """What the verb is called with, and how long a claim may wait."""
    told = an_object("body", read_body(raw))
    wait = 0.0
    if verb is DEQUEUE_JOBS and "wait" in told:
        given = read_span("wait", told.pop("wait"))
        wait = min(check_duration("wait", given, positive=False) / SECOND, here.options.longest_wait)
    only("", told, verb.takes)
    for name in verb.needed:
        if name not in told:
            raise InvalidArgument(name, "is missing")
    arguments = {name: verb.takes[name].read(name, value) for name, value in told.items()}
    if verb.bounded and type(arguments.get("limit")) is int:
        arguments["limit"] = min(arguments["limit"], MOST_AT_ONCE)
    if verb.name == "wait_for_change":  # those who wait long wait at an address of its own
        arguments["timeout"] = 0
    return arguments, wait


def _is_unfenced(verb: Verb[Any], arguments: dict[str, Any]) -> bool:
    """Whether it changes a job whose lease is not shown."""
    if verb.takes.get("lease") is records.LEASE:
        return arguments.get("lease") is None
    return any(outcome.lease is None for outcome in arguments.get("outcomes", ()))


def _written(verb: Verb[Any], caller: Caller, found: Any, write: Callable[[Any], str]) -> bytes:
    if verb.says_nothing:
        return b""
    told = verb.returns.write(verb.answer, found)
    if not caller.scopes & {Scope.WORK, Scope.ADMIN}:
        _hide_tokens(told)
    return write({verb.answer: told} if verb.answer else told).encode()


def _write_in_pieces(told: Any) -> str:
    """As `_write`, record by record: within one call to it no other thread could go on."""
    if isinstance(told, dict):
        return f"{{{','.join([f'{_write(name)}:{_write_in_pieces(inner)}' for name, inner in told.items()])}}}"
    if isinstance(told, list):
        return f"[{','.join(map(_write, told))}]"
    return _write(told)


async def _carried_out(here: Platform, caller: Caller, verb: Verb[Any], arguments: dict[str, Any]) -> Any:
    """What the verb gives back; of large jobs no more than can be told at once."""
    if verb is SETTLE_AND_DEQUEUE:
        return await settled_and_claimed(here, caller, arguments)
    if verb is DEQUEUE_JOBS:
        return await claimed(here, caller, arguments)
    if verb is LIST_JOBS:
        return await _page(here, caller, arguments)
    found = await carry_out(here.backend, caller, verb.name, arguments, here.heaviest)
    if "jobs" in arguments:  # now that the store has looked at them: before, they may be anything
        here.heaviest.came_in(arguments["jobs"])
    elif "job" in arguments:
        here.heaviest.came_in([arguments["job"]])
    return found


async def _page(here: Platform, caller: Caller, arguments: dict[str, Any]) -> Page:
    async def look(limit: int, cursor: str | None) -> Page:
        page: Page = await carry_out(
            here.backend, caller, LIST_JOBS.name, {**arguments, "limit": limit, "cursor": cursor}, here.heaviest
        )
        return page

    return await page_within(look, argument_checks.limit(arguments.get("limit", _USUAL_PAGE)), arguments.get("cursor"))


def _hide_tokens(told: Any) -> None:
    """The proof of a lease is for those who work; others see until when it lasts."""
    if isinstance(told, list):
        for one in told:
            _hide_tokens(one)
    elif isinstance(told, dict):
        if isinstance(told.get("lease"), dict):
            told["lease"]["token"] = ""
        _hide_tokens(told.get("items"))
        _hide_tokens(told.get("job"))


# -- the next change


@router.post(
    CHANGES,
    tags=["store"],
    operation_id="wait_for_changes",
    summary="Wait for the next change",
    responses={**refusals(), 200: CHANGES_ANSWER},
    response_class=Response,
    openapi_extra=CHANGES_BODY,
)
@needs(Scope.READ)
async def wait_for_changes(request: Request) -> Response:
    """Answers as soon as the store has changed since `mark`, which an earlier answer told, or after `timeout` seconds.

    Without a mark it answers at once, with the first one. Every answer of the store has the mark as a header, too.
    """
    here: Platform = request.app.state.platform
    raw = await request.body()
    told = an_object("body", read_body(raw) if len(raw) < LARGE_BODY else await beside_the_loop(read_body, raw))
    only("", told, {"mark": "", "timeout": 0})
    mark, given = told.get("mark", ""), read_span("timeout", told.get("timeout", 0))
    if not isinstance(mark, str):
        raise InvalidArgument("mark", "must be the text that an earlier answer told")
    seconds = min(check_duration("timeout", given, positive=False) / SECOND, here.options.longest_wait)
    now = await here.changes.mark()
    if mark == now and seconds:
        with here.a_place():
            await first_of(here.changes.after(mark, seconds), here.closed())
        await request.app.state.gate.admit(request)
        now = await here.changes.mark()
    changed = bool(mark) and mark != now
    return Response(_write({"mark": now, "changed": changed}), 200, {MARK: now}, "application/json")


# -- every verb


def _add(verb: Verb[Any]) -> None:
    told: dict[int | str, dict[str, Any]] = refusals(404, 409, 410)
    if not verb.says_nothing:
        told[200] = {"description": "Done.", "content": {"application/json": {"schema": verb.answers}}}
    endpoint = needs(Scope(verb.scope))(as_the_store(_serving(verb)))
    router.add_api_route(
        verb.path,
        endpoint,
        methods=["POST"],
        tags=["work" if verb.path.startswith("/v1/work/") else "store"],
        operation_id=verb.operation,
        summary=verb.summary,
        description=told_in_full(verb),
        status_code=204 if verb.says_nothing else 200,
        response_class=Response,
        responses=told,
        openapi_extra=operation_schema(verb),
    )


for _verb in VERBS.values():
    _add(_verb)
