"""The ground that every plot stands on: its frame, its axes with their units, its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.spark.report.markup import Markup, clipped, tag
from longshore.spark.report.scales import Scale

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

    def drawn(self, told: str, *shapes: object) -> Markup:
        """The picture; `told` is what it is called for those who do not see it."""
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", tag("title", told), shapes, viewBox=box, role="img", class_="plot")


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
    """Times below the plot; those that would run into one another are left out."""
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


def cut(name: str, room: float) -> str:
    """A name that fits into so much room."""
    return clipped(name, max(int(room / _WIDE_LETTER), 5))


def named(name: str, x: float, y: float, room: float) -> Markup:
    """The name of a row, to the left of it, whole when pointed at."""
    return tag("text", tag("title", name), cut(name, room), x=x, y=y, class_="name end")
