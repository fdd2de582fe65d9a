"""Plots over time: pure functions from numbers to SVG, each shape with its exact value when pointed at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from longshore.spark.report.canvas import Canvas, height_axis, time_axis
from longshore.spark.report.markup import Markup, tag
from longshore.spark.report.periods import Periods
from longshore.spark.report.scales import Scale, linear, span, spans, times

Values = Sequence[float]
FAN = (("p99", "p95", "far"), ("p95", "p75", "near"), ("p75", "p50", "close"))
"""The bands of a fan from above to the median: upper edge, lower edge, shade."""


def stacked(
    canvas: Canvas,
    periods: Periods,
    series: Sequence[tuple[str, str, Values]],
    unit: str,
    told: Callable[[str, float], str],
) -> Markup:
    """Columns, one part for each series: its name, its colour, a value for each period."""
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
            hint = tag("title", f"{name}: {told(name, values[number])}\n{periods.told(number)}")
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
            hint = tag("title", "\n".join([periods.told(number), *lines]))
            shapes.append(
                tag("rect", hint, x=x, y=canvas.top, width=width, height=canvas.floor - canvas.top, class_="feel")
            )
    return canvas.drawn(unit or "percentiles", height_axis(canvas, heights, unit), time_axis(canvas, across), shapes)


def stepped(
    canvas: Canvas,
    periods: Periods,
    series: Sequence[tuple[str, str, Values]],
    unit: str,
    told: Callable[[str, float], str],
) -> Markup:
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
        lines = [f"{name}: {told(name, values[number])}" for name, _, values, _, _ in stacks if values[number]]
        hint = tag("title", "\n".join([f"at the end of {periods.told(number)}", *lines]))
        areas.append(tag("rect", hint, x=x, y=canvas.top, width=width, height=canvas.floor - canvas.top, class_="feel"))
    return canvas.drawn(unit, height_axis(canvas, heights, unit), time_axis(canvas, across), areas)


def _column(across: Scale, start: int, step: int, gap: float = 1) -> tuple[float, float]:
    left, right = across.place(start), across.place(start + step)
    wide = right - left
    gap = gap if wide > 4 else 0
    return left + gap / 2, max(wide - gap, 0.5)


def _stretches(values: Sequence[float | None]) -> list[range]:
    """Runs of periods in which something was measured."""
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
