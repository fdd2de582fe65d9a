"""Named SQL: each dialect's statements live in one file, and are called by the name they have there."""

from __future__ import annotations

import re
from importlib.resources import files

_BLOCK = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")


class Statements:
    """The statements of one `queries.sql`, as attributes; `{name}` in one stands for another block or a constant."""

    def __init__(self, package: str, **constants: str) -> None:
        text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
        blocks = {found[1]: _COMMENT.sub("", found[2]).strip() for found in _BLOCK.finditer(text)}
        blocks |= constants
        self._texts = {name: _filled(block, blocks) for name, block in blocks.items() if name not in constants}

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"no statement is named {name!r}") from None

    def names(self) -> frozenset[str]:
        """All names, to compare dialects."""
        return frozenset(self._texts)


def _filled(block: str, blocks: dict[str, str]) -> str:
    while _FRAGMENT.search(block):
        block = _FRAGMENT.sub(lambda use: blocks[use[1]], block)
    return block
