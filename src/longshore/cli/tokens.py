"""`token`: create, list and revoke API tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.open_store import DEFAULT_URL, AsJson, Schema, Store
from longshore.cli.options import on_store
from longshore.cli.output import Column, print_line, print_list, print_model, print_stderr
from longshore.cli.parsing import duration
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.backends.base import Backend
    from longshore.backends.token_store import SupportsTokens
    from longshore.core.tokens import Token
    from longshore.runtime.queue import Queue

token = typer.Typer(help="Create, list and revoke API tokens.", no_args_is_help=True, rich_markup_mode=None)

Scopes = Annotated[list[str], typer.Option("--scope", help="read, submit, work or admin; repeatable.")]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", help="Limit the token to this queue; repeatable. Default: all queues.")
]
ExpiresIn = Annotated[
    str | None, typer.Option("--expires-in", help="Lifetime, such as 90d, 12h, 30m or 1w. Default: no expiry.")
]

StoreUrl = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="LONGSHORE_URL",
        show_default=True,
        help="The store: sqlite:///jobs.db or postgresql://user@host/database. Not a server; those have /v1/tokens.",
    ),
]


def direct_store_options(url: StoreUrl = DEFAULT_URL, schema: Schema = None) -> Store:
    """The options that name the store; the commands refuse the address of a server."""
    return Store(url, schema)


_COLUMNS = (
    Column("ID", whole=True),
    Column("NAME"),
    Column("SCOPES"),
    Column("STATE", whole=True),
    Column("EXPIRES", whole=True),
    Column("LAST USED", whole=True),
)


@token.command()
@on_store(store=direct_store_options)
async def create(
    found: Queue,
    name: Annotated[str, typer.Argument(help="The caller's name; events record it as the actor.")],
    *,
    scope: Scopes,
    queue: Queues = None,
    expires_in: ExpiresIn = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret. The secret is never shown again."""
    lifetime = None if expires_in is None else duration("expires-in", expires_in)
    made, secret = await _token_store(found.backend).issue_token(name, scope, queues=queue or None, expires_in=lifetime)
    if as_json:
        from longshore.server.models.tokens import new_token_view

        print_model(new_token_view(made, secret, made.created_at))
        return
    print_stderr(f"Token {made.id} for {made.name} ({_permissions(made)}). Store it now; it is not shown again:")
    print_line(secret)


@token.command("list")
@on_store(store=direct_store_options)
async def list_(queue: Queue, as_json: AsJson = False) -> None:
    """List tokens with scopes, state and last use. Secrets are not shown."""
    found, now = await _token_store(queue.backend).list_tokens(), await queue.backend.now()
    if as_json:
        from longshore.server.models.tokens import TokenList, token_view

        print_model(TokenList(items=[token_view(one, now) for one in found]))
    else:
        rows = [[one.id, one.name, _permissions(one), one.standing(now), *_times(one)] for one in found]
        print_list(_COLUMNS, rows, nothing="no tokens; create one with: longshore token create NAME --scope admin")


@token.command()
@on_store(store=direct_store_options)
async def revoke(
    queue: Queue,
    token_id: Annotated[str, typer.Argument(help="The token's id, as `longshore token list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a token. All servers of this store reject it within one second."""
    revoked = await _token_store(queue.backend).revoke_token(token_id)
    if as_json:
        from longshore.server.models.tokens import token_view

        print_model(token_view(revoked, await queue.backend.now()))
    else:
        print_line(f"revoked {revoked.id} ({revoked.name})")


def _token_store(backend: Backend) -> SupportsTokens:
    from longshore.backends.token_store import SupportsTokens

    if not isinstance(backend, SupportsTokens):
        raise InvalidArgument(
            "url", "must be a SQLite or PostgreSQL store; for a server, send requests to its /v1/tokens instead"
        )
    return backend


def _permissions(one: Token) -> str:
    scopes = ", ".join(sorted(one.scopes))
    return scopes if one.queues is None else f"{scopes} in {', '.join(sorted(one.queues))}"


def _times(one: Token) -> list[str]:
    return ["never" if at is None else f"{at:%Y-%m-%d %H:%M} UTC" for at in (one.expires_at, one.last_used_at)]
