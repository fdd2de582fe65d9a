"""`migrate`, `backup` and `migrate-data`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.backends.data_migration import Begun, MoveReport, SupportsCopyIn, SupportsCopyOut, move
from longshore.cli.exit_codes import Exit
from longshore.cli.open_store import AsJson, Store
from longshore.cli.options import on_store
from longshore.cli.output import complain, progress, say, say_json, say_model, show_table
from longshore.core.errors import InvalidArgument
from longshore.core.validation import shown_address

if TYPE_CHECKING:
    from longshore.backends.base import Backend
    from longshore.runtime.queue import Queue

BackupFile = Annotated[str, typer.Argument(help="The file to write; it must not exist yet.")]


@on_store()
async def backup(queue: Queue, target: BackupFile) -> None:
    """Copies a SQLite store to a file while it is in use."""
    from longshore.backends.base import SupportsBackup

    if not isinstance(queue.backend, SupportsBackup):
        raise InvalidArgument("url", "this store cannot copy itself; use your database's own tools for backups")
    await queue.backend.backup(target)
    say(f"copied to {target}")


@on_store(create=True)
async def migrate(queue: Queue, *, as_json: AsJson = False, store: Store) -> None:
    """Makes a store if there is none, brings its schema up to date, and tells its version."""
    from longshore.backends.base import HasSchema
    from longshore.cli.json_output import MigrationView

    if not isinstance(queue.backend, HasSchema):
        raise InvalidArgument("url", "this store has no schema of its own to bring up to date")
    version = await queue.backend.schema_version()
    if as_json:
        say_model(MigrationView(store=shown_address(store.url), schema_version=version))
    else:
        say(f"{shown_address(store.url)} is up to date: its schema has version {version}")


Source = Annotated[str, typer.Argument(help="Where the jobs are, like sqlite:///jobs.db. They stay there, too.")]
Target = Annotated[str, typer.Argument(help="Where they go, like postgresql://user@host/database or sqlite:///new.db.")]
Schema = Annotated[
    str,
    typer.Option(help="The PostgreSQL schema; as a target it is created if it does not exist."),
]
WhileLive = Annotated[
    bool,
    typer.Option("--while-live", help="Move although workers are alive; jobs that run now will run in both places."),
]
CopyAsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def migrate_data(
    source: Source,
    target: Target,
    schema: Schema = "longshore",
    while_live: WhileLive = False,
    as_json: CopyAsJson = False,
) -> None:
    """Moves a SQLite store to PostgreSQL, or back: jobs, logs, schedules, events, settings.

    Stopped or killed, it goes on when it is run again. Nobody can use the target before it is finished, and it is
    finished only when both stores agree.
    """
    import asyncio

    from longshore.backends.connect import connect

    options = {} if target.startswith("postgres") else _in_schema(source, schema)
    if source.startswith("sqlite:"):
        options["create"] = False  # a mistyped address must not make an empty file and then move that
    old = connect(source, **options)
    new = connect(target, **_in_schema(target, schema))
    try:
        report = _moved(old, new, while_live)
    except KeyboardInterrupt:
        complain("longshore: stopped; run the same command again, and it goes on")
        raise typer.Exit(Exit.INTERRUPTED) from None
    finally:
        asyncio.run(_close(old, new))
    if as_json:
        say_json(_as_json(report))
    else:
        _show(report)


def _in_schema(url: str, schema: str) -> dict[str, Any]:
    return {"schema": schema} if url.startswith("postgres") else {}


def _moved(old: Backend, new: Backend, while_live: bool) -> MoveReport:
    if not isinstance(old, SupportsCopyOut):
        raise InvalidArgument(
            "source", "must be like sqlite:///jobs.db or postgresql://user@host/database; nothing else can be moved"
        )
    if not isinstance(new, SupportsCopyIn):
        raise InvalidArgument(
            "target",
            "must be like postgresql://user@host/database or sqlite:///jobs.db; nothing else can be moved into",
        )
    with progress() as tell:
        return move(old, new, while_live=while_live, on_step=lambda step: tell(*step))


async def _close(*backends: Backend) -> None:
    for backend in backends:
        await backend.close()


def _as_json(report: MoveReport) -> dict[str, Any]:
    return {
        "source": report.source,
        "target": report.target,
        "begun": report.begun.value,
        "tables": dict(report.inventory.tables),
        "copied": dict(report.copied),
        "queues": {
            queue: {status: jobs for status, (jobs, _) in statuses.items()}
            for queue, statuses in report.inventory.jobs.items()
        },
        "left_behind": report.left_behind,
        "seconds": round(report.seconds, 3),
    }


_BEGUN = {
    Begun.FRESH: "moved",
    Begun.RESUMED: "went on with the move and finished it",
    Begun.FINISHED: "had been moved before, nothing to do",
}


def _show(report: MoveReport) -> None:
    say(f"{report.source} to {report.target}: {_BEGUN[report.begun]} ({report.seconds:.1f} s)")
    if report.begun is Begun.FINISHED:
        return  # what the target has by now is its own affair, and was not looked at
    say()
    say("Rows, the same on both sides:")
    show_table([(table, rows) for table, rows in report.inventory.tables.items()])
    jobs = [
        (queue, status, number)
        for queue, statuses in sorted(report.inventory.jobs.items())
        for status, (number, _) in sorted(statuses.items())
    ]
    if jobs:
        say()
        say("Jobs, the same on both sides; checksums over their status, retry count and version agree:")
        show_table(jobs)
    if report.left_behind:
        complain(f"{report.left_behind:,} events were written to the source in the last moment, and stay behind")
