"""API tokens: id, secret, scopes, queues and expiry; hashing and comparing secrets."""

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
"""The prefix of every secret, for tools that scan repositories and logs."""
ANONYMOUS = "local"
"""The actor of a caller without a token; no token may have this name."""
_SECRET = re.compile(rf"{PREFIX}([0-9a-f]{{12}})_[0-9a-f]{{64}}")
_SHOWN = re.compile(rf"{PREFIX}[0-9a-f]{{12}}_[0-9a-f]+", re.IGNORECASE)


class Scope(StrEnum):
    """What a caller may do. `admin` includes all other scopes. See docs/security.md."""

    READ = "read"
    """Read jobs, queues, schedules, workers, events and statistics."""
    SUBMIT = "submit"
    """Enqueue and cancel jobs."""
    WORK = "work"
    """Claim, renew and settle jobs: a worker on another machine."""
    ADMIN = "admin"
    """Retry, promote and remove jobs; pause and limit queues; manage schedules and tokens."""
    PUBLIC = "public"
    """No scope required. Only routes use it, never tokens."""


EVERYTHING = frozenset({Scope.READ, Scope.SUBMIT, Scope.WORK, Scope.ADMIN})
"""Every scope that a token can have."""

Standing = Literal["live", "expired", "revoked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as stored, without its secret."""

    id: str
    name: str
    """The caller's name, recorded as the actor of each change."""
    scopes: frozenset[Scope]
    queues: frozenset[str] | None
    """The queues that it gives access to; None is all."""
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    """Updated at most once a minute."""
    hash: str = field(repr=False)

    def standing(self, now: datetime) -> Standing:
        """Whether the token is valid at this time of the store's clock."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "live"

    def ended_at(self, now: datetime) -> datetime | None:
        """When the token expired or was revoked; None while it is valid."""
        ends = [end for end in (self.revoked_at, self.expires_at) if end is not None and end <= now]
        return min(ends, default=None)

    def has_secret(self, secret: str) -> bool:
        """Whether this is the token's secret, compared in constant time."""
        return hmac.compare_digest(self.hash, hash_of(secret))


class Issued(NamedTuple):
    """A new token with its secret. The secret is not stored and cannot be shown again."""

    token: Token
    secret: str


def new_secret(token_id: str) -> str:
    """A new secret: the token's id and 32 random bytes."""
    return f"{PREFIX}{token_id}_{secrets.token_hex(32)}"


def new_token_id() -> str:
    """A new id. It is not secret; it identifies the token for listing and revoking."""
    return secrets.token_hex(6)


def hash_of(secret: str) -> str:
    """The hash that is stored. A slow password hash adds nothing, because the secret has 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def id_in(secret: str) -> str | None:
    """The id inside a secret; None if the text does not have the form of a secret."""
    found = _SECRET.fullmatch(secret)
    return None if found is None else found[1]


def without_secrets(text: str) -> str:
    """Replace every secret in the text, for logs."""
    return _SHOWN.sub(f"{PREFIX}…", text) if PREFIX in text.lower() else text


def check_token_name(value: object) -> str:
    """Check the name of a new token."""
    name = check_name("name", value)
    if name == ANONYMOUS:
        raise InvalidArgument("name", f"{ANONYMOUS!r} is reserved for callers without a token; choose another name")
    return name


def check_scopes(values: object) -> frozenset[Scope]:
    """Check for at least one scope, each of which a token can have."""
    allowed = ", ".join(sorted(EVERYTHING))
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidArgument("scopes", f"must be a list of {allowed}")
    chosen = frozenset(values)
    if not chosen:
        raise InvalidArgument("scopes", f"must name at least one of {allowed}")
    for value in chosen - EVERYTHING:
        raise InvalidArgument("scopes", f"{value!r} is not a scope; choose from {allowed}")
    return frozenset(Scope(value) for value in chosen)


def check_queues(values: object) -> frozenset[str] | None:
    """Check the names of queues: at least one, or None for all."""
    if values is None:
        return None
    names = frozenset(check_names("queues", values))
    if not names:  # an empty filter would mean all queues
        raise InvalidArgument("queues", "must name at least one queue, or be None for all queues")
    return names
