"""Charts as SVG: frame and axes, lines over time, heat maps and bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longshore.spark.report.markup import Markup, clipped, tag
from longshore.spark.report.scales import Periods, Scale, linear, short, span, spans, times

_LETTER = 6.3
_WIDE_LETTER = 7.2
"""How wide a letter is, about, at the size of the marks."""
_LONGEST_KEY = 40


@dataclass(frozen=True)
class Canvas:
    """A picture's size, and how much of it is left to axes and names."""

    width: float = 960
    height: float = 260
    left: float = 64
    right: float = 12
    top: float = 24
    bottom: float = 28

    @property
    def floor(self) -> float:
        """Where the plot ends below."""
        return self.height - self.bottom

    @property
    def edge(self) -> float:
        """Where the plot ends on the right."""
        return self.width - self.right

    def drawn(self, caption: str, *shapes: object) -> Markup:
        """The picture; `caption` is its label for screen readers."""
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", tag("title", caption), shapes, viewBox=box, role="img", class_="plot")


def height_axis(canvas: Canvas, scale: Scale, unit: str) -> list[Markup]:
    """Lines across the plot, numbers to their left, and above them what they count."""
    drawn = []
    for value, label in scale.marks:
        y = scale.place(value)
        drawn.append(tag("line", x1=canvas.left, x2=canvas.edge, y1=y, y2=y, class_="grid"))
        drawn.append(tag("text", label, x=canvas.left - 8, y=y + 4, class_="mark end"))
    drawn.append(tag("text", unit, x=canvas.left, y=canvas.top - 10, class_="unit"))
    return drawn


def time_axis(canvas: Canvas, scale: Scale) -> list[Markup]:
    """Times below the plot; overlapping ones are left out."""
    drawn: list[Markup] = []
    free = 0.0
    for value, label in scale.marks:
        x = scale.place(value)
        half = len(label) * _LETTER / 2
        centre = min(max(x, canvas.left + half - 20), canvas.edge - half)
        if centre - half < free:
            continue
        free = centre + half + 8
        drawn.append(tag("line", x1=x, x2=x, y1=canvas.floor, y2=canvas.floor + 4, class_="tick"))
        drawn.append(tag("text", label, x=centre, y=canvas.floor + 18, class_="mark middle"))
    return drawn


def length_axis(canvas: Canvas, scale: Scale, unit: str) -> list[Markup]:
    """Lines from top to bottom, numbers below them, and what they count at the end."""
    drawn = []
    for value, label in scale.marks:
        x = scale.place(value)
        drawn.append(tag("line", x1=x, x2=x, y1=canvas.top, y2=canvas.floor, class_="grid"))
        drawn.append(tag("text", label, x=x, y=canvas.floor + 16, class_="mark middle"))
    drawn.append(tag("text", unit, x=canvas.left, y=canvas.top - 10, class_="unit"))
    return drawn


def key(names: Sequence[str], classes: Sequence[str]) -> Markup:
    """Which colour is whose, in words beside it."""
    entries = [
        tag("li", tag("span", class_=f"swatch {of}"), clipped(name, _LONGEST_KEY), title=name)
        for name, of in zip(names, classes, strict=True)
    ]
    return tag("ul", entries, class_="key")


def named(name: str, x: float, y: float, width: float) -> Markup:
    """The name of a row, to the left of it, whole when pointed at."""
    shown = clipped(name, max(int(width / _WIDE_LETTER), 5))
    return tag("text", tag("title", name), shown, x=x, y=y, class_="name end")


Values = Sequence[float]
Series = Sequence[tuple[str, str, Values]]
"""Of each its name, its colour, and a value for each period."""
Caption = Callable[[str, float], str]
"""Says what a value of the series with this name means."""
FAN = (("p99", "p95", "far"), ("p95", "p75", "near"), ("p75", "p50", "close"))
"""The bands of a fan from above to the median: upper edge, lower edge, shade."""


def stacked(canvas: Canvas, periods: Periods, series: Series, unit: str, caption: Caption) -> Markup:
    """Columns, one part for each series."""
    totals = [sum(values) for values in zip(*(values for _, _, values in series), strict=True)] or [0.0]
    heights = linear(max(totals), canvas.floor, canvas.top)
    across = times(periods.first, periods.end, canvas.left, canvas.edge)
    columns = []
    for number, start in enumerate(periods.starts):
        x, width = _column(across, start, periods.step)
        below = 0.0
        for name, colour, values in series:
            if values[number] <= 0:
                continue
            bottom, top = heights.place(below), heights.place(below + values[number])
            below += values[number]
            hint = tag("title", f"{name}: {caption(name, values[number])}\n{periods.caption(number)}")
            columns.append(tag("rect", hint, x=x, y=top, width=width, height=max(bottom - top, 0.5), class_=colour))
    axes = [height_axis(canvas, heights, unit), time_axis(canvas, across)]
    return canvas.drawn(unit, axes, columns)


def ends(fans: Iterable[Mapping[str, Sequence[float | None]]]) -> tuple[float, float]:
    """The least and the most in some fans, for axes that can be compared."""
    known = [value for percentiles in fans for values in percentiles.values() for value in values if value is not None]
    return min(known, default=1e-3), max(known, default=1.0)


def fan(
    canvas: Canvas,
    periods: Periods,
    percentiles: Mapping[str, Sequence[float | None]],
    unit: str,
    between: tuple[float, float] | None = None,
) -> Markup:
    """The median as a line, and bands up to the 75th, 95th and 99th percentile; a gap where nothing was measured."""
    heights = spans(*(between or ends([percentiles])), canvas.floor, canvas.top)
    across = times(periods.first, periods.end, canvas.left, canvas.edge, marks=int(canvas.width / 110))
    shapes: list[Markup] = []
    for stretch in _stretches(percentiles["p50"]):
        edges = _edges(across, periods, stretch)
        for upper, lower, shade in FAN:
            above = [(x, heights.place(percentiles[upper][number] or 0)) for x, number in edges]
            below = [(x, heights.place(percentiles[lower][number] or 0)) for x, number in reversed(edges)]
            shapes.append(tag("polygon", points=_points([*above, *below]), class_=f"fan {shade}"))
        median = [(x, heights.place(percentiles["p50"][number] or 0)) for x, number in edges]
        shapes.append(tag("polyline", points=_points(median), class_="median"))
    for number, start in enumerate(periods.starts):
        if percentiles["p50"][number] is not None:
            x, width = _column(across, start, periods.step, gap=0)
            lines = [f"{name[1:]} % within {span(percentiles[name][number])}" for name in percentiles]
            hint = tag("title", "\n".join([periods.caption(number), *lines]))
            shapes.append(
                tag("rect", hint, x=x, y=canvas.top, width=width, height=canvas.floor - canvas.top, class_="feel")
            )
    return canvas.drawn(unit or "percentiles", height_axis(canvas, heights, unit), time_axis(canvas, across), shapes)


def stepped(canvas: Canvas, periods: Periods, series: Series, unit: str, caption: Caption) -> Markup:
    """Areas on top of one another that keep their height through each period: what was there at its end."""
    sums = [0.0] * periods.count
    stacks = []
    for name, colour, values in series:
        lower, sums = sums, [low + value for low, value in zip(sums, values, strict=True)]
        stacks.append((name, colour, values, lower, sums))
    heights = linear(max(sums, default=0.0), canvas.floor, canvas.top)
    across = times(periods.first, periods.end, canvas.left, canvas.edge)
    areas = []
    for name, colour, _, lower, upper in stacks:
        outline = [*_steps(across, periods, heights, upper), *reversed(_steps(across, periods, heights, lower))]
        areas.append(tag("polygon", tag("title", name), points=_points(outline), class_=colour))
    for number, start in enumerate(periods.starts):
        x, width = _column(across, start, periods.step, gap=0)
        lines = [f"{name}: {caption(name, values[number])}" for name, _, values, _, _ in stacks if values[number]]
        hint = tag("title", "\n".join([f"at the end of {periods.caption(number)}", *lines]))
        areas.append(tag("rect", hint, x=x, y=canvas.top, width=width, height=canvas.floor - canvas.top, class_="feel"))
    return canvas.drawn(unit, height_axis(canvas, heights, unit), time_axis(canvas, across), areas)


def _column(across: Scale, start: int, step: int, gap: float = 1) -> tuple[float, float]:
    left, right = across.place(start), across.place(start + step)
    wide = right - left
    gap = gap if wide > 4 else 0
    return left + gap / 2, max(wide - gap, 0.5)


def _stretches(values: Sequence[float | None]) -> list[range]:
    """Run of periods in which something was measured."""
    found: list[range] = []
    begin = None
    for number, value in enumerate([*values, None]):
        if value is not None and begin is None:
            begin = number
        elif value is None and begin is not None:
            found.append(range(begin, number))
            begin = None
    return found


def _edges(across: Scale, periods: Periods, stretch: range) -> list[tuple[float, int]]:
    """The middle of each period; a stretch begins and ends at the edges of its first and last one."""
    start, half = periods.first, periods.step / 2
    middles = [(across.place(start + number * periods.step + half), number) for number in stretch]
    left = (across.place(start + stretch[0] * periods.step), stretch[0])
    right = (across.place(start + (stretch[-1] + 1) * periods.step), stretch[-1])
    return [left, *middles, right]


def _steps(across: Scale, periods: Periods, heights: Scale, values: Values) -> list[tuple[float, float]]:
    corners = []
    for start, value in zip(periods.starts, values, strict=True):
        y = heights.place(value)
        corners += [(across.place(start), y), (across.place(start + periods.step), y)]
    return corners


def _points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


_ROW = 24
_NAMES = 190.0
HEAT = (0.0, 0.01, 0.05, 0.2, 0.5)
"""Where each shade begins; a share of exactly zero has a separate shade."""


def shade_of(value: float) -> str:
    """The shade of a share of all."""
    return "heat0" if value <= 0 else f"heat{sum(value > edge for edge in HEAT)}"


def heatmap(
    periods: Periods,
    rows: Sequence[tuple[str, Sequence[float | None]]],
    unit: str,
    caption: Callable[[int, int], str],
    shade: Callable[[float], str] = shade_of,
) -> Markup:
    """A cell for each name and period, empty where nothing happened; `caption` says what is behind a cell."""
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
                hint = tag("title", f"{name}: {caption(place, number)}\n{periods.caption(number)}")
                cells.append(
                    tag("rect", hint, x=x, y=y + 1, width=max(right - x - gap, 1), height=_ROW - 2, class_=shade(value))
                )
    unit_mark = tag("text", unit, x=canvas.left, y=canvas.top - 10, class_="unit")
    return canvas.drawn(unit, unit_mark, cells, time_axis(canvas, across))


def bars(rows: Sequence[tuple[str, float, str]], unit: str, colour: str = "c1") -> Markup:
    """A bar for each name, with its value at the end; the third item is the tooltip."""
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
