"""The manifest of a lake: a numbered list of the files of each table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore.core.errors import LongshoreError

OPEN = "open"
"""The day of what has not ended yet."""
LAYOUT = 1
"""Of this form; a lake of another is refused."""


class LakeError(LongshoreError):
    """The lake cannot be used, or a run was stopped; the message says why, and the lake is as it was."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one write brought to a table: where it is, and how many rows each day of it holds."""

    path: str
    days: Mapping[str, int]

    @property
    def rows(self) -> int:
        """All it holds."""
        return sum(self.days.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the lake."""

    version: int = 0
    format: str = "parquet"
    log: str = ""
    """Which event log it is the history of."""
    last_batch: int = -1
    totals: Mapping[str, int] = field(default_factory=dict)
    """Sums over all that ever landed: events, job.added, claims."""
    newest: int = 0
    """The time of the newest event, in microseconds."""
    reached: Sequence[int] = (0, 0)
    """The place of the last event in the log: transaction, number."""
    made_at: str = ""
    tables: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    def pieces(self, table: str) -> tuple[Piece, ...]:
        """Of a table, oldest first."""
        return self.tables.get(table, ())

    def days(self, table: str) -> dict[str, int]:
        """Rows of each day of a table."""
        days: dict[str, int] = {}
        for piece in self.pieces(table):
            for day, rows in piece.days.items():
                days[day] = days.get(day, 0) + rows
        return dict(sorted(days.items()))

    def rows(self, table: str) -> int:
        """All rows of a table."""
        return sum(piece.rows for piece in self.pieces(table))

    @property
    def paths(self) -> set[str]:
        """Everything that this version consists of."""
        return {piece.path for pieces in self.tables.values() for piece in pieces}


def without_days(pieces: Sequence[Piece], days: Collection[str]) -> tuple[Piece, ...]:
    """The same table, with nothing in these days; a piece that holds nothing else is gone."""
    left = (Piece(piece.path, {day: rows for day, rows in piece.days.items() if day not in days}) for piece in pieces)
    return tuple(piece for piece in left if piece.days)


def with_pieces(pieces: Sequence[Piece], new: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same table with more in it."""
    return (*pieces, *(piece for piece in new if piece.days))


def to_text(manifest: Manifest) -> str:
    """As it is stored."""
    tables = {
        name: [{"path": piece.path, "days": dict(piece.days)} for piece in pieces]
        for name, pieces in sorted(manifest.tables.items())
    }
    body: dict[str, Any] = {
        "layout": LAYOUT,
        "version": manifest.version,
        "format": manifest.format,
        "log": manifest.log,
        "last_batch": manifest.last_batch,
        "totals": dict(manifest.totals),
        "newest": manifest.newest,
        "reached": list(manifest.reached),
        "made_at": manifest.made_at,
        "tables": tables,
    }
    return json.dumps(body, indent=1)


def from_text(text: str, where: str) -> Manifest:
    """As it was stored; one of another form is refused."""
    try:
        body = json.loads(text)
        layout = body.pop("layout")
        if layout != LAYOUT:
            raise LakeError(f"{where} is of layout {layout}, and this Longshore knows {LAYOUT}: use the one it is from")
        tables = {
            name: tuple(Piece(piece["path"], piece["days"]) for piece in pieces)
            for name, pieces in body.pop("tables").items()
        }
        return Manifest(tables=tables, **body)
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(f"{where} cannot be read ({error}): remove it to go back to the version before") from error
