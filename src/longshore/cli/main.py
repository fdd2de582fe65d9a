"""The `longshore` command: what the store can do, from a terminal."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

import longshore
from longshore.backends.contract import Backend, CopiesItself
from longshore.backends.opening import connect
from longshore.cli.moving import migrate_data
from longshore.cli.output import printable
from longshore.cli.pipeline import pipeline
from longshore.cli.serve import serve_api
from longshore.cli.token import token
from longshore.cli.up import up
from longshore.core.errors import BackendUnavailable, InvalidArgument, LongshoreError

EXIT_USAGE = 2
EXIT_UNAVAILABLE = 3
EXIT_OTHER = 1

app = typer.Typer(
    help="A durable job queue for Python. Exit codes: 0 ok, 1 refused, 2 wrong use, 3 the store cannot be used.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Url = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="Where the jobs are, like sqlite:///jobs.db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _within(url: str, use: Callable[[Backend], Awaitable[None]]) -> None:
    async def opened() -> None:
        # a mistyped address must not make an empty file and then report on it
        options: dict[str, Any] = {"create": False} if url.startswith("sqlite:") else {}
        async with connect(url, **options) as backend:
            await use(backend)

    asyncio.run(opened())


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"longshore {longshore.__version__}")
        raise typer.Exit


@app.command()
def stats(
    url: Url, queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None, as_json: AsJson = False
) -> None:
    """How many jobs are in each status."""

    async def show(backend: Backend) -> None:
        counts = await backend.count_jobs(queue)
        if as_json:
            typer.echo(json.dumps({status.value: jobs for status, jobs in counts.items()}))
            return
        for status, jobs in counts.items():
            typer.echo(f"{status.value:<18}{jobs:>10}")

    _within(url, show)


@app.command()
def backup(url: Url, target: Annotated[str, typer.Argument(help="The file to write; it must not exist yet.")]) -> None:
    """Copies a SQLite store to a file while it is in use."""

    async def copy(backend: Backend) -> None:
        if not isinstance(backend, CopiesItself):
            raise InvalidArgument("url", "this store cannot copy itself; use your database's own tools for backups")
        await backend.backup(target)
        typer.echo(f"copied to {target}")

    _within(url, copy)


app.command()(migrate_data)
app.command("serve")(serve_api)
app.command()(up)
app.add_typer(pipeline, name="pipeline")
app.add_typer(token, name="token")


def run() -> None:
    """The entry point: errors are one line that says what to do, never a traceback."""
    try:
        app()
    except LongshoreError as error:
        code = EXIT_OTHER
        if isinstance(error, InvalidArgument):
            code = EXIT_USAGE
        elif isinstance(error, BackendUnavailable):
            code = EXIT_UNAVAILABLE
        typer.echo(f"longshore: {printable(str(error))}", err=True)
        sys.exit(code)
