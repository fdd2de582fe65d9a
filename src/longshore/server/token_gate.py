"""The gate that asks for tokens: found by their id, compared in constant time, and forgotten within a second.

A browser shows its token once, and then the cookie of a session that began with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from time import monotonic

from fastapi import Request

from longshore.backends.base import Backend
from longshore.backends.token_store import Found, KeepsTokens
from longshore.core.errors import InvalidArgument, LongshoreError, Unauthenticated
from longshore.core.tokens import Scope, Token, id_in
from longshore.safe_logging import logger
from longshore.server.access import Caller
from longshore.server.failures import Failures
from longshore.server.names_in_paths import root_of
from longshore.server.newest import Newest
from longshore.server.origins import SAFE, check_origin
from longshore.server.sessions import Sessions, cookie_name

FRESH = 0.5
"""Seconds for which what was looked up is believed: a token revoked by another process is refused within them."""
_MOST_KNOWN = 1_000
_NOTED_EVERY = 60.0
"""Seconds between two notes of when a token was last used: a write for each request would be one too many."""

_SEND_ONE = "send a token as `Authorization: Bearer lsk_…`; `longshore token create` makes one"
_WRONG = "this token opens nothing here: it is unknown, expired or revoked; ask for a new one"

_log = logger("longshore.server")


class TokenGate:
    """Lets in whoever has a token that the store knows."""

    authenticates = True

    def __init__(
        self, backend: Backend, *, session_key: bytes | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """Without a `session_key` browsers sign in to this process alone, and anew when it was restarted."""
        if not isinstance(backend, KeepsTokens):
            raise InvalidArgument("auth", "this store keeps no tokens; serve one that is SQLite or PostgreSQL")
        self._tokens: KeepsTokens = backend
        self._clock = clock
        self._failures = Failures(clock)
        self._sessions = Sessions(session_key)
        self._known: Newest[str, tuple[float, Found]] = Newest(_MOST_KNOWN)
        self._looking: dict[str, tuple[float, asyncio.Task[Found]]] = {}
        self._noted: Newest[str, float] = Newest(_MOST_KNOWN)
        self._notes: set[asyncio.Task[None]] = set()

    async def admit(self, request: Request) -> Caller:
        """Whoever the request's token names, or the session that began with one."""
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
        """The value of a cookie that stands for this secret; Forbidden if whoever has it could look at nothing."""
        token = await self.token(secret, address_of(request))
        caller_of(token).check_scope(Scope.READ)
        return self._sessions.begin(token.id, self._moment(*await self._found(token.id)))

    def end_session(self, request: Request) -> None:
        """Whatever session the request has is over."""
        value = _cookie_of(request)
        if value is not None:
            self._sessions.end(value)

    async def token(self, secret: str, address: str) -> Token:
        """The token of this secret; Unauthenticated if it opens nothing, TooMany if that came too often from there."""
        token_id = id_in(secret)
        token = None if token_id is None else await self.live(token_id)
        if token is None or not token.opens_with(secret):
            self._failures.note(address)
            raise Unauthenticated(_WRONG)
        self._note_use(token.id)
        return token

    async def live(self, token_id: str) -> Token | None:
        """The token of this id, if it is in force."""
        seen, found = await self._found(token_id)
        live = found.token is not None and found.token.standing(self._moment(seen, found)) == "live"
        return found.token if live else None

    def _moment(self, seen: float, found: Found) -> datetime:
        """What the store's clock says by now."""
        return found.now + timedelta(seconds=self._clock() - seen)

    async def _found(self, token_id: str) -> tuple[float, Found]:
        known = self._known.get(token_id)
        if known is not None and self._clock() - known[0] < FRESH:
            self._known.move_to_end(token_id)
            return known
        began, looking = self._looking.get(token_id) or self._look(token_id)
        found = await asyncio.shield(looking)
        if found.token is not None:  # what anybody may make up is not remembered
            self._known.put(token_id, (began, found))
        return began, found

    def _look(self, token_id: str) -> tuple[float, asyncio.Task[Found]]:
        """Of many requests that come together, one looks."""

        def over(look: asyncio.Task[Found]) -> None:
            del self._looking[token_id]
            if not look.cancelled():
                look.exception()  # whoever waited is told; if they have all left, nobody need be

        looking = asyncio.get_running_loop().create_task(self._find(token_id))
        self._looking[token_id] = self._clock(), looking
        looking.add_done_callback(over)
        return self._looking[token_id]

    async def _find(self, token_id: str) -> Found:
        return await self._tokens.find_token(token_id)

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
        except LongshoreError as error:  # nobody is refused for it
            _log.debug("the use of token %s was not noted: %s", token_id, error)


def caller_of(token: Token) -> Caller:
    """Whoever has it."""
    return Caller(token.name, token.scopes, token.queues, token.expires_at)


def _cookie_of(request: Request) -> str | None:
    return request.cookies.get(cookie_name(secure=request.url.scheme == "https", root=root_of(request)))


def address_of(request: Request) -> str:
    """Where a request comes from, as far as anybody can tell."""
    return "" if request.client is None else request.client.host
