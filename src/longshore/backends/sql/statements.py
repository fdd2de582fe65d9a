"""Named SQL statements and numbered migrations, read from the package of each dialect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from longshore.core.errors import BackendUnavailable

_BLOCK = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")


class Statements:
    """The statements of one `queries.sql`, as attributes; `{name}` in one stands for another block or a constant."""

    def __init__(self, package: str, **constants: str) -> None:
        text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
        blocks = {found[1]: _COMMENT.sub("", found[2]).strip() for found in _BLOCK.finditer(text)}
        self._texts = {name: _filled(block, blocks, constants) for name, block in blocks.items()}

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"no statement is named {name!r}") from None

    def names(self) -> frozenset[str]:
        """All names, to compare dialects."""
        return frozenset(self._texts)


def _filled(block: str, blocks: dict[str, str], constants: dict[str, str]) -> str:
    """Pieces first, as often as it takes; constants last and once, for what is written in them is meant so."""
    while any(name not in constants for name in _FRAGMENT.findall(block)):
        block = _FRAGMENT.sub(lambda use: use[0] if use[1] in constants else blocks[use[1]], block)
    return _FRAGMENT.sub(lambda use: constants[use[1]], block)


class Migration(NamedTuple):
    """One step; after it the schema has this number."""

    number: int
    name: str
    text: str


def load_migrations(package: str) -> tuple[Migration, ...]:
    """All steps in order; their numbers must be 1, 2, 3 …"""
    folder = files(package).joinpath("migrations")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    steps = []
    for expected, name in enumerate(found, start=1):
        number = int(name.split("_", 1)[0])
        if number != expected:
            raise RuntimeError(f"migration {name} should have the number {expected:04d}")
        steps.append(Migration(number, name, folder.joinpath(name).read_text(encoding="utf-8")))
    return tuple(steps)


def refuse_newer(version: int, known: Sequence[Migration], where: str) -> None:
    """A schema newer than the code is left alone."""
    if version > len(known):
        raise BackendUnavailable(
            f"{where} has schema {version}, made by a newer Longshore; this one knows up to {len(known)}. Upgrade it"
        )
