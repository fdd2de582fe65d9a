"""The report as it is written: one page that needs nothing else, and its tables."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

from longshore.spark.report.page import PAGE, write_report
from tests.spark.golden import MadeUp, made_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTILE = [
    "<script>alert(1)</script>",
    '=HYPERLINK("x")',
    "ctrl\x1b[31m\x00",
    "long " * 50,
    "\u202eexe",
    "@x",
    "-1",
    "+1",
    "'",
]


class Reader(HTMLParser):
    """What a browser would see: elements with their attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def check_it_needs_nothing_else(reader: Reader) -> None:
    kinds = {name for name, _ in reader.elements}
    assert not kinds & {"script", "img", "link", "iframe", "object", "embed", "form", "image", "use", "base"}
    for _, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "style")]
        assert re.fullmatch(r"#\w+|\w+\.csv|", attributes.get("href") or "")
    assert not re.search(r"url\(|@import", "".join(reader.texts))


def test_the_report_is_complete_with_any_names(spark: SparkSession, tmp_path: Path) -> None:
    lake = made_up(hours=3, queues=HOSTILE, types=["<b>"], workers=2, errors=[("=E", "<i>\x07")], minutes=60)
    written = write_report(spark, lake, tmp_path / "new" / "folder")
    reader = read(written.page)
    check_it_needs_nothing_else(reader)
    assert len([name for name, _ in reader.elements if name == "svg"]) >= 9
    titles = ["Throughput", "Backlog", "Waiting time", "Run time", "Failures", "Retries", "Top errors", "Slowest types"]
    assert [title for title in [*titles, "Workers", "Schedules"] if title not in reader.texts] == []
    assert written.tables["throughput.csv"] == len(HOSTILE)
    with (written.page.parent / "throughput.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["added"]) for row in rows) == sum(row["added"] for row in lake.rows["gold.throughput"])
    assert not [row for row in rows if row["queue"].startswith(("=", "+", "-", "@"))]
    everything = "".join(path.read_text() for path in written.page.parent.iterdir())
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e]", everything)


def test_the_report_of_an_empty_lake_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    written = write_report(spark, MadeUp({}), tmp_path, title="Empty")
    reader = read(tmp_path / PAGE)
    check_it_needs_nothing_else(reader)
    assert written.tables == {}
    assert any("longshore pipeline run" in text for text in reader.texts)
