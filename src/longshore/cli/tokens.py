"""`token`: creates, lists and revokes API tokens."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.open_store import HERE, AsJson, Schema, Store
from longshore.cli.options import on_store
from longshore.cli.output import Column, complain, say, say_model, show_list
from longshore.cli.parsing import duration
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.backends.base import Backend
    from longshore.backends.token_store import SupportsTokens
    from longshore.core.tokens import Token
    from longshore.runtime.queue import Queue

token = typer.Typer(help="API tokens: make, list and revoke them.", no_args_is_help=True, rich_markup_mode=None)

Scopes = Annotated[list[str], typer.Option("--scope", help="read, submit, work or admin; may be repeated.")]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", help="Good for this queue only; may be repeated. Left out: for all.")
]
ExpiresIn = Annotated[str | None, typer.Option("--expires-in", help="Like 90d, 12h, 30m or 1w. Left out: never.")]

StoreUrl = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="LONGSHORE_URL",
        show_default=True,
        help="The store itself: sqlite:///jobs.db or postgresql://user@host/database. Of a server, use its /v1/tokens.",
    ),
]


def the_store(url: StoreUrl = HERE, schema: Schema = None) -> Store:
    """The options that name the store; a server's address is refused later."""
    return Store(url, schema)


_COLUMNS = (
    Column("ID", whole=True),
    Column("NAME"),
    Column("MAY"),
    Column("STANDING", whole=True),
    Column("EXPIRES", whole=True),
    Column("LAST USED", whole=True),
)


@token.command()
@on_store(store=the_store)
async def create(
    found: Queue,
    name: Annotated[str, typer.Argument(help="Whom it is for; recorded as the actor of what they change.")],
    *,
    scope: Scopes,
    queue: Queues = None,
    expires_in: ExpiresIn = None,
    as_json: AsJson = False,
) -> None:
    """Makes a token. Its secret is printed once, and can never be shown again."""
    lasts = None if expires_in is None else duration("expires-in", expires_in)
    made, secret = await _keeper(found.backend).issue_token(name, scope, queues=queue or None, expires_in=lasts)
    if as_json:
        from longshore.server.models.tokens import new_token_view

        say_model(new_token_view(made, secret, made.created_at))
        return
    complain(f"Token {made.id} for {made.name} ({_may(made)}); keep it, it is not shown again:")
    say(secret)


@token.command("list")
@on_store(store=the_store)
async def list_(queue: Queue, as_json: AsJson = False) -> None:
    """Who has one, what for, and when it was last used; never the secrets."""
    found, now = await _keeper(queue.backend).list_tokens(), await queue.backend.now()
    if as_json:
        from longshore.server.models.tokens import TokenList, token_view

        say_model(TokenList(items=[token_view(one, now) for one in found]))
    else:
        rows = [
            (one.id, one.name, _may(one), one.standing(now), _day(one.expires_at), _day(one.last_used_at))
            for one in found
        ]
        show_list(_COLUMNS, rows, nothing="there is none yet; make one with: longshore token create NAME --scope admin")


@token.command()
@on_store(store=the_store)
async def revoke(
    queue: Queue,
    token_id: Annotated[str, typer.Argument(help="The token's id, as `longshore token list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Takes a token back: within a second no server of this store heeds it."""
    taken = await _keeper(queue.backend).revoke_token(token_id)
    if as_json:
        from longshore.server.models.tokens import token_view

        say_model(token_view(taken, await queue.backend.now()))
    else:
        say(f"revoked {taken.id} ({taken.name})")


def _keeper(backend: Backend) -> SupportsTokens:
    from longshore.backends.token_store import SupportsTokens

    if not isinstance(backend, SupportsTokens):
        raise InvalidArgument(
            "url", "must be the store itself, SQLite or PostgreSQL; through a server, tokens are made at its /v1/tokens"
        )
    return backend


def _may(one: Token) -> str:
    scopes = ", ".join(sorted(one.scopes))
    return scopes if one.queues is None else f"{scopes} in {', '.join(sorted(one.queues))}"


def _day(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"
