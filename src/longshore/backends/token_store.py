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
"""In force at once: each is a person or a program, and somebody must be able to look them over."""
KEEP_TOKENS = timedelta(days=30)
"""How long one that is over stays listed, as one of the last `MOST_TOKENS` of these."""


_NO_QUEUE = ""
"""What is of no queue: the events of tokens, and the turn to make one."""


class Found(NamedTuple):
    """A token, and the moment of the store's clock at which it was looked up."""

    token: Token | None
    now: datetime


class TokenRows(Protocol):
    """The stored tokens, as a transaction has them; a reader has the first two methods."""

    def tokens(self) -> list[Token]:
        """All of them, by name."""
        ...

    def token(self, token_id: str) -> Token | None:
        """One of them."""
        ...

    def put_token(self, token: Token) -> None:
        """Stores a new one."""
        ...

    def revoke_token(self, token_id: str) -> None:
        """Revoked now, unless it was before."""
        ...

    def touch_tokens(self, token_ids: Sequence[str]) -> None:
        """Used now."""
        ...

    def forget_tokens(self, over_at: int) -> None:
        """Drops those that were over at this moment."""
        ...


class NewToken(NamedTuple):
    """What was asked for, checked."""

    id: str
    secret: str
    name: str
    scopes: frozenset[Scope]
    queues: frozenset[str] | None
    expires_in: int | None
    no_later_than: datetime | None


@operation()
def issue_token(tx: Transaction, new: NewToken) -> Issued:
    """Stores its hash."""
    rows = _rows(tx)
    now = from_micros(tx.now)
    ends = None if new.expires_in is None else from_micros(tx.now + new.expires_in)
    if new.no_later_than is not None and (ends is None or ends > new.no_later_than):
        raise InvalidArgument(
            "expires_in", f"must end no later than whoever makes it, at {new.no_later_than.isoformat()}"
        )
    tx.hold_queues([_NO_QUEUE], Hold.ALONE)  # of two who want one name at once, the second waits and sees the first
    known = rows.tokens()
    live = [other for other in known if other.standing(now) == "live"]
    if len(live) >= MOST_TOKENS:
        raise InvalidArgument(
            "name", f"{len(live):,} tokens are in force, and no more may be; revoke those that nobody uses"
        )
    if any(other.name == new.name for other in live):
        raise InvalidArgument("name", f"{new.name!r} is the name of a token in force; revoke it, or choose another")
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
    ends = sorted((end for token in known if (end := token.over_since(now)) is not None), reverse=True)
    until = max([now - KEEP_TOKENS, *ends[MOST_TOKENS : MOST_TOKENS + 1]])
    if ends and ends[-1] <= until:
        rows.forget_tokens(to_micros(until))


@operation()
def revoke_token(tx: Transaction, token_id: str) -> Token:
    """Marked, not removed: whose name stands in the log can still be looked up."""
    rows = _rows(tx)
    tx.hold_queues([_NO_QUEUE], Hold.ALONE)  # whoever makes one may forget this one
    known = rows.token(token_id)
    if known is None:
        raise TokenNotFound(token_id)
    rows.revoke_token(token_id)
    if known.revoked_at is None:
        _sign(tx, known, "token.revoked")
    revoked = rows.token(token_id)
    assert revoked is not None  # it was there a moment ago, in this transaction
    return revoked


def _sign(tx: Transaction, token: Token, event: str) -> None:
    """Recorded whoever did it."""
    detail: dict[str, Any] = {"token_id": token.id, "name": token.name, "scopes": sorted(token.scopes)}
    if token.queues is not None:
        detail["queues"] = sorted(token.queues)
    tx.write_event(note(_NO_QUEUE, event, tx.now, detail))


@operation()
def note_token_use(tx: Transaction, token_ids: Sequence[str]) -> None:
    """For people who wonder which tokens can go."""
    _rows(tx).touch_tokens(token_ids)


@operation()
def list_tokens(view: Reader) -> list[Token]:
    """All of them."""
    return _rows(view).tokens()


@operation()
def find_token(view: Reader, token_id: str) -> Found:
    """Looked up, with the time by which it is to be judged."""
    return Found(_rows(view).token(token_id), from_micros(view.time()))


def _rows(store: Transaction | Reader) -> TokenRows:
    rows: TokenRows = store.api_tokens  # type: ignore[union-attr]  # only stores that have it offer these operations
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
        """A new token; it ends after `expires_in`, and with `no_later_than` it must end before that."""
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
        """All tokens by name, also those that ended or were revoked lately."""
        return await self._read(list_tokens)

    async def find_token(self, token_id: str) -> Found:
        """The token of this id, if there is one."""
        return await self._read(find_token, check_name("token_id", token_id))

    async def revoke_token(self, token_id: str) -> Token:
        """From now on it opens nothing; TokenNotFound if there is none. A second time changes nothing."""
        return await self._write(revoke_token, check_name("token_id", token_id))

    async def note_token_use(self, token_ids: Sequence[str]) -> None:
        """Notes that these were used now."""
        await self._write(note_token_use, check_names("token_ids", token_ids))
