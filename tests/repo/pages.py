"""The pages that people read: their blocks of code, their headings and their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")])

NOT_RUN = re.compile(r"# not run: \w+")
FILE_NAME = re.compile(r"# ([\w/]+\.py)\n")
FENCE = re.compile(r"^ {0,3}(`{3,}) *([\w+-]*)[^`]*$")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    return tuple(block for block, _ in _read(page) if block is not None)


def prose_of(page: Path) -> Iterator[str]:
    """The lines outside code blocks."""
    return (line for block, line in _read(page) if block is None)


def _read(page: Path) -> Iterator[tuple[Block | None, str]]:
    """Each line of prose, and each block once it has ended."""
    fence, language, began, inside = "", "", 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        marks = FENCE.match(line)
        if fence and marks and marks[1].startswith(fence) and not marks[2]:
            yield Block(page, began, language, "".join(f"{one}\n" for one in inside)), ""
            fence, inside = "", []
        elif fence:
            inside.append(line)
        elif marks:
            fence, language, began = marks[1], marks[2], number + 1
        else:
            yield None, line
    assert not fence, f"{name_of(page)}: the block at line {began} has no end"


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """What a link may name after `#`: the headings, written as forges of code write them."""
    seen: dict[str, int] = {}
    anchors = set()
    for line in prose_of(page):
        if heading := HEADING.match(line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            anchors.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
            seen[slug] = seen.get(slug, 0) + 1
    return frozenset(anchors)


def links_of(page: Path) -> list[str]:
    """Where the page points to, within the repository."""
    targets = [target for line in prose_of(page) for target in LINK.findall(re.sub(r"`[^`]*`", "", line))]
    return [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]


# --- code to run ---


def to_run(page: Path, language: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == language and not NOT_RUN.match(block.text)]


def commands_of(page: Path) -> list[Block]:
    """Its blocks of shell commands without the programs of examples: tests/examples runs those and reads on."""
    left = []
    for block in to_run(page, "sh"):
        text = re.sub(r"^python examples/.*\n", "", block.text, flags=re.MULTILINE)
        if text.strip():
            left.append(Block(page, block.line, "sh", text))
    return left


def programs_of(page: Path) -> list[Block]:
    """The programs of a page, except those that its commands run, which need earlier commands."""
    commands = "".join(block.text for block in commands_of(page))
    named = {block: name[1] for block in to_run(page, "python") if (name := FILE_NAME.match(block.text))}
    return [block for block in to_run(page, "python") if f"python {named.get(block)}\n" not in commands]
