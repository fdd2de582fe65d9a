"""Numbered migrations, read from the package that carries them; how they are applied is the store's own affair."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from longshore.core.errors import BackendUnavailable


class Migration(NamedTuple):
    """One step; after it the schema has this number."""

    number: int
    name: str
    text: str


def load_migrations(package: str) -> tuple[Migration, ...]:
    """All steps in order; their numbers must be 1, 2, 3 …"""
    found = sorted(entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql"))
    steps = []
    for expected, name in enumerate(found, start=1):
        number = int(name.split("_", 1)[0])
        if number != expected:
            raise RuntimeError(f"migration {name} should have the number {expected:04d}")
        steps.append(Migration(number, name, files(package).joinpath(name).read_text(encoding="utf-8")))
    return tuple(steps)


def refuse_newer(version: int, known: Sequence[Migration], where: str) -> None:
    """A schema newer than the code is left alone."""
    if version > len(known):
        raise BackendUnavailable(
            f"{where} has schema {version}, made by a newer Longshore; this one knows up to {len(known)}. Upgrade it"
        )
