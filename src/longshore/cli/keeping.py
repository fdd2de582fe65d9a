"""Keeping a store: `backup`, and `migrate`, which brings its schema up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.gathering import gathered
from longshore.cli.output import say, say_model
from longshore.cli.store import AsJson, Store, a_store
from longshore.core.errors import InvalidArgument
from longshore.core.validation import shown_address

if TYPE_CHECKING:
    from longshore.runtime.queue import Queue

Target = Annotated[str, typer.Argument(help="The file to write; it must not exist yet.")]


@gathered(store=a_store)
def backup(target: Target, *, store: Store) -> None:
    """Copies a SQLite store to a file while it is in use."""

    async def copy(queue: Queue) -> None:
        from longshore.backends.base import CopiesItself

        if not isinstance(queue.backend, CopiesItself):
            raise InvalidArgument("url", "this store cannot copy itself; use your database's own tools for backups")
        await queue.backend.backup(target)
        say(f"copied to {target}")

    store.within(copy)


@gathered(store=a_store)
def migrate(*, as_json: AsJson = False, store: Store) -> None:
    """Makes a store if there is none, brings its schema up to date, and tells its version."""

    async def look(queue: Queue) -> None:
        from longshore.backends.base import HasSchema
        from longshore.cli.shapes import MigrationView

        if not isinstance(queue.backend, HasSchema):
            raise InvalidArgument("url", "this store has no schema of its own to bring up to date")
        version = await queue.backend.schema_version()
        if as_json:
            say_model(MigrationView(store=shown_address(store.url), schema_version=version))
        else:
            say(f"{shown_address(store.url)} is up to date: its schema has version {version}")

    store.within(look, create=True)
