"""Create, list and revoke tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from longshore.backends.token_store import SupportsTokens
from longshore.core.errors import InvalidArgument, TokenNotFound
from longshore.core.tokens import Scope, Token, check_queues, check_scopes
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.models import tokens as models
from longshore.server.platform import Here, Platform
from longshore.server.problems import refusals

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=GuardedRoute)

TokenId = Annotated[str, Path(description="The token's id, not its secret.", examples=["0f3a9c51b27e"])]


@router.get("", summary="List tokens")
@needs(Scope.ADMIN)
async def list_tokens(here: Here, caller: Calling) -> models.TokenList:
    """List tokens with their scopes and last use, including expired and revoked ones."""
    now = await here.backend.now()
    found = await _token_store(here).list_tokens()
    return models.TokenList(items=[models.token_view(token, now) for token in found if _is_theirs(caller, token)])


@router.post("", summary="Create a token", status_code=201)
@needs(Scope.ADMIN)
async def create_token(body: models.TokenRequest, here: Here, caller: Calling) -> models.NewTokenView:
    """Create a token and return its secret once. It has no more rights and no longer lifetime than the caller's."""
    scopes, queues = check_scopes(body.scopes), check_queues(body.queues)
    caller.check_grant(scopes, queues)
    made = await _token_store(here).issue_token(
        body.name, scopes, queues=queues, expires_in=body.expires_in, no_later_than=caller.expires_at
    )
    return models.new_token_view(made.token, made.secret, made.token.created_at)


@router.delete("/{token_id:name}", summary="Revoke a token", responses=refusals(404))
@needs(Scope.ADMIN)
async def revoke_token(token_id: TokenId, here: Here, caller: Calling) -> models.TokenView:
    """Revoke the token. All servers of this store reject it within one second. It stays listed for 30 days."""
    token_store = _token_store(here)
    found = await token_store.find_token(token_id)
    if found.token is None or not _is_theirs(caller, found.token):
        raise TokenNotFound(token_id)
    return models.token_view(await token_store.revoke_token(token_id), found.now)


def _is_theirs(caller: Caller, token: Token) -> bool:
    return caller.owns(token.queues or ())


def _token_store(here: Platform) -> SupportsTokens:
    if not isinstance(here.backend, SupportsTokens):
        raise InvalidArgument("url", "this store has no tokens; serve a SQLite or PostgreSQL store")
    return here.backend
