"""The report's drawings and cells: pure functions, and text that stays text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.spark.report.charts import Canvas, Spread, bars, fan, heatmap, key, shade_of, spreads, stacked, stepped
from longshore.spark.report.markup import Markup, clipped, inert_cell, shown, tag
from longshore.spark.report.scales import Periods, linear, moment, periods_between, share, short, span, spans, times
from longshore.spark.report.tables import as_csv, counted, on_the_page, text

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\x1b[31mred\x00",
    "\u202eexe.gnp",
    "]]>",
    "&lt;",
]
DAY = Periods(1_777_593_600, 3_600, 24)


def parsed(drawing: Markup) -> ElementTree.Element:
    """As strict as XML is: nothing that was not meant to be an element is one."""
    return ElementTree.fromstring(drawing)


def texts(drawing: Markup) -> str:
    return " ".join(parsed(drawing).itertext())


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped_in_every_chart(name: str) -> None:
    ones = [1.0] * DAY.count
    fans = {part: list(ones) for part in ("p50", "p75", "p95", "p99")}
    for drawing in (
        stacked(Canvas(), DAY, [(name, "c1", ones)], name, lambda of, value: f"{of} {value}"),
        stepped(Canvas(), DAY, [(name, "c1", ones)], name, lambda of, value: f"{of} {value}"),
        fan(Canvas(), DAY, fans, name),
        heatmap(DAY, [(name, ones)], name, lambda _place, _number: name),
        bars([(name, 3.0, name)], name),
        spreads([Spread(name, 0.1, 1.0, 2.0, name)], name),
        key([name], ["c1"]),
    ):
        root = parsed(drawing)
        kinds = {element.tag for element in root.iter()}
        assert kinds <= {
            "svg",
            "title",
            "g",
            "rect",
            "line",
            "text",
            "circle",
            "polygon",
            "polyline",
            "ul",
            "li",
            "span",
        }
        assert shown(name)[:5] in texts(drawing)
        assert "\x1b" not in drawing


@given(st.text(max_size=40))
def test_any_text_is_one_text_node(value: str) -> None:
    told = parsed(tag("p", value, title=value))
    assert told.text == (shown(value) or None)
    assert told.get("title") == shown(value)


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "  =1", "\r=1"])
def test_cells_that_a_spreadsheet_would_run_get_an_apostrophe(value: str) -> None:
    cell = inert_cell(value)
    assert not cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r"))


def test_numbers_stay_numbers_in_a_file_and_rows_of_hostile_names_stay_rows(tmp_path: Path) -> None:
    columns = [text("queue", "queue"), counted("jobs", "jobs")]
    rows = [{"queue": name, "jobs": -3} for name in ["a,b", 'say "hi"', "two\nlines", "=cmd|' /C calc'!A0"]]
    assert as_csv(tmp_path / "t.csv", columns, rows, shown=1) == (4, rows[:1])
    assert (tmp_path / "t.csv").read_text().splitlines() == [
        "queue,jobs",
        '"a,b",-3',
        '"say ""hi""",-3',
        "two\\x0alines,-3",
        "'=cmd|' /C calc'!A0,-3",
    ]


def test_a_table_links_to_its_file_and_has_full_names_as_tooltips() -> None:
    long = "x" * 90
    page = on_the_page([text("queue", "queue")], [{"queue": long}, {"queue": None}], 7, "t.csv")
    table = parsed(tag("div", page))
    cells = [(cell.text, cell.get("title")) for cell in table.iter("td")]
    assert cells == [(clipped(long, 48), long), ("–", None)]
    assert "The first 2 of 7 rows" in " ".join(table.itertext())


def test_axes_begin_and_end_at_round_numbers() -> None:
    scale = linear(42.0, 100, 0)
    assert [label for _, label in scale.marks] == ["0", "20", "40", "60"]
    assert (scale.place(0), scale.place(60)) == (100, 0)
    assert linear(0, 100, 0).place(0) == 100
    logarithmic = spans(0.02, 45, 0, 100)
    assert [label for _, label in logarithmic.marks] == ["10 ms", "100 ms", "1 s", "10 s", "1 min"]
    assert logarithmic.place(0) == 0
    assert logarithmic.place(60) == pytest.approx(100)


def test_times_are_marked_where_days_and_hours_begin() -> None:
    marks = times(DAY.first, DAY.end, 0, 960).marks
    assert [label for _, label in marks] == [
        "May 1",
        "03:00",
        "06:00",
        "09:00",
        "12:00",
        "15:00",
        "18:00",
        "21:00",
        "May 2",
    ]
    assert moment(DAY.first + 300, 60, with_day=True) == "May 1, 00:05"
    assert times(DAY.first, DAY.first + 30 * 86_400, 0, 960).marks[0][1] == "May 4"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        *[(0, "0 s"), (2e-6, "2 µs"), (0.0123, "12 ms"), (1.26, "1.3 s"), (60, "1 min"), (90, "90 s")],
        *[(5_000, "83 min"), (7_200, "2 h"), (100_000, "28 h"), (345_600, "4 d"), (None, "–")],
    ],
)
def test_durations_have_readable_units(seconds: float | None, told: str) -> None:
    assert span(seconds) == told


def test_numbers_and_shares_are_short() -> None:
    assert [short(value) for value in (0, 0.5, 950, 1_200, 3e6)] == ["0", "0.5", "950", "1.2k", "3M"]
    told = [share(value) for value in (None, 0, 0.0001, 0.01, 0.0234, 0.5, 1)]
    assert told == ["–", "0 %", "< 0.1 %", "1 %", "2.3 %", "50 %", "100 %"]


def test_a_short_history_has_room_around_it_and_a_long_one_few_enough_columns() -> None:
    minute = periods_between(DAY.first, DAY.first, 60)
    assert (minute.count, minute.step) == (12, 60)
    assert minute.first < DAY.first < minute.end
    year = periods_between(DAY.first, DAY.first + 365 * 86_400, 60)
    assert year.count <= 120
    assert year.first <= DAY.first
    assert year.end > DAY.first + 365 * 86_400


def test_a_gap_in_the_data_is_a_gap_in_the_chart() -> None:
    values: list[float | None] = [None, 1.0, 1.0, None, 2.0, *[None] * 19]
    drawing = fan(Canvas(), DAY, dict.fromkeys(("p50", "p75", "p95", "p99"), values), "seconds")
    assert len(list(parsed(drawing).iter("polyline"))) == 2


def test_shades_grow_with_the_share() -> None:
    assert [shade_of(value) for value in (0, 0.01, 0.02, 0.1, 0.3, 1)] == [f"heat{n}" for n in range(6)]
