"""Writes a report into a folder: the page and its tables, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.report.data import Gold, Tables, gold_of, percentiles
from longshore.spark.report.markup import Markup, tag
from longshore.spark.report.scales import exact, share, short, span
from longshore.spark.report.sections import (
    Section,
    backlog,
    failures,
    retries,
    running,
    schedules,
    slowest_types,
    throughput,
    top_errors,
    waiting,
    workers,
)
from longshore.spark.report.tables import Written, as_csv, on_the_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is loaded from anywhere, and nothing runs."""


def page(
    title: str, told: Sequence[str], tiles: Sequence[tuple[str, str]], sections: Sequence[Markup], links: Markup
) -> str:
    """All of it."""
    css = files("longshore.spark.report").joinpath("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="referrer" content="no-referrer">'),
        tag("title", title),
        tag("style", Markup(css)),
    )
    figures = [tag("li", tag("b", value), tag("span", name)) for name, value in tiles]
    header = tag(
        "header", tag("h1", title), [tag("p", line) for line in told], tag("ul", figures, class_="tiles"), links
    )
    body = tag("body", header, tag("main", list(sections)), tag("footer", tag("p", "Times are in UTC.")))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section_of(section: Section, written: Written) -> Markup:
    """A section with its drawing, and the first rows of its table."""
    inner: list[Markup | None] = [tag("h2", section.title), tag("p", section.told)]
    if section.drawing is not None:
        inner.append(tag("div", section.drawing, class_="drawing"))
    if written.rows:
        inner.append(on_the_page(section.columns, written.first, written.rows, section.file))
    else:
        inner.append(tag("p", "Nothing of the kind has happened in this time.", class_="empty"))
    return tag("section", inner, id=section.name)


SECTIONS: Sequence[Callable[[Gold], Section]] = (
    *(throughput, backlog, waiting, running, failures, retries, top_errors, slowest_types, workers, schedules),
)
PAGE = "report.html"

Told = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ReportWritten:
    """What was written, and where."""

    page: Path
    tables: dict[str, int]
    """The rows of each file."""
    version: int
    seconds: float


def write_report(
    spark: SparkSession,
    lake: Tables,
    folder: Path,
    *,
    days: Collection[str] | None = None,
    title: str = "Job history",
    told: Told = lambda _what, _done, _all: None,
) -> ReportWritten:
    """Writes the page and its tables; files of the same names are replaced, others are left alone."""
    began = perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    gold = gold_of(spark, lake, days)
    tables: dict[str, int] = {}
    if gold is None:
        text = _nothing_yet(title, lake)
    else:
        sections, drawn = [], []
        for place, work_out in enumerate(SECTIONS):
            told(work_out.__name__.replace("_", " "), place, len(SECTIONS))
            section = work_out(gold)
            written = as_csv(folder / section.file, section.columns, section.rows())
            tables[section.file] = written.rows
            sections.append(section)
            drawn.append(section_of(section, written))
        first, last = gold.span
        spanned = f"{exact(first)} to {exact(last)}, from version {lake.version} of the lake."
        links = tag("nav", [(tag("a", section.title, href=f"#{section.name}"), " ") for section in sections])
        text = page(title, [spanned], _tiles(gold), drawn, links)
    target = folder / PAGE
    target.write_text(text, encoding="utf-8")
    return ReportWritten(target, tables, lake.version, perf_counter() - began)


def _nothing_yet(title: str, lake: Tables) -> str:
    words = "Nothing has happened in this time. Once jobs have run: longshore pipeline run, then the report again."
    told = [f"Version {lake.version} of the lake."]
    return page(title, told, [], [tag("section", tag("p", words, class_="empty"))], Markup())


def _tiles(gold: Gold) -> list[tuple[str, str]]:
    """What one looks at first."""
    flow = (
        gold.of_queues("throughput").agg(*(F.sum(name).alias(name) for name in ("added", "completed", "dead"))).first()
    )
    outcomes = gold.of_queues("outcomes").agg(
        F.try_divide(F.sum(F.col("failed") + F.col("crashed")), F.sum("attempts")).alias("wrong"),
        F.try_divide(F.sum("retries"), F.sum("attempts")).alias("again"),
    )
    ends = outcomes.first()
    took = {row["measure"]: row for row in percentiles(gold.of_queues("duration_histogram"), "measure").collect()}
    assert flow is not None  # an aggregate is one row
    assert ends is not None
    told = [("jobs added", short(flow["added"])), ("jobs completed", short(flow["completed"]))]
    told += [("jobs dead", short(flow["dead"])), ("attempts that failed", share(ends["wrong"]))]
    told += [("attempts tried again", share(ends["again"]))]
    for measure, word in (("waiting", "waited"), ("running", "ran")):
        if measure in took:
            told += [
                (f"half {word} within", span(took[measure]["p50"])),
                (f"95 % {word} within", span(took[measure]["p95"])),
            ]
    busy = gold.frame("workers").agg(F.count_distinct("worker").alias("workers")).first()
    assert busy is not None
    return [*told, ("workers", short(busy["workers"]))]
