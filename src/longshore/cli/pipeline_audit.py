"""The audit, from a terminal: counts and ids of what is wrong, and an exit code that tells whether anything is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.exits import Exit
from longshore.cli.output import complain, json_text, say, say_piece, show_table
from longshore.cli.pipeline_options import Conf, Master, Schema, spark_session
from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from longshore.spark.audit.report import AuditReport

_SHOWN = 20

LakePath = Annotated[str | None, typer.Option("--lake", help="The folder of a lake: audits the events it holds.")]
Url = Annotated[str | None, typer.Option("--url", help="A store: audits its events, and its jobs beside them.")]
SweptWithin = Annotated[
    float, typer.Option(min=0, help="Seconds after the end of its lease by which a job must have been taken back.")
]
Output = Annotated[Path | None, typer.Option(help="A file for all findings, one line of JSON each.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with all findings, instead of a table.")]


def audit(
    lake: LakePath = None,
    url: Url = None,
    schema: Schema = None,
    swept_within: SweptWithin = 60.0,
    output: Output = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
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
            for piece in _as_json(report):
                say_piece(piece)
        else:
            _show(report, output)
    if not report.clean:
        raise typer.Exit(Exit.FAILED)


def _audited(
    spark: SparkSession, lake: str | None, url: str | None, schema: str | None, swept: timedelta
) -> AuditReport:
    from longshore.backends.export import Place
    from longshore.spark.audit.reading import History, from_history, from_store
    from longshore.spark.audit.report import audit as audited
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


def _as_json(report: AuditReport) -> Iterator[str]:
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
    from longshore.spark.audit.kinds import MEANING

    say(f"{report.events:,} events of {report.jobs:,} jobs audited in {report.seconds:.1f} s")
    if report.counts:
        show_table([(kind.value, count, MEANING[kind]) for kind, count in report.counts.items()])
        say()
        _show_some(report, output)
    for kind, count in report.pruned.items():
        say(f"{count:,} jobs: {MEANING[kind]}; old events were pruned, so this is no defect")
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
