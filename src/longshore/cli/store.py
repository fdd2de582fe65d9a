"""`migrate`, `backup` and `migrate-data`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.backends.data_migration import Begun, MoveReport, SupportsCopyIn, SupportsCopyOut, move
from longshore.cli.exit_codes import Exit
from longshore.cli.open_store import AsJson, Store
from longshore.cli.options import on_store
from longshore.cli.output import print_json, print_line, print_model, print_stderr, print_table, progress
from longshore.core.errors import InvalidArgument
from longshore.core.validation import counted, shown_address

if TYPE_CHECKING:
    from longshore.backends.base import Backend
    from longshore.runtime.queue import Queue

BackupFile = Annotated[str, typer.Argument(help="The file to write; it must not exist yet.")]


@on_store()
async def backup(queue: Queue, target: BackupFile) -> None:
    """Copy a SQLite store to a file while processes use it."""
    from longshore.backends.base import SupportsBackup

    if not isinstance(queue.backend, SupportsBackup):
        raise InvalidArgument("url", "must be a SQLite store; back up other databases with their own tools")
    await queue.backend.backup(target)
    print_line(f"backup written to {target}")


@on_store(create=True)
async def migrate(queue: Queue, *, as_json: AsJson = False, store: Store) -> None:
    """Create a store or update its schema, and print the schema version."""
    from longshore.backends.base import HasSchema
    from longshore.cli.json_output import MigrationView

    if not isinstance(queue.backend, HasSchema):
        raise InvalidArgument("url", "must be a SQLite or PostgreSQL store; others have no schema to update")
    version = await queue.backend.schema_version()
    if as_json:
        print_model(MigrationView(store=shown_address(store.url), schema_version=version))
    else:
        print_line(f"{shown_address(store.url)} is up to date: schema version {version}")


Source = Annotated[str, typer.Argument(help="The store to copy from, such as sqlite:///jobs.db. Its jobs stay.")]
Target = Annotated[str, typer.Argument(help="The new store: postgresql://user@host/database or sqlite:///new.db.")]
Schema = Annotated[str, typer.Option(help="The PostgreSQL schema; in the target it is created if it does not exist.")]
WhileLive = Annotated[
    bool,
    typer.Option("--while-live", help="Move even if workers are active; jobs running now will run in both stores."),
]
CopyAsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def migrate_data(
    source: Source,
    target: Target,
    schema: Schema = "longshore",
    while_live: WhileLive = False,
    as_json: CopyAsJson = False,
) -> None:
    """Move a SQLite store to PostgreSQL, or back: jobs, logs, schedules, events, settings.

    If it is stopped or killed, run it again to resume. No process can use the target until the move is complete and
    both stores agree.
    """
    import asyncio

    from longshore.backends.connect import connect

    options = {} if target.startswith("postgres") else _in_schema(source, schema)
    if source.startswith("sqlite:"):
        options["create"] = False  # a mistyped address must not create and move an empty file
    old = connect(source, **options)
    new = connect(target, **_in_schema(target, schema))
    try:
        report = _move(old, new, while_live)
    except KeyboardInterrupt:
        print_stderr("longshore: stopped; run the same command again to resume")
        raise typer.Exit(Exit.INTERRUPTED) from None
    finally:
        asyncio.run(_close(old, new))
    if as_json:
        print_json(_as_json(report))
    else:
        _show(report)


def _in_schema(url: str, schema: str) -> dict[str, Any]:
    return {"schema": schema} if url.startswith("postgres") else {}


def _move(old: Backend, new: Backend, while_live: bool) -> MoveReport:
    if not isinstance(old, SupportsCopyOut):
        raise InvalidArgument(
            "source", "must be a SQLite or PostgreSQL store: sqlite:///jobs.db or postgresql://user@host/database"
        )
    if not isinstance(new, SupportsCopyIn):
        raise InvalidArgument(
            "target", "must be a SQLite or PostgreSQL store: postgresql://user@host/database or sqlite:///jobs.db"
        )
    with progress() as report:
        return move(old, new, while_live=while_live, on_step=lambda step: report(*step))


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


_OUTCOMES = {
    Begun.FRESH: "moved",
    Begun.RESUMED: "resumed and finished the move",
    Begun.FINISHED: "moved before, nothing to do",
}


def _show(report: MoveReport) -> None:
    print_line(f"{report.source} to {report.target}: {_OUTCOMES[report.begun]} ({report.seconds:.1f} s)")
    if report.begun is Begun.FINISHED:
        return  # the target was not read, so there are no counts
    print_line()
    print_line("Rows, equal in both stores:")
    print_table([(table, rows) for table, rows in report.inventory.tables.items()])
    jobs = [
        (queue, status, number)
        for queue, statuses in sorted(report.inventory.jobs.items())
        for status, (number, _) in sorted(statuses.items())
    ]
    if jobs:
        print_line()
        print_line("Jobs, equal in both stores, with equal checksums of status, retry count and version:")
        print_table(jobs)
    if report.left_behind:
        late = counted(report.left_behind, "event")
        print_stderr(f"longshore: {late} reached the source after the final copy and did not move")
