"""API tokens in the store: created, looked up, revoked and listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from longshore.backends.port import Hold, Reader, RunsOperations, Transaction, operation
from longshore.core.errors import InvalidArgument, TokenNotFound
from longshore.core.times import Duration, check_duration, from_micros, to_micros
from longshore.core.tokens import (
    Issued,
    Scope,
    Token,
    check_queues,
    check_scopes,
    check_token_name,
    hash_of,
    new_secret,
    new_token_id,
)
from longshore.core.transitions import note
from longshore.core.validation import check_name, check_names

MOST_TOKENS = 10_000
"""The most valid tokens, so that an administrator can review the list."""
KEEP_TOKENS = timedelta(days=30)
"""How long an expired or revoked token stays listed, among the last `MOST_TOKENS` of these."""


_NO_QUEUE = ""
"""The queue name of token events, and of the lock for creating a token."""


class Found(NamedTuple):
    """A token, and the store's time of the lookup."""

    token: Token | None
    now: datetime


class TokenRows(Protocol):
    """The stored tokens in a transaction; a reader has the first two methods."""

    def tokens(self) -> list[Token]:
        """All tokens, by name."""
        ...

    def token(self, token_id: str) -> Token | None:
        """The token, or None."""
        ...

    def put_token(self, token: Token) -> None:
        """Store a new token."""
        ...

    def revoke_token(self, token_id: str) -> None:
        """Set the revocation time to now, unless it is set."""
        ...

    def touch_tokens(self, token_ids: Sequence[str]) -> None:
        """Set the time of last use to now."""
        ...

    def forget_tokens(self, ended_by: int) -> None:
        """Delete the tokens that had expired or were revoked at this time."""
        ...


class NewToken(NamedTuple):
    """The checked arguments of a new token."""

    id: str
    secret: str
    name: str
    scopes: frozenset[Scope]
    queues: frozenset[str] | None
    expires_in: int | None
    no_later_than: datetime | None


@operation()
def issue_token(tx: Transaction, new: NewToken) -> Issued:
    """Store a new token with the hash of its secret."""
    rows = _rows(tx)
    now = from_micros(tx.now)
    ends = None if new.expires_in is None else from_micros(tx.now + new.expires_in)
    if new.no_later_than is not None and (ends is None or ends > new.no_later_than):
        raise InvalidArgument(
            "expires_in", f"must not end after the token that creates it, at {new.no_later_than.isoformat()}"
        )
    tx.lock_queues([_NO_QUEUE], Hold.EXCLUSIVE)  # a concurrent token with the same name waits and sees this one
    known = rows.tokens()
    live = [other for other in known if other.standing(now) == "live"]
    if len(live) >= MOST_TOKENS:
        raise InvalidArgument("name", f"{len(live):,} tokens are valid, which is the maximum; revoke unused tokens")
    if any(other.name == new.name for other in live):
        raise InvalidArgument("name", f"{new.name!r} is the name of a valid token; revoke it, or choose another name")
    _forget_those_long_over(rows, known, now)
    token = Token(
        id=new.id,
        name=new.name,
        scopes=new.scopes,
        queues=new.queues,
        created_at=now,
        expires_at=ends,
        hash=hash_of(new.secret),
    )
    rows.put_token(token)
    _sign(tx, token, "token.created")
    return Issued(token, new.secret)


def _forget_those_long_over(rows: TokenRows, known: Sequence[Token], now: datetime) -> None:
    ends = sorted((end for token in known if (end := token.ended_at(now)) is not None), reverse=True)
    until = max([now - KEEP_TOKENS, *ends[MOST_TOKENS : MOST_TOKENS + 1]])
    if ends and ends[-1] <= until:
        rows.forget_tokens(to_micros(until))


@operation()
def revoke_token(tx: Transaction, token_id: str) -> Token:
    """Mark the token as revoked. It stays stored, so that its name in the event log can be looked up."""
    rows = _rows(tx)
    tx.lock_queues([_NO_QUEUE], Hold.EXCLUSIVE)  # creating a token may delete this one
    known = rows.token(token_id)
    if known is None:
        raise TokenNotFound(token_id)
    rows.revoke_token(token_id)
    if known.revoked_at is None:
        _sign(tx, known, "token.revoked")
    revoked = rows.token(token_id)
    assert revoked is not None  # it was read above, in this transaction
    return revoked


def _sign(tx: Transaction, token: Token, event: str) -> None:
    """Record the event, with or without an actor."""
    detail: dict[str, Any] = {"token_id": token.id, "name": token.name, "scopes": sorted(token.scopes)}
    if token.queues is not None:
        detail["queues"] = sorted(token.queues)
    tx.write_event(note(_NO_QUEUE, event, tx.now, detail))


@operation()
def note_token_use(tx: Transaction, token_ids: Sequence[str]) -> None:
    """Record the last use, which shows the tokens that are not used."""
    _rows(tx).touch_tokens(token_ids)


@operation()
def list_tokens(view: Reader) -> list[Token]:
    """All tokens."""
    return _rows(view).tokens()


@operation()
def find_token(view: Reader, token_id: str) -> Found:
    """The token with the store's time, which decides whether it is valid."""
    return Found(_rows(view).token(token_id), from_micros(view.time()))


def _rows(store: Transaction | Reader) -> TokenRows:
    rows: TokenRows = store.api_tokens  # type: ignore[union-attr] # only stores with tokens offer these operations
    return rows


class SupportsTokens(RunsOperations):
    """A backend that stores API tokens."""

    async def issue_token(
        self,
        name: str,
        scopes: Iterable[Scope | str],
        *,
        queues: Iterable[str] | None = None,
        expires_in: Duration | None = None,
        no_later_than: datetime | None = None,
    ) -> Issued:
        """Create a token that ends after `expires_in`; with `no_later_than`, it must end by that time."""
        token_id = new_token_id()
        new = NewToken(
            token_id,
            new_secret(token_id),
            check_token_name(name),
            check_scopes(scopes),
            check_queues(queues),
            None if expires_in is None else check_duration("expires_in", expires_in),
            no_later_than,
        )
        return await self._write(issue_token, new)

    async def list_tokens(self) -> list[Token]:
        """All tokens by name, also those that expired or were revoked recently."""
        return await self._read(list_tokens)

    async def find_token(self, token_id: str) -> Found:
        """The token with this id, or None."""
        return await self._read(find_token, check_name("token_id", token_id))

    async def revoke_token(self, token_id: str) -> Token:
        """Revoke the token at once, or raise TokenNotFound. Repeating it changes nothing."""
        return await self._write(revoke_token, check_name("token_id", token_id))

    async def note_token_use(self, token_ids: Sequence[str]) -> None:
        """Record that these tokens were used now."""
        await self._write(note_token_use, check_names("token_ids", token_ids))
