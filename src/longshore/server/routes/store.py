"""The contract over HTTP: work for workers on other machines, and every other verb for the remote backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from longshore.backends.remote import records
from longshore.backends.remote.forms import WAIT, an_object, only, read_span
from longshore.backends.remote.protocol import CHANGES, FORGETFUL, KEY, MARK, MOST_AT_ONCE, SENT_TO, VERBS, Verb
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.moments import SECOND, check_duration
from longshore.core.names import check_name
from longshore.server.access import Caller, GuardedRoute, Scope, as_the_store, needs
from longshore.server.bodies import read_body
from longshore.server.models.problems import refusals
from longshore.server.platform import Platform
from longshore.server.within_queues import carry_out

router = APIRouter(route_class=GuardedRoute)

_LOOK_AGAIN = 5.0
"""Seconds after which a claim that waits looks although it has heard nothing."""
_SLACK = 0.002
_BOUNDED = frozenset(
    {
        "dequeue_jobs",
        "settle_and_dequeue",
        "list_jobs",
        "read_events",
        "reclaim_expired_leases",
        "time_out_cancellations",
    }
)
_NOTES = frozenset({"set_progress", "append_log", "save_checkpoint"})
_CLAIM = "dequeue_jobs"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_write = json.JSONEncoder(separators=(",", ":"), default=str).encode


def _serving(verb: Verb[Any]) -> Handler:
    """The route of one verb."""

    async def serve(request: Request) -> Response:
        here: Platform = request.app.state.platform
        caller: Caller = request.state.caller
        raw = await request.body()
        arguments, wait = _arguments(here, verb, read_body(raw))
        _check_leases(verb, caller, arguments)
        if verb.name in _NOTES:
            here.notes.count(caller.name, arguments["job_id"])
        if "actor" in verb.takes and request.app.state.gate.authenticates:
            arguments["actor"] = caller.name  # whoever they say they are

        async def answer() -> bytes:
            if wait:
                found = await _claimed_within(request, here, caller, arguments, wait)
            else:
                found = await carry_out(here.backend, caller, verb.name, arguments)
            return _written(verb, caller, found)

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
    serve.__doc__ = _told_in_full(verb)
    return serve


def _arguments(here: Platform, verb: Verb[Any], body: Any) -> tuple[dict[str, Any], float]:
    """What the verb is called with, and how long a claim may wait."""
    told = an_object("body", body)
    wait = 0.0
    if verb.name == _CLAIM and "wait" in told:
        given = read_span("wait", told.pop("wait"))
        wait = min(check_duration("wait", given, positive=False) / SECOND, here.options.longest_wait)
    only("", told, verb.takes)
    for name in verb.needed:
        if name not in told:
            raise InvalidArgument(name, "is missing")
    arguments = {name: verb.takes[name].read(name, value) for name, value in told.items()}
    if verb.name in _BOUNDED and type(arguments.get("limit")) is int:
        arguments["limit"] = min(arguments["limit"], MOST_AT_ONCE)
    if verb.name == "wait_for_change":  # those who wait long wait at an address of its own
        arguments["timeout"] = 0
    if verb.name in _NOTES:
        check_name("job_id", arguments["job_id"])
    return arguments, wait


def _check_leases(verb: Verb[Any], caller: Caller, arguments: dict[str, Any]) -> None:
    """A call without a lease is one of whoever calls, and that is for operators."""
    if verb.takes.get("lease") is records.LEASE:
        fenced = arguments.get("lease") is not None
    else:
        fenced = all(outcome.lease is not None for outcome in arguments.get("outcomes", ()))
    if not fenced:
        caller.check_scope(Scope.ADMIN)


def _written(verb: Verb[Any], caller: Caller, found: Any) -> bytes:
    if verb.says_nothing:
        return b""
    told = verb.returns.write(verb.answer, found)
    if not caller.scopes & {Scope.WORK, Scope.ADMIN}:
        _hide_tokens(told)
    return _write({verb.answer: told} if verb.answer else told).encode()


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


async def _claimed_within(
    request: Request, here: Platform, caller: Caller, arguments: dict[str, Any], seconds: float
) -> list[Job]:
    """Claims as soon as there is something to claim; nothing for a client that has gone."""
    deadline = monotonic() + seconds
    with here.a_place():
        while True:
            mark = await here.changes.mark()
            jobs: list[Job] = await carry_out(here.backend, caller, _CLAIM, arguments)
            left = deadline - monotonic()
            if jobs or left <= 0 or here.closing:
                return jobs
            soon = await _until_due(here, caller, arguments)
            await _first(here.changes.after(mark, min(left, soon, _LOOK_AGAIN)), here.closed())
            if await request.is_disconnected():
                raise ClientDisconnect
            await request.app.state.gate.admit(request)  # whoever waited may have lost their token meanwhile


async def _until_due(here: Platform, caller: Caller, arguments: dict[str, Any]) -> float:
    """Seconds until the time of the first delayed job comes."""
    queues = arguments.get("queues") if caller.queues is None else caller.queues_among(arguments.get("queues") or ())
    first = await here.backend.next_due(queues)
    if first is None:
        return _LOOK_AGAIN
    return max(0.0, (first - await here.backend.now()).total_seconds()) + _SLACK


async def _first(*waits: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- the next change


@router.post(
    CHANGES,
    tags=["store"],
    operation_id="wait_for_changes",
    summary="Wait for the next change",
    responses={
        **refusals(),
        200: {
            "description": "Where the store stands, and whether that is another place than the one given.",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"mark": {"type": "string"}, "changed": {"type": "boolean"}},
                        "required": ["mark", "changed"],
                    }
                }
            },
        },
    },
    response_class=Response,
    openapi_extra={
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
    },
)
@needs(Scope.READ)
async def wait_for_changes(request: Request) -> Response:
    """Answers as soon as the store has changed since `mark`, which an earlier answer told, or after `timeout` seconds.

    Without a mark it answers at once, with the first one. Every answer of the store has the mark as a header, too.
    """
    here: Platform = request.app.state.platform
    told = an_object("body", read_body(await request.body()))
    only("", told, {"mark": "", "timeout": 0})
    mark, given = told.get("mark", ""), read_span("timeout", told.get("timeout", 0))
    if not isinstance(mark, str):
        raise InvalidArgument("mark", "must be the text that an earlier answer told")
    seconds = min(check_duration("timeout", given, positive=False) / SECOND, here.options.longest_wait)
    now = await here.changes.mark()
    if mark == now and seconds:
        with here.a_place():
            await _first(here.changes.after(mark, seconds), here.closed())
        await request.app.state.gate.admit(request)
        now = await here.changes.mark()
    changed = bool(mark) and mark != now
    return Response(_write({"mark": now, "changed": changed}), 200, {MARK: now}, "application/json")


# -- every verb

_EXAMPLES: dict[str, Any] = {
    "dequeue_jobs": {"assignee_id": "worker-1", "queues": ["mail"], "limit": 10, "lease": 30, "wait": 20},
    "extend_leases": {"leases": {"welcome-ada": {"token": "6f1c…", "epoch": 1}}, "duration": 30},
    "settle_jobs": {
        "outcomes": [{"job_id": "welcome-ada", "lease": {"token": "6f1c…", "epoch": 1}, "result": '{"sent": true}'}]
    },
    "set_progress": {"job_id": "welcome-ada", "value": 0.5, "lease": {"token": "6f1c…", "epoch": 1}},
}


def _told_in_full(verb: Verb[Any]) -> str:
    lease = (
        "\n\nWithout a lease it is for whoever has the scope admin." if verb.takes.get("lease") is records.LEASE else ""
    )
    return verb.description + lease


def _described(verb: Verb[Any]) -> dict[str, Any]:
    schema = dict(verb.body)
    if verb.name == _CLAIM:
        waits = {**WAIT.schema, "description": "Seconds to wait for a job if there is none now."}
        schema["properties"] = {**schema["properties"], "wait": waits}
    content: dict[str, Any] = {"schema": schema}
    if verb.name in _EXAMPLES:
        content["example"] = _EXAMPLES[verb.name]
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": content}}}
    if not verb.looks:
        extra["parameters"] = [
            {
                "name": KEY,
                "in": "header",
                "required": False,
                "description": "Makes the request safe to repeat for two minutes: it is answered as the first was.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        ]
    return extra


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
        description=_told_in_full(verb),
        status_code=204 if verb.says_nothing else 200,
        response_class=Response,
        responses=told,
        openapi_extra=_described(verb),
    )


for _verb in VERBS.values():
    _add(_verb)
