"""Who is calling, with which scopes and for which queues: the one seam that every route goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from longshore.backends.remote.protocol import ACTOR_SAID
from longshore.core.actor import acting
from longshore.core.errors import Forbidden, InvalidArgument, JobNotFound, LongshoreError, Unauthenticated
from longshore.core.job import Job
from longshore.core.tokens import EVERYTHING, NOBODY, Scope
from longshore.core.validation import check_name
from longshore.server.bodies import StrictRequest
from longshore.server.origins import SAFE, check_media_type, check_origin
from longshore.server.parameters import check_parameters, parameters_of
from longshore.server.refusals import TooMany

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent the request."""

    name: str
    """Recorded as the actor of what they change."""
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    """The queues they may see and touch; None is all of them."""
    expires_at: datetime | None = None
    """When what they may ends; whatever they hand on ends no later."""

    def __post_init__(self) -> None:
        if self.queues is not None and not self.queues:  # to a filter, none named would mean all
            raise InvalidArgument("queues", "must name at least one queue, or be None for all of them")

    def check_scope(self, scope: Scope) -> None:
        """Forbidden unless they have it."""
        if scope is not Scope.PUBLIC and scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise Forbidden(f"this needs the scope {scope}, and {self.name} has {_listed(self.scopes)}")

    @property
    def reads(self) -> bool:
        """Whether they may look at jobs."""
        return bool(self.scopes & {Scope.READ, Scope.ADMIN})

    def sees(self, queue: str) -> bool:
        """Whether this queue is one of theirs."""
        return self.queues is None or queue in self.queues

    def owns(self, queues: Collection[str]) -> bool:
        """Whether whatever is for these queues is for none but theirs; none named is all of them."""
        return self.queues is None or (bool(queues) and self.queues.issuperset(queues))

    def check_queue(self, queue: str) -> str:
        """The queue, or Forbidden."""
        if not self.sees(queue):
            raise Forbidden(f"{self.name} may not use the queue {queue!r}, only {_listed(self.queues or ())}")
        return queue

    def check_job(self, job: Job) -> Job:
        """The job, or JobNotFound: of other queues a caller does not learn which ids they have."""
        if not self.sees(job.queue):
            raise JobNotFound(job.id)
        return job

    def check_everywhere(self) -> None:
        """Forbidden for a caller who is bound to some queues: for what touches all of them."""
        if self.queues is not None:
            raise Forbidden(f"{self.name} may use {_listed(self.queues)} only, and this is for all queues")

    def check_grant(self, scopes: Iterable[Scope], queues: frozenset[str] | None) -> None:
        """Forbidden unless all of it is theirs to give: nobody hands on more than they have."""
        for scope in scopes:
            self.check_scope(scope)
        if not self.owns(queues or ()):
            raise Forbidden(f"{self.name} may hand on {_listed(self.queues or ())} only; name queues among these")

    def queues_among(self, wanted: Iterable[str]) -> list[str]:
        """Of the queues asked for (none: all) those to look at; Forbidden if one asked for is not theirs."""
        asked = [self.check_queue(queue) for queue in wanted]
        return asked or sorted(self.queues or ())


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "none"


class Gate(Protocol):
    """Finds out who is calling. One that `authenticates` may stand before a public address."""

    authenticates: bool

    async def admit(self, request: Request) -> Caller:
        """The caller, or Unauthenticated; asked before the body is read, for every route that is not public."""
        ...


class OpenGate:
    """Whoever reaches the server may do everything: for a loopback address, which only this machine reaches."""

    authenticates = False

    async def admit(self, request: Request) -> Caller:  # noqa: ARG002 - it asks nobody anything
        """Somebody on this machine."""
        return LOCAL


LOCAL = Caller(NOBODY, EVERYTHING)

_ASKED_AGAIN = 0.4
"""Seconds after which somebody who listens is asked again who they are."""
_SCOPE = "__longshore_scope__"
_TAKES_FORM = "__longshore_takes_form__"
_AS_THE_STORE = "__longshore_as_the_store__"


def needs(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Declares what a caller of this route must be allowed to do; every route declares one."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _SCOPE, scope)
        return endpoint

    return declare


def scope_of(endpoint: Callable[..., Any]) -> Scope | None:
    """What a route declared."""
    found: Scope | None = getattr(endpoint, _SCOPE, None)
    return found


def takes_form(endpoint: Endpoint) -> Endpoint:
    """Declares that this route is sent a form by a page of ours; every other one that changes anything takes JSON."""
    setattr(endpoint, _TAKES_FORM, True)
    return endpoint


def as_the_store(endpoint: Endpoint) -> Endpoint:
    """Declares that this route does what a program beside the store would: signed by whom it says, if by anybody."""
    setattr(endpoint, _AS_THE_STORE, True)
    return endpoint


class GuardedRoute(APIRoute):
    """A route that knows its scope: the caller is asked for it before a byte of the body is read.

    A page of another origin reaches none of them, and a plain form only those that take one.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        scope = scope_of(endpoint)
        if scope is None:
            raise InvalidArgument(
                "scope", f"{endpoint.__qualname__} declares none; say @needs(Scope.…) below its route"
            )
        self.scope = scope
        if scope is not Scope.PUBLIC:
            told = {"security": [{"token": []}], "x-longshore-scope": str(scope)}
            options["openapi_extra"] = {**told, **(options.get("openapi_extra") or {})}
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler behind the gate."""
        handle = super().get_route_handler()
        scope = self.scope
        takes_form = getattr(self.endpoint, _TAKES_FORM, False)
        as_the_store = getattr(self.endpoint, _AS_THE_STORE, False)
        known = parameters_of(self.dependant)

        async def guarded(request: Request) -> Response:
            changes = request.method not in SAFE
            check_origin(request, proof=changes and takes_form)
            if scope is not Scope.PUBLIC:
                caller = await request.app.state.gate.admit(request)
                caller.check_scope(scope)
                request.state.caller = caller
                check_parameters(request, known)  # those of probes and sign-in pages are nobody's filter
            if changes and not takes_form:
                check_media_type(request)
            strict = StrictRequest(request.scope, request.receive)
            if not changes or scope is Scope.PUBLIC:
                return await handle(strict)
            if as_the_store and not request.app.state.gate.authenticates:
                with acting(_name_said(request)):
                    return await handle(strict)
            # a worker is known by the jobs it holds, and one who holds none signs in routes/store.py; all others here
            if scope is Scope.WORK:
                return await handle(strict)
            with acting(request.state.caller.name):
                return await handle(strict)

        return guarded


def _name_said(request: Request) -> str:
    """As whom a program beside the store says that it acts; nobody, unless it does."""
    said = unquote(request.headers.get(ACTOR_SAID, ""))
    return said and check_name(ACTOR_SAID, said)


async def turned_away(request: Request) -> None:
    """Returns when whoever sent this would not be let in any more: for an answer that lasts longer than a token may."""
    gate: Gate = request.app.state.gate
    if not gate.authenticates:
        await asyncio.get_running_loop().create_future()  # never
    while True:
        await asyncio.sleep(_ASKED_AGAIN)
        try:
            await gate.admit(request)
        except (Unauthenticated, TooMany):
            return
        except LongshoreError:  # a store that does not answer says nothing of the caller
            continue


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


Calling = Annotated[Caller, Depends(_caller)]
"""The caller, for a route that is not public."""
