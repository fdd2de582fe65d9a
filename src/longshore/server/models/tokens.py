"""Tokens over HTTP. A secret is shown once, when the token is created."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from longshore.core.tokens import Token
from longshore.server.models.fields import Name, Names, SomeSeconds, view_of

ScopeName = Literal["read", "submit", "work", "admin"]


class TokenRequest(BaseModel):
    """The properties of a new token."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "shop", "scopes": ["submit"], "queues": ["mail"], "expires_in": 7776000}]
        },
    )

    name: Name = Field(description="The actor that events record for this token.")
    scopes: list[ScopeName] = Field(min_length=1, max_length=4)
    queues: Names | None = Field(
        None, min_length=1, max_length=1_000, description="The queues it is limited to. Default: all queues."
    )
    expires_in: SomeSeconds | None = Field(None, description="Lifetime in seconds. Default: no expiry.")


class TokenView(BaseModel):
    """A token without its secret."""

    id: str
    name: str
    scopes: list[ScopeName]
    queues: list[str] | None
    standing: Literal["live", "expired", "revoked"]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="Accurate to one minute.")


class NewTokenView(TokenView):
    """A new token with its secret."""

    token: str = Field(description="The secret. This is the only response that contains it.")


class TokenList(BaseModel):
    """All tokens that the caller may see, including expired and revoked ones."""

    items: list[TokenView]


def token_view(token: Token, now: datetime) -> TokenView:
    """The view of a token, without its hash."""
    return view_of(TokenView, token, **_listed(token, now))


def new_token_view(token: Token, secret: str, now: datetime) -> NewTokenView:
    """The view of a new token, with its secret."""
    return view_of(NewTokenView, token, **_listed(token, now), token=secret)


def _listed(token: Token, now: datetime) -> dict[str, Any]:
    return {
        "scopes": sorted(str(scope) for scope in token.scopes),
        "queues": None if token.queues is None else sorted(token.queues),
        "standing": token.standing(now),
    }
