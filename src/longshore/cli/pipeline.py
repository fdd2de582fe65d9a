"""`pipeline`: refreshes the lake, audits the history, and writes the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.exit_codes import Exit
from longshore.cli.output import complain, json_text, progress, say, say_json, say_piece, show_steps, show_table
from longshore.core.errors import InvalidArgument
from longshore.core.times import from_micros

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from longshore.spark.audit.audit import AuditReport

Url = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="Where the jobs are, like sqlite:///jobs.db.")]
LakePath = Annotated[
    str, typer.Option("--lake", envvar="LONGSHORE_LAKE", help="The folder of the lake, like /data/lake or s3a://….")
]
Schema = Annotated[str | None, typer.Option(help="On PostgreSQL, the schema of the queue.")]
Master = Annotated[
    str | None,
    typer.Option(help="The Spark to run on; this machine if left out, and under spark-submit whatever that was told."),
]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value; may be given many times.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def spark_session(master: str | None, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """A session for one command; an error in one line says what is missing."""
    from longshore.spark.spark_session import pipeline_session

    spark = pipeline_session(master, dict(_setting(given) for given in conf or ()))
    try:
        yield spark
    finally:
        spark.stop()


def _setting(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise InvalidArgument("conf", f"must be name=value, like spark.driver.memory=2g, not {given!r}")
    return name, value


def day(name: str, given: str | None) -> date | None:
    """A date, or None if none was given."""
    if given is None:
        return None
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise InvalidArgument(name, f"must be a date like 2026-05-01, not {given!r}") from None


_SHOWN = 20

AuditedLake = Annotated[str | None, typer.Option("--lake", help="The folder of a lake: audits the events it holds.")]
AuditedUrl = Annotated[str | None, typer.Option("--url", help="A store: audits its events, and its jobs beside them.")]
SweptWithin = Annotated[
    float, typer.Option(min=0, help="Seconds after the end of its lease by which a job must have been taken back.")
]
FindingsFile = Annotated[Path | None, typer.Option(help="A file for all findings, one line of JSON each.")]
AuditAsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with all findings, instead of a table.")]


def audit(
    lake: AuditedLake = None,
    url: AuditedUrl = None,
    schema: Schema = None,
    swept_within: SweptWithin = 60.0,
    output: FindingsFile = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AuditAsJson = False,
) -> None:
    """Replays every job's history against the table of legal transitions. Exit code 1 if anything is wrong.

    With --lake the events of a lake are judged; with --url those of a store, beside its jobs as they stand; with both,
    the lake's history and what followed in the store, beside its jobs.
    """
    if lake is None and url is None:
        raise InvalidArgument("lake", "say what is audited: --lake with a folder, --url with a store, or both")
    with spark_session(master, conf) as spark:
        report = _audited(spark, lake, url, schema, timedelta(seconds=swept_within))
        if output is not None:
            with output.open("w", encoding="utf-8") as file:
                for finding in report.all():
                    file.write(f"{json.dumps(finding, ensure_ascii=False, default=_as_text)}\n")
        if as_json:
            for piece in _audit_json(report):
                say_piece(piece)
        else:
            _show(report, output)
    if not report.clean:
        raise typer.Exit(Exit.FAILED)


def _audited(
    spark: SparkSession, lake: str | None, url: str | None, schema: str | None, swept: timedelta
) -> AuditReport:
    from longshore.backends.export import Place
    from longshore.spark.audit.audit import History, from_history, from_store
    from longshore.spark.audit.audit import run_audit as audited
    from longshore.spark.lake.lake import Lake

    history = None
    if lake is not None:
        found = Lake.open(lake, spark)
        history = History(found.table(spark, "bronze.events"), Place(*found.manifest.reached), found.manifest.log)
    if url is not None:
        return audited(from_store(spark, url, schema=schema, history=history, swept_within=swept))
    assert history is not None  # one of them was given
    return audited(from_history(history.events))


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _audit_json(report: AuditReport) -> Iterator[str]:
    """One document, a finding at a time: there may be millions."""
    told = {
        "clean": report.clean,
        "events": report.events,
        "jobs": report.jobs,
        "compared_with_the_store": report.compared,
        "counts": report.counts,
        "no_longer_kept": report.pruned,
        "seconds": round(report.seconds, 3),
    }
    yield json_text(told)[:-1] + ', "findings": ['
    for place, finding in enumerate(report.all()):
        yield (", " if place else "") + json_text(finding, _as_text)
    yield "]}\n"


def _show(report: AuditReport, output: Path | None) -> None:
    say(f"{report.events:,} events of {report.jobs:,} jobs audited in {report.seconds:.1f} s")
    if report.counts:
        show_table([(kind.value, count, kind.meaning) for kind, count in report.counts.items()])
        say()
        _show_some(report, output)
    for kind, count in report.pruned.items():
        say(f"{count:,} jobs: {kind.meaning}; old events were pruned, so this is no defect")
    if report.compared is False:
        complain(
            "longshore: a transaction was held open all the while, so whether jobs are lost was not judged; "
            "run the audit again when it has ended"
        )
    if report.clean:
        say("nothing is wrong")


def _show_some(report: AuditReport, output: Path | None) -> None:
    shown = report.listed(_SHOWN)
    for found in shown:
        event = f"event {found['job_seq']} {found['event'] or 'as stored'}"
        job = f"job {found['job_id']} (uid {found['job_uid']}) of queue {found['queue']}"
        say(f"{found['kind']}: {job}, {event}: {found['detail']}")
    more = sum(report.counts.values()) - len(shown)
    if more:
        where = f"all of them are in {output}" if output else "--json or --output FILE gives all of them"
        say(f"and {more:,} more; {where}")


ReportFolder = Annotated[Path, typer.Option(help="The folder to write to; it is made if there is none.")]
Since = Annotated[str | None, typer.Option(help="Only from this date on, like 2026-05-01.")]
Until = Annotated[str | None, typer.Option(help="Only up to this date, with it.")]
Title = Annotated[str, typer.Option(help="What stands above the page.")]


def report(
    lake: LakePath,
    output: ReportFolder,
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
        from longshore.spark.report.page import write_report

        found = Lake.open(lake, spark)
        days = _days(found.days("gold.throughput"), first, last)
        written = write_report(spark, found, output, days=days, title=title, told=told)
    if as_json:
        say_json({**asdict(written), "page": str(written.page), "seconds": round(written.seconds, 3)})
        return
    say(f"{written.page} written from version {written.version} of the lake in {written.seconds:.1f} s")
    if written.tables:
        show_table(list(written.tables.items()))


def _days(known: list[str], first: date | None, last: date | None) -> list[str] | None:
    """The days of the lake that are asked for; None where all of them are."""
    if first is None and last is None:
        return None
    return [name for name in known if (first or date.min).isoformat() <= name <= (last or date.max).isoformat()]


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
        steps = [{"step": step.name, "rows": step.rows, "seconds": round(step.seconds, 3)} for step in report.steps]
        say_json({**asdict(report), "seconds": round(report.seconds, 3), "steps": steps})
        return
    came = f"{report.events:,} events came" if report.events else "nothing came"
    say(f"{came}; the lake is at version {report.version} ({report.seconds:.1f} s)")


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
        say_json({**asdict(report), "seconds": round(report.seconds, 3)})
        return
    verb = "could go" if dry_run else "removed from the store"
    say(f"{report.events:,} events and {report.jobs:,} jobs {verb}; the lake holds them all")


pipeline.command()(audit)
pipeline.command()(report)
