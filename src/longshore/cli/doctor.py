"""`doctor`: check a store and its jobs, with a remedy for each problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.exit_codes import Exit
from longshore.cli.open_store import AsJson
from longshore.cli.options import on_store
from longshore.cli.output import Column, print_model, print_rows

if TYPE_CHECKING:
    from longshore.runtime.queue import Queue

_COLUMNS = (
    Column("CHECK", whole=True),
    Column("LEVEL", whole=True, coloured=True),
    Column("FINDING"),
    Column("REMEDY"),
)

OnlyBad = Annotated[bool, typer.Option("--problems", help="Show problems and warnings only.")]


@on_store()
async def doctor(queue: Queue, problems: OnlyBad = False, as_json: AsJson = False) -> None:
    """Check the store and its jobs, with a remedy for each problem. The exit code is 1 if there is a problem."""
    from longshore.runtime.doctor import examine

    findings = await examine(queue)
    shown = [one for one in findings if one.level != "ok" or not problems]
    healthy = all(one.level != "problem" for one in findings)
    if as_json:
        from longshore.cli.json_output import Diagnosis

        print_model(Diagnosis(healthy=healthy, findings=shown))
    else:
        print_rows(_COLUMNS, [[one.check, one.level, one.found, one.fix] for one in shown])
    if not healthy:
        raise typer.Exit(Exit.FAILED)
