"""Tokens over HTTP. A secret is shown once, when the token is created."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from longshore.core.tokens import Token
from longshore.server.models.fields import Name, Names, SomeSeconds, view_of

ScopeName = Literal["read", "submit", "work", "admin"]


class TokenRequest(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "shop", "scopes": ["submit"], "queues": ["mail"], "expires_in": 7776000}]
        },
    )

    name: Name = Field(description="Recorded as the actor of what is changed with it.")
    scopes: list[ScopeName] = Field(min_length=1, max_length=4)
    queues: Names | None = Field(
        None, min_length=1, max_length=1_000, description="The only queues it is good for; left out, all."
    )
    expires_in: SomeSeconds | None = Field(None, description="Seconds; left out, it does not expire.")


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
    last_used_at: datetime | None = Field(description="Within a minute.")


class NewTokenView(TokenView):
    """A token that was just made."""

    token: str = Field(description="The secret itself. It is told now, and never again.")


class TokenList(BaseModel):
    """All tokens the caller may see, also those that are over."""

    items: list[TokenView]


def token_view(token: Token, now: datetime) -> TokenView:
    """Without its hash."""
    return view_of(TokenView, token, **_listed(token, now))


def new_token_view(token: Token, secret: str, now: datetime) -> NewTokenView:
    """With its secret."""
    return view_of(NewTokenView, token, **_listed(token, now), token=secret)


def _listed(token: Token, now: datetime) -> dict[str, Any]:
    return {
        "scopes": sorted(str(scope) for scope in token.scopes),
        "queues": None if token.queues is None else sorted(token.queues),
        "standing": token.standing(now),
    }
