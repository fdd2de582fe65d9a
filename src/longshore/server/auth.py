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
from longshore.backends.remote.protocol import ACTOR
from longshore.backends.token_store import Found, SupportsTokens
from longshore.core.actor import acting
from longshore.core.errors import Forbidden, InvalidArgument, JobNotFound, LongshoreError, Unauthenticated
from longshore.core.job import Job
from longshore.core.times import from_micros, to_micros
from longshore.core.tokens import ANONYMOUS, EVERYTHING, Scope, Token, id_in
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
    """When the caller's token expires; tokens that the caller creates expire no later."""

    def __post_init__(self) -> None:
        if self.queues is not None and not self.queues:  # an empty filter would mean all queues
            raise InvalidArgument("queues", "must name at least one queue, or be None for all queues")

    def check_scope(self, scope: Scope) -> None:
        """Raise Forbidden unless the caller has this scope."""
        if scope is not Scope.PUBLIC and scope not in self.scopes and Scope.ADMIN not in self.scopes:
            hint = f"use a token with that scope (longshore token create NAME --scope {scope})"
            raise Forbidden(f"this needs the scope {scope}; the token {self.name} has {_listed(self.scopes)}; {hint}")

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
        """Return the queue, or raise Forbidden."""
        if not self.sees(queue):
            raise Forbidden(
                f"the token {self.name} may not use the queue {queue!r}; it is limited to {_listed(self.queues or ())}"
            )
        return queue

    def check_job(self, job: Job) -> Job:
        """Return the job, or raise JobNotFound: a caller does not learn the ids of other queues."""
        if not self.sees(job.queue):
            raise JobNotFound(job.id)
        return job

    def check_everywhere(self) -> None:
        """Raise Forbidden for a caller limited to some queues; used by operations on all queues."""
        if self.queues is not None:
            raise Forbidden(
                f"this needs a token for all queues; the token {self.name} is limited to {_listed(self.queues)}"
            )

    def check_grant(self, scopes: Iterable[Scope], queues: frozenset[str] | None) -> None:
        """Raise Forbidden if a new token would have more rights than the caller."""
        for scope in scopes:
            self.check_scope(scope)
        if not self.owns(queues or ()):
            raise Forbidden(f"the token {self.name} is limited to {_listed(self.queues or ())}; name only these queues")

    def queues_among(self, wanted: Iterable[str]) -> list[str]:
        """Return the requested queues, or all of the caller's; raise Forbidden for any other queue."""
        requested = [self.check_queue(queue) for queue in wanted]
        return requested or sorted(self.queues or ())


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "none"


class Gate(Protocol):
    """Identifies callers. A gate that `authenticates` may serve a public address."""

    authenticates: bool

    async def admit(self, request: Request) -> Caller:
        """Return the caller, or raise Unauthenticated; called before the body is read, unless the route is public."""
        ...


class OpenGate:
    """Allows every caller everything; for a loopback address, which only this machine can reach."""

    authenticates = False

    async def admit(self, request: Request) -> Caller:  # noqa: ARG002 - every caller is the same
        """Return the local caller."""
        return LOCAL


LOCAL = Caller(ANONYMOUS, EVERYTHING)

_TOKEN_CHECK_SECONDS = 0.4
"""Seconds between two checks of the token of an open stream."""
_SCOPE = "__longshore_scope__"
_TAKES_FORM = "__longshore_takes_form__"
_AS_THE_STORE = "__longshore_as_the_store__"


def needs(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Declare the scope that a caller of this route needs; every route declares one. See docs/server.md."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _SCOPE, scope)
        return endpoint

    return declare


def takes_form(endpoint: Endpoint) -> Endpoint:
    """Declare that this route takes a form of the console; all other routes that change data take JSON."""
    setattr(endpoint, _TAKES_FORM, True)
    return endpoint


def as_the_store(endpoint: Endpoint) -> Endpoint:
    """Declare that this route acts like a local program: without a token, the request may name its actor."""
    setattr(endpoint, _AS_THE_STORE, True)
    return endpoint


class GuardedRoute(APIRoute):
    """A route that checks the caller's scope before it reads the body.

    Pages of other origins are refused, and so are forms unless the route takes one. The OpenAPI document names the
    operation after its function and lists the usual refusals, unless the route says otherwise. See docs/server.md.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        scope: Scope | None = getattr(endpoint, _SCOPE, None)
        if scope is None:
            raise InvalidArgument(
                "scope", f"{endpoint.__qualname__} declares no scope; add @needs(Scope.…) below its route"
            )
        self.scope = scope
        if scope is not Scope.PUBLIC:
            secured = {"security": [{"token": []}], "x-longshore-scope": str(scope)}
            options["openapi_extra"] = {**secured, **(options.get("openapi_extra") or {})}
        options["operation_id"] = options.get("operation_id") or endpoint.__name__
        options["responses"] = options.get("responses") or refusals()
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind the checks."""
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
                with acting(_named_actor(request)):
                    return await handle(strict)
            # events of a worker name the worker; routes/store.py sets the actor of calls without a lease
            if scope is Scope.WORK:
                return await handle(strict)
            with acting(request.state.caller.name):
                return await handle(strict)

        return guarded


def _named_actor(request: Request) -> str:
    """The actor that a request without a token names; empty if it names none."""
    name = unquote(request.headers.get(ACTOR, ""))
    return name and check_name(ACTOR, name)


async def token_ended(request: Request) -> None:
    """Return when the caller's token expires or is revoked; for streams."""
    gate: Gate = request.app.state.gate
    if not gate.authenticates:
        await asyncio.get_running_loop().create_future()  # never
    while True:
        await asyncio.sleep(_TOKEN_CHECK_SECONDS)
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
"""The caller, as a parameter of a route that is not public. See docs/server.md."""

ALLOWED = 10
"""Wrong tokens per window: enough for a typing error, or for a program that still has an old token."""
WINDOW = 60.0
_MOST_REMEMBERED = 10_000
"""Addresses; the least recently seen is forgotten first."""
_NO_ADDRESS = "no address"
"""The key of all callers whose proxy sends no valid address."""


class Failures:
    """Wrong tokens by address. A valid token is accepted even if others from its address fail."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._counts: LRU[str, tuple[float, int]] = LRU(_MOST_REMEMBERED)

    def note(self, address: str) -> None:
        """Count one more from this address; raise TooMany above the limit."""
        place, now = network_of(address), self._clock()
        began, count = self._counts.get(place, (now, 0))
        if now - began >= WINDOW:
            began, count = now, 0
        self._counts.put(place, (began, count + 1))
        if count >= ALLOWED:
            seconds = max(1, ceil(began + WINDOW - now))
            raise TooMany(f"too many wrong tokens from your address; wait {seconds} seconds", seconds)


def network_of(address: str) -> str:
    """The IPv4 address, or the /64 network of an IPv6 address, which belongs to one owner."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return _NO_ADDRESS
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


SESSION_LIFETIME = timedelta(hours=12)
"""A working day; then the user signs in again."""
PLAIN, SECURE, SECURE_MOUNTED = "longshore_session", "__Host-longshore_session", "__Secure-longshore_session"
"""Names of the cookie; with these prefixes browsers accept it over TLS only."""
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
    """Sessions signed with one key; valid in this process only, unless processes share a key."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._ended: LRU[str, None] = LRU(_MOST_ENDED)

    def begin(self, token_id: str, now: datetime) -> str:
        """Return the value of a new cookie."""
        content = f"{token_id}.{secrets.token_hex(8)}.{to_micros(now + SESSION_LIFETIME)}"
        return f"{content}.{self._signature(content)}"

    def read(self, value: str) -> Session | None:
        """Return the session if the signature is valid and it was not signed out; the caller checks its end."""
        content, _, signature = value.rpartition(".")
        if not hmac.compare_digest(self._signature(content).encode(), signature.encode("utf-8", "replace")):
            return None
        token_id, number, ends = content.split(".")
        return None if number in self._ended else Session(token_id, number, from_micros(int(ends)))

    def end(self, value: str) -> None:
        """Sign out; copies of the cookie become invalid too."""
        session = self.read(value)
        if session is not None:
            self._ended.put(session.number, None)

    def _signature(self, content: str) -> str:
        return hmac.new(self._key, content.encode("utf-8", "replace"), sha256).hexdigest()


FRESH = 0.5
"""Seconds for which a token is cached, so a token that another process revokes is rejected after that time."""
_MOST_KNOWN = 1_000
_USE_WRITE_SECONDS = 60.0
"""Seconds between two writes of when a token was last used."""

_SEND = "create one with `longshore token create`, and send it as `Authorization: Bearer lsk_…`"
_TOKEN_MISSING = f"this server requires a token; {_SEND}"
_CREATE_ANOTHER = "create another with `longshore token create`"
_TOKEN_INVALID = f"the token is unknown, expired or revoked; {_CREATE_ANOTHER}"

_log = logger("longshore.server")


class TokenGate:
    """Accepts callers with a token that the store knows. See docs/security.md."""

    authenticates = True

    def __init__(
        self, backend: Backend, *, session_key: bytes | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """Without a `session_key`, browser sessions are valid in this process only, until it stops."""
        if not isinstance(backend, SupportsTokens):
            raise InvalidArgument("auth", "this store has no tokens; serve a SQLite or PostgreSQL store")
        self._tokens: SupportsTokens = backend
        self._clock = clock
        self._failures = Failures(clock)
        self._sessions = Sessions(session_key)
        self._known: LRU[str, tuple[float, Found]] = LRU(_MOST_KNOWN)
        self._looking: dict[str, tuple[float, asyncio.Task[Found]]] = {}
        self._noted: LRU[str, float] = LRU(_MOST_KNOWN)
        self._notes: set[asyncio.Task[None]] = set()

    async def admit(self, request: Request) -> Caller:
        """Return the caller of the request's token or session."""
        given = request.headers.getlist("authorization")
        if not given:
            return await self._in_session(request)
        scheme, _, secret = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer":
            raise Unauthenticated(_TOKEN_MISSING)
        return caller_of(await self.token(secret.strip(), address_of(request)))

    async def _in_session(self, request: Request) -> Caller:
        value = _cookie_of(request)
        session = None if value is None else self._sessions.read(value)
        if session is None:
            raise Unauthenticated(_TOKEN_MISSING)
        check_origin(request, proof=request.method not in SAFE)
        seen, found = await self._found(session.token_id)
        now = self._moment(seen, found)
        if found.token is None or session.ends <= now or found.token.standing(now) != "live":
            raise Unauthenticated("the session has ended; sign in again")
        request.state.signed_in = True
        return caller_of(found.token)

    async def begin_session(self, request: Request, secret: str) -> str:
        """Return the value of a session cookie for this secret; raise Forbidden if its token cannot read."""
        token = await self.token(secret, address_of(request))
        caller_of(token).check_scope(Scope.READ)
        return self._sessions.begin(token.id, self._moment(*await self._found(token.id)))

    def end_session(self, request: Request) -> None:
        """End the session of the request, if it has one."""
        value = _cookie_of(request)
        if value is not None:
            self._sessions.end(value)

    async def token(self, secret: str, address: str) -> Token:
        """Return the token of this secret; raise Unauthenticated, or TooMany after many failures."""
        token_id, problem = id_in(secret), _TOKEN_INVALID
        if token_id is not None:
            seen, found = await self._found(token_id)
            token = found.token
            if token is not None and token.has_secret(secret):
                if token.standing(self._moment(seen, found)) == "live":
                    self._note_use(token.id)
                    return token
                end, ended = token.revoked_at or token.expires_at, "was revoked" if token.revoked_at else "expired"
                problem = f"the token {token.name!r} {ended} at {end:%Y-%m-%dT%H:%M:%SZ}; {_CREATE_ANOTHER}"
        self._failures.note(address)
        raise Unauthenticated(problem)

    def _moment(self, seen: float, found: Found) -> datetime:
        """The current time of the store's clock."""
        return found.now + timedelta(seconds=self._clock() - seen)

    async def _found(self, token_id: str) -> tuple[float, Found]:
        known = self._known.get(token_id)
        if known is not None and self._clock() - known[0] < FRESH:
            self._known.move_to_end(token_id)
            return known
        began, looking = self._looking.get(token_id) or self._look(token_id)
        found = await asyncio.shield(looking)
        if found.token is not None:  # unknown ids are not cached, because callers could fill the cache with them
            self._known.put(token_id, (began, found))
        return began, found

    def _look(self, token_id: str) -> tuple[float, asyncio.Task[Found]]:
        """Start one lookup, which concurrent requests share."""

        def done(look: asyncio.Task[Found]) -> None:
            del self._looking[token_id]
            if not look.cancelled():
                look.exception()  # retrieved, so that asyncio does not log it if all waiters have left

        looking = asyncio.get_running_loop().create_task(self._tokens.find_token(token_id))
        self._looking[token_id] = self._clock(), looking
        looking.add_done_callback(done)
        return self._looking[token_id]

    def _note_use(self, token_id: str) -> None:
        now = self._clock()
        if now - self._noted.get(token_id, -1e9) < _USE_WRITE_SECONDS:
            return
        self._noted.put(token_id, now)
        note = asyncio.ensure_future(self._write_use(token_id))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _write_use(self, token_id: str) -> None:
        try:
            await self._tokens.note_token_use([token_id])
        except LongshoreError as error:  # the request succeeds without it
            _log.debug("cannot record the use of token %s: %s", token_id, error)


def caller_of(token: Token) -> Caller:
    """The caller with this token."""
    return Caller(token.name, token.scopes, token.queues, token.expires_at)


def _cookie_of(request: Request) -> str | None:
    return request.cookies.get(cookie_name(secure=request.url.scheme == "https", root=root_of(request)))


def address_of(request: Request) -> str:
    """The address of the client; empty if unknown."""
    return "" if request.client is None else request.client.host
