"""Write a report into a folder: the page and its tables."""

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
"""The page loads nothing and runs no script."""


def page(
    title: str, intro: Sequence[str], tiles: Sequence[tuple[str, str]], sections: Sequence[Markup], links: Markup
) -> str:
    """Return the whole page."""
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
        "header", tag("h1", title), [tag("p", line) for line in intro], tag("ul", figures, class_="tiles"), links
    )
    body = tag("body", header, tag("main", list(sections)), tag("footer", tag("p", "Times are in UTC.")))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section_of(section: Section, written: Written) -> Markup:
    """Return a section with its chart and the first rows of its table."""
    inner: list[Markup | None] = [tag("h2", section.title), tag("p", section.caption)]
    if section.drawing is not None:
        inner.append(tag("div", section.drawing, class_="drawing"))
    if written.rows:
        inner.append(on_the_page(section.columns, written.first, written.rows, section.file))
    else:
        inner.append(tag("p", "No data in this period.", class_="empty"))
    return tag("section", inner, id=section.name)


SECTIONS: Sequence[Callable[[Gold], Section]] = (
    *(throughput, backlog, waiting, running, failures, retries, top_errors, slowest_types, workers, schedules),
)
PAGE = "report.html"

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ReportWritten:
    """The files of a report."""

    page: Path
    tables: dict[str, int]
    """The number of rows of each file."""
    version: int
    seconds: float


def write_report(
    spark: SparkSession,
    lake: Tables,
    folder: Path,
    *,
    days: Collection[str] | None = None,
    title: str = "Job history",
    on_progress: OnProgress = lambda _what, _done, _all: None,
) -> ReportWritten:
    """Write the page and its tables; replace files of the same names, and keep all others. See docs/report.md."""
    began = perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    gold = gold_of(spark, lake, days)
    tables: dict[str, int] = {}
    if gold is None:
        text = _nothing_yet(title, lake)
    else:
        sections, drawn = [], []
        for place, work_out in enumerate(SECTIONS):
            on_progress(work_out.__name__.replace("_", " "), place, len(SECTIONS))
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
    words = "No data in this period. After jobs have run, use longshore pipeline run, then write the report again."
    intro = [f"Version {lake.version} of the lake."]
    return page(title, intro, [], [tag("section", tag("p", words, class_="empty"))], Markup())


def _tiles(gold: Gold) -> list[tuple[str, str]]:
    """The key figures at the top of the page."""
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
    tiles = [("jobs added", short(flow["added"])), ("jobs completed", short(flow["completed"]))]
    tiles += [("jobs dead", short(flow["dead"])), ("attempts failed", share(ends["wrong"]))]
    tiles += [("attempts retried", share(ends["again"]))]
    for measure, word in (("waiting", "waited"), ("running", "ran")):
        if measure in took:
            tiles += [
                (f"half {word} within", span(took[measure]["p50"])),
                (f"95 % {word} within", span(took[measure]["p95"])),
            ]
    busy = gold.frame("workers").agg(F.count_distinct("worker").alias("workers")).first()
    assert busy is not None
    return [*tiles, ("workers", short(busy["workers"]))]
