"""Plots with a row for each name: heat over time, bars, and how far times are spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from longshore.spark.report.canvas import Canvas, length_axis, named, time_axis
from longshore.spark.report.markup import Markup, tag
from longshore.spark.report.periods import Periods
from longshore.spark.report.scales import linear, short, span, spans, times

_ROW = 24
_NAMES = 190.0
HEAT = (0.0, 0.01, 0.05, 0.2, 0.5)
"""Where each shade of heat begins; a share of exactly nothing has one of its own."""


def shade_of(value: float) -> str:
    """The shade of a share of all."""
    return "heat0" if value <= 0 else f"heat{sum(value > edge for edge in HEAT)}"


def heatmap(
    periods: Periods,
    rows: Sequence[tuple[str, Sequence[float | None]]],
    unit: str,
    told: Callable[[int, int], str],
    shade: Callable[[float], str] = shade_of,
) -> Markup:
    """A cell for each name and period, empty where nothing happened; `told` says what is behind a cell."""
    canvas = Canvas(height=24 + _ROW * max(len(rows), 1) + 28, left=_NAMES)
    across = times(periods.first, periods.end, canvas.left, canvas.edge)
    cells: list[Markup] = []
    for place, (name, values) in enumerate(rows):
        y = canvas.top + _ROW * place
        cells.append(named(name, canvas.left - 8, y + 16, canvas.left - 12))
        cells.append(
            tag("rect", x=canvas.left, y=y + 1, width=canvas.edge - canvas.left, height=_ROW - 2, class_="bed")
        )
        for number, value in enumerate(values):
            if value is not None:
                x = across.place(periods.first + number * periods.step)
                right = across.place(periods.first + (number + 1) * periods.step)
                gap = 1 if right - x > 4 else 0
                hint = tag("title", f"{name}: {told(place, number)}\n{periods.told(number)}")
                cells.append(
                    tag("rect", hint, x=x, y=y + 1, width=max(right - x - gap, 1), height=_ROW - 2, class_=shade(value))
                )
    unit_mark = tag("text", unit, x=canvas.left, y=canvas.top - 10, class_="unit")
    return canvas.drawn(unit, unit_mark, cells, time_axis(canvas, across))


def bars(rows: Sequence[tuple[str, float, str]], unit: str, colour: str = "c1") -> Markup:
    """A bar for each name, with its value at the end; the third is what is told when it is pointed at."""
    canvas = Canvas(height=24 + _ROW * max(len(rows), 1) + 28, left=_NAMES * 1.6, right=60)
    lengths = linear(max((value for _, value, _ in rows), default=1), canvas.left, canvas.edge)
    drawn: list[Markup] = []
    for place, (name, value, hint) in enumerate(rows):
        y = canvas.top + _ROW * place
        width = max(lengths.place(value) - canvas.left, 1)
        drawn.append(named(name, canvas.left - 8, y + 16, canvas.left - 12))
        drawn.append(
            tag("rect", tag("title", hint), x=canvas.left, y=y + 4, width=width, height=_ROW - 8, class_=colour)
        )
        drawn.append(tag("text", short(value), x=canvas.left + width + 6, y=y + 16, class_="mark"))
    return canvas.drawn(unit, length_axis(canvas, lengths, unit), drawn)


class Spread(NamedTuple):
    """How long something takes, half of the times and at the ends."""

    name: str
    p50: float
    p95: float
    p99: float
    hint: str


def spreads(rows: Sequence[Spread], unit: str) -> Markup:
    """From the median to the 99th percentile of each name, on an axis where every step is ten times the one before."""
    canvas = Canvas(height=24 + _ROW * max(len(rows), 1) + 28, left=_NAMES * 1.6, right=60)
    least = min((row.p50 for row in rows), default=1e-3)
    lengths = spans(least, max((row.p99 for row in rows), default=1), canvas.left, canvas.edge)
    drawn: list[Markup] = []
    for place, row in enumerate(rows):
        y = canvas.top + _ROW * place + _ROW / 2
        half, most = lengths.place(row.p50), lengths.place(row.p99)
        drawn.append(named(row.name, canvas.left - 8, y + 4, canvas.left - 12))
        drawn.append(
            tag(
                "g",
                tag("title", row.hint),
                tag("rect", x=half - 6, y=y - 10, width=most - half + 12, height=20, class_="feel"),
                tag("line", x1=half, x2=most, y1=y, y2=y, class_="reach"),
                tag("circle", cx=half, cy=y, r=5, class_="dot half"),
                tag("circle", cx=lengths.place(row.p95), cy=y, r=5, class_="dot most"),
                tag("line", x1=most, x2=most, y1=y - 6, y2=y + 6, class_="reach"),
            )
        )
        drawn.append(tag("text", span(row.p95), x=max(most, lengths.place(row.p95)) + 8, y=y + 4, class_="mark"))
    return canvas.drawn(unit, length_axis(canvas, lengths, unit), drawn)
