"""The page: one file that needs nothing else, whatever names and errors are on it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from longshore.spark.report.markup import Markup, tag
from longshore.spark.report.section import Section
from longshore.spark.report.tables import Written, on_the_page

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


def links_to(sections: Sequence[Section]) -> Markup:
    """The way to each section."""
    return tag("nav", [(tag("a", section.title, href=f"#{section.name}"), " ") for section in sections])


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
