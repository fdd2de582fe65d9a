"""The report, from a terminal: a page to look at, and its tables as CSV."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.bars import progress
from longshore.cli.output import say, say_json, show_table
from longshore.cli.pipeline_options import AsJson, Conf, LakePath, Master, day, spark_session
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from longshore.spark.report.writing import ReportWritten

Output = Annotated[Path, typer.Option(help="The folder to write to; it is made if there is none.")]
Since = Annotated[str | None, typer.Option(help="Only from this date on, like 2026-05-01.")]
Until = Annotated[str | None, typer.Option(help="Only up to this date, with it.")]
Title = Annotated[str, typer.Option(help="What stands above the page.")]


def report(
    lake: LakePath,
    output: Output,
    since: Since = None,
    until: Until = None,
    title: Title = "Job history",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Writes report.html, one page with plots and tables that needs nothing else, and its tables as CSV."""
    first, last = day("since", since), day("until", until)
    if output.exists() and not output.is_dir():
        raise InvalidArgument("output", f"{output} is a file; name a folder")
    with spark_session(master, conf) as spark, progress() as told:
        from longshore.spark.lake.lake import Lake
        from longshore.spark.report.writing import write_report

        found = Lake.open(lake, spark)
        days = _days(found.days("gold.throughput"), first, last)
        written = write_report(spark, found, output, days=days, title=title, told=told)
    if as_json:
        say_json(_as_json(written))
        return
    say(f"{written.page} written from version {written.version} of the lake in {written.seconds:.1f} s")
    if written.tables:
        show_table(list(written.tables.items()))


def _days(known: list[str], first: date | None, last: date | None) -> list[str] | None:
    """The days of the lake that are asked for; None where all of them are."""
    if first is None and last is None:
        return None
    return [name for name in known if (first or date.min).isoformat() <= name <= (last or date.max).isoformat()]


def _as_json(written: ReportWritten) -> dict[str, object]:
    return {
        "page": str(written.page),
        "tables": written.tables,
        "version": written.version,
        "seconds": round(written.seconds, 3),
    }
