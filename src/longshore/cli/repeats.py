"""When work is repeated, as it is written on a command line: the options of `Repeat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import words
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.core.repeat import Repeat

RepeatWhenAsked = Callable[[], Any]
"""Makes a `Repeat` of what was written; a command that is told of a schedule by its id never asks."""

Cron = Annotated[str | None, typer.Option(help='A cron expression, like "30 2 * * *".')]
Every = Annotated[str | None, typer.Option(help="A span of time, like 15m.")]
Zone = Annotated[str, typer.Option(help="On whose clocks cron is read, like Europe/Berlin.")]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="Runs in all.")]
Start = Annotated[str | None, typer.Option(help="Not before: 2026-05-01T12:00Z.")]
End = Annotated[str | None, typer.Option(help="Not after.")]
OnGap = Annotated[str, typer.Option(help="A time that a change of the clocks leaves out: next or skip.")]
OnOverlap = Annotated[str, typer.Option(help="A time that comes twice: first, second or both.")]
CatchUp = Annotated[str, typer.Option(help="What was missed: none, last or all.")]

Immediate = Annotated[bool, typer.Option("--immediate", help="Run at once when the schedule is new.")]


def a_repeat(
    cron: Cron = None,
    every: Every = None,
    tz: Zone = "UTC",
    limit: Most = None,
    start: Start = None,
    end: End = None,
    on_gap: OnGap = "next",
    on_overlap: OnOverlap = "first",
    catch_up: CatchUp = "last",
    immediate: Immediate = False,
) -> RepeatWhenAsked:
    """What was written, to be made into a `Repeat`."""

    def made() -> Repeat:
        from longshore.core.repeat import Repeat

        told: Any = {"on_gap": on_gap, "on_overlap": on_overlap, "catch_up": catch_up}
        try:
            return Repeat(
                cron=cron,
                every=None if every is None else words.duration("every", every),
                tz=tz,
                limit=limit,
                start=None if start is None else words.exact_time("start", start),
                end=None if end is None else words.exact_time("end", end),
                immediate=immediate,
                **told,
            )
        except InvalidArgument as error:
            raise InvalidArgument(error.field.removeprefix("repeat.").replace("_", "-"), error.problem) from None

    return made
