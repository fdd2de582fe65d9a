"""API tokens: id, secret, scopes, queues and expiry; how a secret is hashed and compared."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple

from longshore.core.errors import InvalidArgument
from longshore.core.validation import check_name, check_names

PREFIX = "lsk_"
"""Every secret begins so, and scanners of repositories and logs can look for it."""
NOBODY = "local"
"""The actor of a caller without a token; no token may have this name."""
_SECRET = re.compile(rf"{PREFIX}([0-9a-f]{{12}})_[0-9a-f]{{64}}")
_SHOWN = re.compile(rf"{PREFIX}[0-9a-f]{{12}}_[0-9a-f]+", re.IGNORECASE)


class Scope(StrEnum):
    """What a caller may do. `admin` may do everything, the others only what is their own."""

    READ = "read"
    """Look at jobs, queues, schedules, workers, events and figures."""
    SUBMIT = "submit"
    """Add jobs, and call them off."""
    WORK = "work"
    """Take jobs, keep them, report on them: a worker on another machine."""
    ADMIN = "admin"
    """Bring back, promote and remove jobs; pause and limit queues; schedules; tokens."""
    PUBLIC = "public"
    """No scope: public. Only routes use it, never tokens."""


EVERYTHING = frozenset({Scope.READ, Scope.SUBMIT, Scope.WORK, Scope.ADMIN})
"""All that a caller may have."""

Standing = Literal["live", "expired", "revoked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a store keeps of a token: never its secret."""

    id: str
    name: str
    """Who calls with it; recorded as the actor of what they change."""
    scopes: frozenset[Scope]
    queues: frozenset[str] | None
    """The queues it is good for; None is all of them."""
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    """Within a minute."""
    hash: str = field(repr=False)

    def standing(self, now: datetime) -> Standing:
        """Whether it opens anything at this moment of the store's clock."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "live"

    def over_since(self, now: datetime) -> datetime | None:
        """Since when it opens nothing, if it does not at this moment."""
        ends = [end for end in (self.revoked_at, self.expires_at) if end is not None and end <= now]
        return min(ends, default=None)

    def opens_with(self, secret: str) -> bool:
        """Whether this is its secret; takes the same time wherever the two differ."""
        return hmac.compare_digest(self.hash, hash_of(secret))


class Issued(NamedTuple):
    """A new token, with the only copy of its secret there will ever be."""

    token: Token
    secret: str


def new_secret(token_id: str) -> str:
    """The secret: the token's id and 32 random bytes."""
    return f"{PREFIX}{token_id}_{secrets.token_hex(32)}"


def new_token_id() -> str:
    """Told to everybody; by it a token is found and revoked."""
    return secrets.token_hex(6)


def hash_of(secret: str) -> str:
    """What is kept. The secret is 256 random bits, not a person's password: a slow hash would protect nothing more."""
    return hashlib.sha256(secret.encode()).hexdigest()


def id_in(secret: str) -> str | None:
    """The id that a secret names; None if it does not even look like one."""
    found = _SECRET.fullmatch(secret)
    return None if found is None else found[1]


def without_secrets(text: str) -> str:
    """The text with every token in it blotted out, for logs."""
    return _SHOWN.sub(f"{PREFIX}…", text) if PREFIX in text.lower() else text


def check_token_name(value: object) -> str:
    """A name by which its deeds will be known."""
    name = check_name("name", value)
    if name == NOBODY:
        raise InvalidArgument("name", f"{NOBODY!r} is how whoever calls without a token is called; choose another")
    return name


def check_scopes(values: object) -> frozenset[Scope]:
    """At least one that a caller may have."""
    allowed = ", ".join(sorted(EVERYTHING))
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidArgument("scopes", f"must be a list of {allowed}")
    chosen = frozenset(values)
    if not chosen:
        raise InvalidArgument("scopes", f"must name at least one of {allowed}")
    for value in chosen - EVERYTHING:
        raise InvalidArgument("scopes", f"{value!r} is none; choose among {allowed}")
    return frozenset(Scope(value) for value in chosen)


def check_queues(values: object) -> frozenset[str] | None:
    """Names of queues, at least one, or None for all of them."""
    if values is None:
        return None
    names = frozenset(check_names("queues", values))
    if not names:  # to a filter, none named would mean all
        raise InvalidArgument("queues", "must name at least one queue, or be None for all of them")
    return names
