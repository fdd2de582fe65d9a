"""`longshore token`: who may call the servers of a store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from longshore.backends.contract import Backend
from longshore.backends.opening import connect
from longshore.backends.tokens import KeepsTokens
from longshore.cli.output import printable, show_table
from longshore.core.errors import InvalidArgument
from longshore.core.token import Token

token = typer.Typer(help="API tokens: make, list and revoke them.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="Where the jobs are, like sqlite:///jobs.db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Scopes = Annotated[list[str], typer.Option("--scope", help="read, submit, work or admin; may be repeated.")]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", help="Good for this queue only; may be repeated. Left out: for all.")
]
ExpiresIn = Annotated[str | None, typer.Option("--expires-in", help="Like 90d, 12h, 30m or 45s. Left out: never.")]

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SPAN = re.compile(r"(\d{1,9})([smhd])")


@token.command()
def create(
    name: Annotated[str, typer.Argument(help="Whom it is for; recorded as the actor of what they change.")],
    url: Url,
    scope: Scopes,
    queue: Queues = None,
    expires_in: ExpiresIn = None,
    as_json: AsJson = False,
) -> None:
    """Makes a token. Its secret is printed once, and can never be shown again."""
    lasts = None if expires_in is None else span_of(expires_in)

    async def make(backend: KeepsTokens, _: datetime) -> None:
        made, secret = await backend.issue_token(name, scope, queues=queue or None, expires_in=lasts)
        if as_json:
            typer.echo(json.dumps({**_told(made, made.created_at), "token": secret}))
            return
        typer.echo(
            f"Token {made.id} for {printable(made.name)} ({_may(made)}); keep it, it is not shown again:", err=True
        )
        typer.echo(secret)

    _within(url, make)


@token.command("list")
def list_(url: Url, as_json: AsJson = False) -> None:
    """Who has one, what for, and when it was last used; never the secrets."""

    async def show(backend: KeepsTokens, now: datetime) -> None:
        found = await backend.list_tokens()
        if as_json:
            typer.echo(json.dumps([_told(one, now) for one in found]))
        elif found:
            head = ("id", "name", "may", "standing", "expires", "last used")
            rows = [
                (one.id, one.name, _may(one), one.standing(now), _day(one.expires_at), _day(one.last_used_at))
                for one in found
            ]
            show_table([head, *rows])
        else:
            typer.echo("There is none yet; make one with: longshore token create NAME --scope admin")

    _within(url, show)


@token.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `longshore token list` shows it.")],
    url: Url,
    as_json: AsJson = False,
) -> None:
    """Takes a token back: within a second no server of this store heeds it."""

    async def take_back(backend: KeepsTokens, now: datetime) -> None:
        taken = await backend.revoke_token(token_id)
        typer.echo(json.dumps(_told(taken, now)) if as_json else f"revoked {taken.id} ({printable(taken.name)})")

    _within(url, take_back)


def span_of(text: str) -> timedelta:
    """A duration as a person writes it."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument("expires_in", f"must be a number with s, m, h or d, like 90d; got {text!r}")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def _within(url: str, use: Callable[[KeepsTokens, datetime], Awaitable[None]]) -> None:
    async def opened() -> None:
        # a mistyped address must not make an empty file and hand out tokens for it
        options: dict[str, Any] = {"create": False} if url.startswith("sqlite:") else {}
        async with connect(url, **options) as backend:
            await use(_keeper(backend), await backend.now())

    asyncio.run(opened())


def _keeper(backend: Backend) -> KeepsTokens:
    if not isinstance(backend, KeepsTokens):
        raise InvalidArgument(
            "url", "must be the store itself, SQLite or PostgreSQL; a server's tokens are in its store"
        )
    return backend


def _told(one: Token, now: datetime) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "scopes": sorted(one.scopes),
        "queues": None if one.queues is None else sorted(one.queues),
        "standing": one.standing(now),
        "created_at": one.created_at.isoformat(),
        "expires_at": one.expires_at and one.expires_at.isoformat(),
        "revoked_at": one.revoked_at and one.revoked_at.isoformat(),
        "last_used_at": one.last_used_at and one.last_used_at.isoformat(),
    }


def _may(one: Token) -> str:
    scopes = ", ".join(sorted(one.scopes))
    return scopes if one.queues is None else f"{scopes} in {', '.join(sorted(one.queues))}"


def _day(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"
