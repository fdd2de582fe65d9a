"""`pipeline`: refresh the lake, audit the history, and write the report."""

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
from longshore.cli.output import (
    json_text,
    print_chunk,
    print_json,
    print_line,
    print_stderr,
    print_table,
    progress,
    show_steps,
)
from longshore.core.errors import InvalidArgument
from longshore.core.times import from_micros
from longshore.core.validation import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from longshore.spark.audit.audit import AuditReport

Url = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="The store, such as sqlite:///jobs.db.")]
LakePath = Annotated[
    str, typer.Option("--lake", envvar="LONGSHORE_LAKE", help="The lake's folder, such as /data/lake or hdfs:///lake.")
]
Schema = Annotated[str | None, typer.Option(help="The PostgreSQL schema of the store.")]
Master = Annotated[
    str | None, typer.Option(help="The Spark master. Default: the one of spark-submit, or this machine.")
]
Conf = Annotated[list[str] | None, typer.Option(help="A Spark setting as name=value; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def spark_session(master: str | None, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """Open a Spark session for one command."""
    from longshore.spark.spark_session import pipeline_session

    spark = pipeline_session(master, dict(_setting(given) for given in conf or ()))
    try:
        yield spark
    finally:
        spark.stop()


def _setting(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise InvalidArgument("conf", f"must be name=value, such as spark.driver.memory=2g; got {given!r}")
    return name, value


def day(name: str, given: str | None) -> date | None:
    """Parse an optional date."""
    if given is None:
        return None
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise InvalidArgument(name, f"must be a date such as 2026-05-01; got {given!r}") from None


_FINDINGS_SHOWN = 20

AuditedLake = Annotated[str | None, typer.Option("--lake", help="A lake's folder: audit its events.")]
AuditedUrl = Annotated[str | None, typer.Option("--url", help="A store: audit its events and compare its jobs.")]
SweptWithin = Annotated[
    float, typer.Option(min=0, help="Seconds after a lease expires within which a sweep must release the job.")
]
FindingsFile = Annotated[Path | None, typer.Option(help="Write all findings to this file, one JSON object per line.")]
AuditAsJson = Annotated[bool, typer.Option("--json", help="Print JSON with all findings instead of a table.")]


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
    """Replay every job's history against the table of legal transitions. The exit code is 1 if there is a finding.

    --lake audits the events of a lake. --url audits the events of a store and compares them with its jobs. With both,
    the audit reads the lake first, then the later events of the store, and compares with the store's jobs.
    """
    if lake is None and url is None:
        raise InvalidArgument("lake", "give --lake with a folder, --url with a store, or both")
    with spark_session(master, conf) as spark:
        report = _audited(spark, lake, url, schema, timedelta(seconds=swept_within))
        if output is not None:
            with output.open("w", encoding="utf-8") as file:
                for finding in report.all():
                    file.write(f"{json.dumps(finding, ensure_ascii=False, default=_as_text)}\n")
        if as_json:
            for piece in _audit_json(report):
                print_chunk(piece)
        else:
            _show(report, output)
    if not report.clean:
        raise typer.Exit(Exit.FAILED)


def _audited(
    spark: SparkSession, lake: str | None, url: str | None, schema: str | None, swept: timedelta
) -> AuditReport:
    from longshore.backends.export import LogPosition
    from longshore.spark.audit.audit import History, from_history, from_store
    from longshore.spark.audit.audit import run_audit as audited
    from longshore.spark.lake.lake import Lake

    history = None
    if lake is not None:
        found = Lake.open(lake, spark)
        history = History(found.table(spark, "bronze.events"), LogPosition(*found.manifest.reached), found.manifest.log)
    if url is not None:
        return audited(from_store(spark, url, schema=schema, history=history, swept_within=swept))
    assert history is not None  # checked by the command
    return audited(from_history(history.events))


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _audit_json(report: AuditReport) -> Iterator[str]:
    """Yield one document a finding at a time, because there may be millions."""
    head = {
        "clean": report.clean,
        "events": report.events,
        "jobs": report.jobs,
        "compared_with_the_store": report.compared,
        "counts": report.counts,
        "no_longer_kept": report.pruned,
        "seconds": round(report.seconds, 3),
    }
    yield json_text(head)[:-1] + ', "findings": ['
    for place, finding in enumerate(report.all()):
        yield (", " if place else "") + json_text(finding, _as_text)
    yield "]}\n"


def _show(report: AuditReport, output: Path | None) -> None:
    audited = f"{counted(report.events, 'event')} of {counted(report.jobs, 'job')}"
    print_line(f"{audited} audited in {report.seconds:.1f} s")
    if report.counts:
        print_table([(kind.value, count, kind.meaning) for kind, count in report.counts.items()])
        print_line()
        _print_findings(report, output)
    for kind, count in report.pruned.items():
        print_line(f"{counted(count, 'job')}: {kind.meaning}; retention removed old events, so this is expected")
    if report.compared is False:
        print_stderr(
            "longshore: lost jobs were not checked because a transaction stayed open during the audit; "
            "run the audit again when it has ended"
        )
    if report.clean:
        print_line("no problems found")


def _print_findings(report: AuditReport, output: Path | None) -> None:
    shown = report.listed(_FINDINGS_SHOWN)
    for found in shown:
        event = f"event {found['job_seq']} {found['event'] or 'as stored'}"
        job = f"job {found['job_id']} (uid {found['job_uid']}) of queue {found['queue']}"
        print_line(f"{found['kind']}: {job}, {event}: {found['detail']}")
    more = sum(report.counts.values()) - len(shown)
    if more:
        where = f"{output} has all findings" if output else "use --json or --output FILE to get all findings"
        print_line(f"and {more:,} more; {where}")


ReportFolder = Annotated[Path, typer.Option(help="The folder to write to; created if it does not exist.")]
Since = Annotated[str | None, typer.Option(help="The first date to include, such as 2026-05-01.")]
Until = Annotated[str | None, typer.Option(help="The last date to include.")]
Title = Annotated[str, typer.Option(help="The title of the page.")]


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
    """Write report.html, a self-contained page with charts and tables, and the tables as CSV files."""
    first, last = day("since", since), day("until", until)
    if output.exists() and not output.is_dir():
        raise InvalidArgument("output", f"{output} is a file; name a folder")
    with spark_session(master, conf) as spark, progress() as on_progress:
        from longshore.spark.lake.lake import Lake
        from longshore.spark.report.page import write_report

        found = Lake.open(lake, spark)
        days = _days(found.days("gold.throughput"), first, last)
        written = write_report(spark, found, output, days=days, title=title, on_progress=on_progress)
    if as_json:
        print_json({**asdict(written), "page": str(written.page), "seconds": round(written.seconds, 3)})
        return
    print_line(f"{written.page} written from version {written.version} of the lake in {written.seconds:.1f} s")
    if written.tables:
        print_table(list(written.tables.items()))


def _days(known: list[str], first: date | None, last: date | None) -> list[str] | None:
    """The requested days of the lake; None for all days."""
    if first is None and last is None:
        return None
    return [name for name in known if (first or date.min).isoformat() <= name <= (last or date.max).isoformat()]


pipeline = typer.Typer(help="Analyse the history of a store with Spark.", no_args_is_help=True)

From = Annotated[str | None, typer.Option("--from", help="Rebuild the silver and gold tables from this date on.")]
To = Annotated[str | None, typer.Option("--to", help="The last date to rebuild.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="File format of a new lake: parquet, orc, or another whose jars --conf adds."),
]
FreshWithin = Annotated[float | None, typer.Option(help="Fail if the newest event is older than this many hours.")]
EventsAtOnce = Annotated[int, typer.Option(min=1, help="The most events per batch.")]
OlderThan = Annotated[float, typer.Option(min=0, help="Keep jobs that ended, and events recorded, in the last N days.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what could be removed.")]

STEPS_PER_RUN = 13


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
    """Bring the lake up to date: new events, attempts and jobs, and the report tables.

    If it is killed, run it again to resume. If a check fails, the lake does not change.
    """
    first, last = day("from", from_), day("to", to)
    with spark_session(master, conf) as spark, show_steps(STEPS_PER_RUN) as report_step:
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
            on_step=lambda step: report_step(step.name, step.rows, step.seconds),
        )
    if as_json:
        steps = [{"step": step.name, "rows": step.rows, "seconds": round(step.seconds, 3)} for step in report.steps]
        print_json({**asdict(report), "seconds": round(report.seconds, 3), "steps": steps})
        return
    came = counted(report.events, "new event") if report.events else "no new events"
    print_line(f"{came}; the lake is at version {report.version} ({report.seconds:.1f} s)")


@pipeline.command()
def status(lake: LakePath, as_json: AsJson = False) -> None:
    """Show the tables of the lake from its manifest, without Spark."""
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
        print_json({**shown, "totals": dict(manifest.totals), "tables": tables})
        return
    print_line(f"version {manifest.version}, written {manifest.made_at}, format {manifest.format}")
    if days:
        print_line(f"events from {days[0]} to {days[-1]}, the newest at {newest}")
    print_table([(name, held["rows"], held["days"], held["pieces"]) for name, held in tables.items()])
    print_line("  (rows, days, pieces)")


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
    """Remove events and final jobs from the store after copying them to the lake.

    The lake also gets the payloads, results and logs of the jobs. A row is removed only after the lake is verified to
    hold it.
    """
    with spark_session(master, conf) as spark:
        from longshore.spark.lake.archive import archive as archived

        report = archived(url, lake, spark=spark, schema=schema, older_than=timedelta(days=older_than), dry_run=dry_run)
    if as_json:
        print_json({**asdict(report), "seconds": round(report.seconds, 3)})
        return
    verb = "can be removed from the store" if dry_run else "removed from the store"
    print_line(f"{counted(report.events, 'event')} and {counted(report.jobs, 'job')} {verb}; the lake holds them all")


pipeline.command()(audit)
pipeline.command()(report)
