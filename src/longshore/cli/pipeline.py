"""The pipeline from a terminal: the history of a queue as tables, and what they let the queue forget."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli.bars import show_steps
from longshore.cli.output import say, say_json, show_table
from longshore.cli.pipeline_audit import audit
from longshore.cli.pipeline_options import AsJson, Conf, LakePath, Master, Schema, Url, day, spark_session
from longshore.cli.pipeline_report import report
from longshore.core.times import from_micros

if TYPE_CHECKING:
    from longshore.spark.lake.archive import ArchiveReport
    from longshore.spark.pipeline import PipelineReport

pipeline = typer.Typer(help="The history of a queue as tables, on Spark.", no_args_is_help=True)

From = Annotated[str | None, typer.Option("--from", help="Work out silver and gold again, from this date on.")]
To = Annotated[str | None, typer.Option("--to", help="The last date that is worked out again.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Of a new lake: parquet, orc, or another that you bring the jars for (--conf)."),
]
FreshWithin = Annotated[
    float | None, typer.Option(help="Stop if the newest event is older than so many hours: the feed has dried up.")
]
EventsAtOnce = Annotated[int, typer.Option(min=1, help="The most events that one batch lands.")]
OlderThan = Annotated[float, typer.Option(min=0, help="Days: what ended, or was told, less long ago stays.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what could go.")]

STEPS_OF_A_RUN = 13


@pipeline.command()
def run(
    url: Url,
    lake: LakePath,
    from_: From = None,
    to: To = None,
    form: Format = None,
    schema: Schema = None,
    fresh_within: FreshWithin = None,
    events_at_once: EventsAtOnce = 1_000_000,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Brings the lake up to date: events that came, attempts and jobs, and what people ask of them.

    Killed at any moment, it goes on when it is run again. If a check does not hold, the lake stays as it was.
    """
    first, last = day("from", from_), day("to", to)
    with spark_session(master, conf) as spark, show_steps(STEPS_OF_A_RUN) as tell:
        from longshore.spark.pipeline import Days, run_pipeline

        report = run_pipeline(
            url,
            lake,
            spark=spark,
            schema=schema,
            form=form,
            again=Days(first, last),
            fresh_within=None if fresh_within is None else timedelta(hours=fresh_within),
            events_at_once=events_at_once,
            told=lambda step: tell(step.name, step.rows, step.seconds),
        )
    if as_json:
        say_json(_as_json(report))
        return
    came = f"{report.events:,} events came" if report.events else "nothing came"
    say(f"{came}; the lake is at version {report.version} ({report.seconds:.1f} s)")


def _as_json(report: PipelineReport) -> dict[str, Any]:
    steps = [{"step": step.name, "rows": step.rows, "seconds": round(step.seconds, 3)} for step in report.steps]
    return {
        "version": report.version,
        "events": report.events,
        "batches": report.batches,
        "seconds": round(report.seconds, 3),
        "steps": steps,
    }


@pipeline.command()
def status(lake: LakePath, as_json: AsJson = False) -> None:
    """What the lake holds, as it says itself; no Spark is started."""
    from longshore.spark.lake.lake import Lake

    manifest = Lake.open(lake).manifest
    tables = {
        name: {"rows": manifest.rows(name), "days": len(manifest.days(name)), "pieces": len(pieces)}
        for name, pieces in sorted(manifest.tables.items())
    }
    days = [day for day in manifest.days("bronze.events") if day != "open"]
    newest = from_micros(manifest.newest).isoformat() if manifest.newest else None
    if as_json:
        shown = {"version": manifest.version, "format": manifest.format, "made_at": manifest.made_at, "newest": newest}
        say_json({**shown, "totals": dict(manifest.totals), "tables": tables})
        return
    say(f"version {manifest.version}, made {manifest.made_at}, {manifest.format}")
    if days:
        say(f"events from {days[0]} to {days[-1]}, the newest of {newest}")
    show_table([(name, held["rows"], held["days"], held["pieces"]) for name, held in tables.items()])
    say("  (rows, days, pieces)")


@pipeline.command()
def archive(
    url: Url,
    lake: LakePath,
    older_than: OlderThan = 7,
    schema: Schema = None,
    dry_run: DryRun = False,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Removes events and finished jobs from the store, once the lake has proven that it holds them.

    The jobs are brought to the lake first, with their payloads, results and logs. What it does not hold, row for row,
    stays where it is.
    """
    with spark_session(master, conf) as spark:
        from longshore.spark.lake.archive import archive as archived

        report = archived(url, lake, spark=spark, schema=schema, older_than=timedelta(days=older_than), dry_run=dry_run)
    if as_json:
        say_json(_archived_as_json(report))
        return
    verb = "could go" if dry_run else "removed from the store"
    say(f"{report.events:,} events and {report.jobs:,} jobs {verb}; the lake holds them all")


def _archived_as_json(report: ArchiveReport) -> dict[str, Any]:
    return {"events": report.events, "jobs": report.jobs, "logs": report.logs, "seconds": round(report.seconds, 3)}


pipeline.command()(audit)
pipeline.command()(report)
