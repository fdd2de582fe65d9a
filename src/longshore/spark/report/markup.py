"""Escapes text for HTML, SVG and CSV."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is markup already; anything else is escaped on its way in."""

    __slots__ = ()


def shown(text: object) -> str:
    """Control characters, marks that turn the direction of writing, and broken Unicode made visible."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in str(text))


def clipped(text: object, most: int) -> str:
    """At most this many characters; the end is kept too, because names often differ there."""
    caption = shown(text)
    if len(caption) <= most:
        return caption
    tail = most // 3
    return f"{caption[: most - tail - 1]}…{caption[-tail:]}"


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; None leaves an attribute out."""
    caption = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = joined(children)
    return (
        Markup(f"<{name}{caption}>{inner}</{name}>") if inner or name not in _EMPTY else Markup(f"<{name}{caption}/>")
    )


_EMPTY = frozenset({"rect", "line", "path", "circle", "polygon", "polyline", "use"})


def joined(children: object) -> Markup:
    """Markup as it is, the rest escaped; lists within lists, and nothing for None."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, list | tuple):
        return Markup("".join(joined(child) for child in children))
    return Markup(escape(shown(children)))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return escape(shown(value))


_READ_AS_FORMULAS = ("=", "+", "-", "@")


def inert_cell(value: object) -> str:
    """A cell of a CSV file: text that a spreadsheet would take for a formula gets an apostrophe, as they expect it."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    text = shown(value)
    return f"'{text}" if text.lstrip().startswith(_READ_AS_FORMULAS) else text
