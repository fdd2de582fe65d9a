"""`doctor`: what is wrong with a store and the work in it, each finding with its way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.exit_codes import Exit
from longshore.cli.open_store import AsJson, Store, a_store
from longshore.cli.options import gathered
from longshore.cli.output import Column, say_model, show_rows

if TYPE_CHECKING:
    from longshore.core.health import Finding
    from longshore.runtime.queue import Queue

_COLUMNS = (
    Column("CHECK", whole=True),
    Column("LEVEL", whole=True, coloured=True),
    Column("FOUND"),
    Column("WHAT TO DO"),
)

OnlyBad = Annotated[bool, typer.Option("--problems", help="Leave out what is in order.")]


@gathered(store=a_store)
def doctor(*, problems: OnlyBad = False, as_json: AsJson = False, store: Store) -> None:
    """Tells what is wrong with the store and the work in it, and what to do. Exit code 1 if there is a problem."""
    findings = store.within(_checked)
    shown = [one for one in findings if one.level != "ok" or not problems]
    healthy = all(one.level != "problem" for one in findings)
    if as_json:
        from longshore.cli.json_output import diagnosis

        say_model(diagnosis(shown, healthy))
    else:
        show_rows(_COLUMNS, [[one.check, one.level, one.found, one.fix] for one in shown])
    if not healthy:
        raise typer.Exit(Exit.FAILED)


async def _checked(queue: Queue) -> list[Finding]:
    from longshore.runtime.doctor import check_up

    return await check_up(queue)
