"""Authentication and authorization: tokens, browser sessions, scopes, queues, and the throttle on wrong credentials."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from math import ceil
from time import monotonic
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from longshore.backends.base import Backend
from longshore.backends.remote.protocol import ACTOR_SAID
from longshore.backends.token_store import Found, SupportsTokens
from longshore.core.actor import acting
from longshore.core.errors import Forbidden, InvalidArgument, JobNotFound, LongshoreError, Unauthenticated
from longshore.core.job import Job
from longshore.core.times import from_micros, to_micros
from longshore.core.tokens import EVERYTHING, NOBODY, Scope, Token, id_in
from longshore.core.validation import check_name
from longshore.safe_logging import logger
from longshore.server.body_limits import StrictRequest
from longshore.server.http_errors import TooMany
from longshore.server.parameters import check_parameters, parameters_of, root_of
from longshore.server.problems import refusals
from longshore.server.rate_limit import LRU
from longshore.server.request_origin import SAFE, check_media_type, check_origin

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: a name, scopes and queues."""

    name: str
    """Recorded as the actor of what the caller changes."""
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    """The queues the caller may use; None means all."""
    expires_at: datetime | None = None
    """When the caller's token expires; tokens that the caller makes expire no later."""

    def __post_init__(self) -> None:
        if self.queues is not None and not self.queues:  # an empty filter would mean all queues
            raise InvalidArgument("queues", "must name at least one queue, or be None for all of them")

    def check_scope(self, scope: Scope) -> None:
        """Raises Forbidden unless the caller has this scope."""
        if scope is not Scope.PUBLIC and scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise Forbidden(f"this needs the scope {scope}, and {self.name} has {_listed(self.scopes)}")

    @property
    def reads(self) -> bool:
        """Whether the caller may read jobs."""
        return bool(self.scopes & {Scope.READ, Scope.ADMIN})

    def sees(self, queue: str) -> bool:
        """Whether the caller may use this queue."""
        return self.queues is None or queue in self.queues

    def owns(self, queues: Collection[str]) -> bool:
        """Whether all of these queues are the caller's; an empty collection means all queues."""
        return self.queues is None or (bool(queues) and self.queues.issuperset(queues))

    def check_queue(self, queue: str) -> str:
        """Returns the queue, or raises Forbidden."""
        if not self.sees(queue):
            raise Forbidden(f"{self.name} may not use the queue {queue!r}, only {_listed(self.queues or ())}")
        return queue

    def check_job(self, job: Job) -> Job:
        """Returns the job, or raises JobNotFound: a caller does not learn the ids of other queues."""
        if not self.sees(job.queue):
            raise JobNotFound(job.id)
        return job

    def check_everywhere(self) -> None:
        """Raises Forbidden for a caller bound to some queues: for operations on all queues."""
        if self.queues is not None:
            raise Forbidden(f"{self.name} may use {_listed(self.queues)} only, and this is for all queues")

    def check_grant(self, scopes: Iterable[Scope], queues: frozenset[str] | None) -> None:
        """Raises Forbidden if a new token would have more rights than the caller."""
        for scope in scopes:
            self.check_scope(scope)
        if not self.owns(queues or ()):
            raise Forbidden(f"{self.name} may hand on {_listed(self.queues or ())} only; name queues among these")

    def queues_among(self, wanted: Iterable[str]) -> list[str]:
        """The queues to read, of those requested (none: all); raises Forbidden for a queue of others."""
        asked = [self.check_queue(queue) for queue in wanted]
        return asked or sorted(self.queues or ())


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "none"


class Gate(Protocol):
    """Identifies callers. A gate that `authenticates` may serve a public address."""

    authenticates: bool

    async def admit(self, request: Request) -> Caller:
        """Returns the caller, or raises Unauthenticated; called before the body is read, unless the route is public."""
        ...


class OpenGate:
    """Allows every caller everything: for a loopback address, which only this machine reaches."""

    authenticates = False

    async def admit(self, request: Request) -> Caller:  # noqa: ARG002 - every caller is the same
        """Returns the local caller."""
        return LOCAL


LOCAL = Caller(NOBODY, EVERYTHING)

_ASKED_AGAIN = 0.4
"""Seconds between two checks of the token of an open stream."""
_SCOPE = "__longshore_scope__"
_TAKES_FORM = "__longshore_takes_form__"
_AS_THE_STORE = "__longshore_as_the_store__"


def needs(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Declares the scope that a caller of this route needs; every route declares one."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _SCOPE, scope)
        return endpoint

    return declare


def takes_form(endpoint: Endpoint) -> Endpoint:
    """Declares that a page of the console sends this route a form; all other routes that change something take JSON."""
    setattr(endpoint, _TAKES_FORM, True)
    return endpoint


def as_the_store(endpoint: Endpoint) -> Endpoint:
    """Declares that this route acts like a local program: without a token, the request may name its actor."""
    setattr(endpoint, _AS_THE_STORE, True)
    return endpoint


class GuardedRoute(APIRoute):
    """A route that checks the caller's scope before it reads the body.

    Pages of other origins are refused, and so are forms unless the route takes one. The OpenAPI document names the
    operation after its function and lists the usual refusals, unless the route says otherwise.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        scope: Scope | None = getattr(endpoint, _SCOPE, None)
        if scope is None:
            raise InvalidArgument(
                "scope", f"{endpoint.__qualname__} declares none; say @needs(Scope.…) below its route"
            )
        self.scope = scope
        if scope is not Scope.PUBLIC:
            told = {"security": [{"token": []}], "x-longshore-scope": str(scope)}
            options["openapi_extra"] = {**told, **(options.get("openapi_extra") or {})}
        options["operation_id"] = options.get("operation_id") or endpoint.__name__
        options["responses"] = options.get("responses") or refusals()
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler, behind the checks."""
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
                check_parameters(request, known)  # public routes may get any parameter
            if changes and not takes_form:
                check_media_type(request)
            strict = StrictRequest(request.scope, request.receive)
            if not changes or scope is Scope.PUBLIC:
                return await handle(strict)
            if as_the_store and not request.app.state.gate.authenticates:
                with acting(_name_said(request)):
                    return await handle(strict)
            # a worker is recorded by the jobs it holds; routes/store.py records an unfenced call; all others here
            if scope is Scope.WORK:
                return await handle(strict)
            with acting(request.state.caller.name):
                return await handle(strict)

        return guarded


def _name_said(request: Request) -> str:
    """The actor that a request without a token names; empty if it names none."""
    said = unquote(request.headers.get(ACTOR_SAID, ""))
    return said and check_name(ACTOR_SAID, said)


async def token_ended(request: Request) -> None:
    """Completes when the caller's token expires or is revoked: for responses that last."""
    gate: Gate = request.app.state.gate
    if not gate.authenticates:
        await asyncio.get_running_loop().create_future()  # never
    while True:
        await asyncio.sleep(_ASKED_AGAIN)
        try:
            await gate.admit(request)
        except (Unauthenticated, TooMany):
            return
        except LongshoreError:  # the store does not answer; the token may still be valid
            continue


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


Calling = Annotated[Caller, Depends(_caller)]
"""The caller, as a parameter of a route that is not public."""

ALLOWED = 10
"""Wrong tokens in a window: enough for a typing error, or a program that still has an old token."""
WINDOW = 60.0
_MOST_REMEMBERED = 10_000
"""Addresses; the least recently seen is forgotten first."""
_NO_ADDRESS = "no address"
"""Stands for all callers whose proxy sends no valid address."""


class Failures:
    """Failed sign-ins of one server by address. A valid token is accepted even if others fail from its address."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._counts: LRU[str, tuple[float, int]] = LRU(_MOST_REMEMBERED)

    def note(self, address: str) -> None:
        """Counts one more from this address; raises TooMany above the limit."""
        place, now = network_of(address), self._clock()
        began, count = self._counts.get(place, (now, 0))
        if now - began >= WINDOW:
            began, count = now, 0
        self._counts.put(place, (began, count + 1))
        if count >= ALLOWED:
            seconds = max(1, ceil(began + WINDOW - now))
            raise TooMany(f"too many wrong tokens came from your address; wait {seconds} seconds", seconds)


def network_of(address: str) -> str:
    """The address, or the /64 network of an IPv6 one: its owner has all of them."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return _NO_ADDRESS
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


LASTS = timedelta(hours=12)
"""A working day; then the user signs in again."""
PLAIN, SECURE, SECURE_MOUNTED = "longshore_session", "__Host-longshore_session", "__Secure-longshore_session"
"""Names of the cookie; the prefixes have browsers accept it over TLS only."""
_MOST_ENDED = 10_000


def cookie_name(*, secure: bool, root: str) -> str:
    """The cookie's name: `__Host-` requires the path `/`, which a mounted application shares with its host."""
    if not secure:
        return PLAIN
    return SECURE_MOUNTED if root else SECURE


class Session(NamedTuple):
    """The contents of a valid cookie."""

    token_id: str
    number: str
    ends: datetime


class Sessions:
    """Sessions signed with one key: of this process alone, unless processes share a key."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._ended: LRU[str, None] = LRU(_MOST_ENDED)

    def begin(self, token_id: str, now: datetime) -> str:
        """Returns the value of a new cookie."""
        said = f"{token_id}.{secrets.token_hex(8)}.{to_micros(now + LASTS)}"
        return f"{said}.{self._signature(said)}"

    def read(self, value: str) -> Session | None:
        """Returns the session if the signature is valid and it was not signed out; the caller checks its end."""
        said, _, signature = value.rpartition(".")
        if not hmac.compare_digest(self._signature(said).encode(), signature.encode("utf-8", "replace")):
            return None
        token_id, number, ends = said.split(".")
        return None if number in self._ended else Session(token_id, number, from_micros(int(ends)))

    def end(self, value: str) -> None:
        """Signs out: copies of the cookie are invalid, too."""
        session = self.read(value)
        if session is not None:
            self._ended.put(session.number, None)

    def _signature(self, said: str) -> str:
        return hmac.new(self._key, said.encode("utf-8", "replace"), sha256).hexdigest()


FRESH = 0.5
"""Seconds for which a token is cached: one revoked by another process is refused after them."""
_MOST_KNOWN = 1_000
_NOTED_EVERY = 60.0
"""Seconds between two writes of when a token was last used."""

_SEND_ONE = "send a token as `Authorization: Bearer lsk_…`; `longshore token create` makes one"
_WRONG = "this token opens nothing here: it is unknown, expired or revoked; ask for a new one"

_log = logger("longshore.server")


class TokenGate:
    """Accepts callers with a token that the store knows."""

    authenticates = True

    def __init__(
        self, backend: Backend, *, session_key: bytes | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """Without a `session_key`, sessions of browsers are valid for this process alone, until it stops."""
        if not isinstance(backend, SupportsTokens):
            raise InvalidArgument("auth", "this store keeps no tokens; serve one that is SQLite or PostgreSQL")
        self._tokens: SupportsTokens = backend
        self._clock = clock
        self._failures = Failures(clock)
        self._sessions = Sessions(session_key)
        self._known: LRU[str, tuple[float, Found]] = LRU(_MOST_KNOWN)
        self._looking: dict[str, tuple[float, asyncio.Task[Found]]] = {}
        self._noted: LRU[str, float] = LRU(_MOST_KNOWN)
        self._notes: set[asyncio.Task[None]] = set()

    async def admit(self, request: Request) -> Caller:
        """Returns the caller of the request's token or session."""
        given = request.headers.getlist("authorization")
        if not given:
            return await self._in_session(request)
        scheme, _, secret = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer":
            raise Unauthenticated(_SEND_ONE)
        return caller_of(await self.token(secret.strip(), address_of(request)))

    async def _in_session(self, request: Request) -> Caller:
        value = _cookie_of(request)
        session = None if value is None else self._sessions.read(value)
        if session is None:
            raise Unauthenticated(_SEND_ONE)
        check_origin(request, proof=request.method not in SAFE)
        seen, found = await self._found(session.token_id)
        now = self._moment(seen, found)
        if found.token is None or session.ends <= now or found.token.standing(now) != "live":
            raise Unauthenticated("this session is over; sign in again")
        request.state.signed_in = True
        return caller_of(found.token)

    async def begin_session(self, request: Request, secret: str) -> str:
        """Returns the value of a session cookie for this secret; raises Forbidden if its token cannot read."""
        token = await self.token(secret, address_of(request))
        caller_of(token).check_scope(Scope.READ)
        return self._sessions.begin(token.id, self._moment(*await self._found(token.id)))

    def end_session(self, request: Request) -> None:
        """Ends the session of the request, if it has one."""
        value = _cookie_of(request)
        if value is not None:
            self._sessions.end(value)

    async def token(self, secret: str, address: str) -> Token:
        """Returns the token of this secret; raises Unauthenticated, or TooMany after many failures."""
        token_id = id_in(secret)
        if token_id is not None:
            seen, found = await self._found(token_id)
            token = found.token
            if token is not None and token.standing(self._moment(seen, found)) == "live" and token.opens_with(secret):
                self._note_use(token.id)
                return token
        self._failures.note(address)
        raise Unauthenticated(_WRONG)

    def _moment(self, seen: float, found: Found) -> datetime:
        """The time of the store's clock now."""
        return found.now + timedelta(seconds=self._clock() - seen)

    async def _found(self, token_id: str) -> tuple[float, Found]:
        known = self._known.get(token_id)
        if known is not None and self._clock() - known[0] < FRESH:
            self._known.move_to_end(token_id)
            return known
        began, looking = self._looking.get(token_id) or self._look(token_id)
        found = await asyncio.shield(looking)
        if found.token is not None:  # unknown ids are not cached: callers can make them up
            self._known.put(token_id, (began, found))
        return began, found

    def _look(self, token_id: str) -> tuple[float, asyncio.Task[Found]]:
        """Starts one lookup, which concurrent requests share."""

        def over(look: asyncio.Task[Found]) -> None:
            del self._looking[token_id]
            if not look.cancelled():
                look.exception()  # retrieved, so that asyncio does not log it if all waiters have left

        looking = asyncio.get_running_loop().create_task(self._tokens.find_token(token_id))
        self._looking[token_id] = self._clock(), looking
        looking.add_done_callback(over)
        return self._looking[token_id]

    def _note_use(self, token_id: str) -> None:
        now = self._clock()
        if now - self._noted.get(token_id, -1e9) < _NOTED_EVERY:
            return
        self._noted.put(token_id, now)
        note = asyncio.ensure_future(self._write_use(token_id))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _write_use(self, token_id: str) -> None:
        try:
            await self._tokens.note_token_use([token_id])
        except LongshoreError as error:  # the request succeeds without it
            _log.debug("the use of token %s was not noted: %s", token_id, error)


def caller_of(token: Token) -> Caller:
    """The caller with this token."""
    return Caller(token.name, token.scopes, token.queues, token.expires_at)


def _cookie_of(request: Request) -> str | None:
    return request.cookies.get(cookie_name(secure=request.url.scheme == "https", root=root_of(request)))


def address_of(request: Request) -> str:
    """Where a request comes from, as far as anybody can tell."""
    return "" if request.client is None else request.client.host
